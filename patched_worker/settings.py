"""What the operator asked for, and how it reaches SGLang's scheduler processes: environment variables.

SGLang spawns one scheduler process per GPU and hands it nothing of ours, but children inherit the environment. The
launcher writes these variables, the plugin reads the same ones, so both ways of starting behave alike.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patched_worker.policy import DEFAULT_MIN_DWELL_STEPS, MAX_NUMBER, NEVER_DISABLE, Policy, Rung

THRESHOLD = "SPECPIVOT_DISABLE_BATCH_THRESHOLD"
RESUME_AT = "SPECPIVOT_RESUME_BATCH_THRESHOLD"
MIN_DWELL = "SPECPIVOT_MIN_DWELL_STEPS"
POLICY_FILE = "SPECPIVOT_POLICY_FILE"
ALLOW_MODIFIED_SOURCE = "SPECPIVOT_ALLOW_MODIFIED_SOURCE"
DRAFT_SYNC_STEPS = "SPECPIVOT_DRAFT_SYNC_STEPS"
LAUNCHED = "SPECPIVOT_LAUNCHED"  # set by our launcher, which checks modified source; SGLang's own cannot


class Refusal(SystemExit):
    """Why the patched worker will not run, in one line with the remedy.

    A `SystemExit`, because SGLang logs and swallows every `Exception` that a plugin raises and would then serve
    unpatched.
    """


@dataclass(frozen=True, slots=True)
class Settings:
    """One start's choices.

    Attributes:
        policy: the switching rule at start.
        allow_modified_source: run although functions of SGLang differ from the ones that were validated.
        draft_sync_steps: plain steps until the draft's KV is brought up to date; None: the number of draft tokens.
    """

    policy: Policy
    allow_modified_source: bool = False
    draft_sync_steps: int | None = None


def requested(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the environment asks for the patched worker at all."""
    return bool(environ.get(THRESHOLD) or environ.get(POLICY_FILE))


def from_environ(environ: Mapping[str, str] = os.environ) -> Settings:
    """The settings that the environment holds.

    Raises:
        Refusal: a value that is not a number, a policy file that cannot be read, or a rule that makes no sense.
    """
    return Settings(
        policy=_policy(environ),
        allow_modified_source=environ.get(ALLOW_MODIFIED_SOURCE) == "1",
        draft_sync_steps=_number(environ, DRAFT_SYNC_STEPS),
    )


def threshold_from_text(text: str) -> int | None:
    """`never` or -1: speculation is never disabled (None); otherwise a number of requests.

    Raises:
        ValueError: anything else.
    """
    if text in ("never", str(NEVER_DISABLE)):
        return None
    if text == "auto":
        raise ValueError("auto is not available yet; run `specpivot tune` and pass --speculative-policy-file")
    return int(text)


def policy_from_file(path: Path) -> Policy:
    """The policy of a recommendation.json: its ladder where it has one, else its threshold.

    Raises:
        Refusal: the file is missing, is not JSON, or lacks `threshold`.
    """
    try:
        document = json.loads(path.read_text())
        _check_numbers(document)
        if document.get("ladder"):
            rungs = tuple(Rung(**rung) for rung in document["ladder"])
            return Policy(rungs, document.get("min_dwell_steps", DEFAULT_MIN_DWELL_STEPS))
        return Policy.from_threshold(document["threshold"], document.get("resume_at"), document.get("min_dwell_steps"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Refusal(
            f"policy file {path}: {error!r}; give a recommendation.json that `specpivot tune` wrote"
        ) from error


def _check_numbers(document: Mapping[str, Any]) -> None:
    """Refuse what would be compared with batches and is no whole number."""
    found = [document.get(name) for name in ("threshold", "resume_at", "min_dwell_steps")]
    found += [value for rung in document.get("ladder") or () for value in rung.values()]
    for value in found:
        if value is not None and (type(value) is not int or abs(value) > MAX_NUMBER):
            raise ValueError(f"{value!r} is no whole number of requests or steps")


def _policy(environ: Mapping[str, str]) -> Policy:
    text = environ.get(THRESHOLD)
    if not text:
        return policy_from_file(Path(environ[POLICY_FILE]))
    try:
        threshold = threshold_from_text(text)
        return Policy.from_threshold(threshold, _number(environ, RESUME_AT), _number(environ, MIN_DWELL))
    except ValueError as error:
        raise Refusal(f"speculative-disable-batch-threshold {text}: {error}") from error


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name)
    if not text:
        return None
    try:
        return int(text)
    except ValueError as error:
        raise Refusal(f"{name} is {text!r}; give a whole number") from error
