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

from patched_worker.autopilot import START_THRESHOLD, Mode, Order
from patched_worker.autopilot_decide import Bounds
from patched_worker.policy import DEFAULT_MIN_DWELL_STEPS, MAX_NUMBER, NEVER_DISABLE, Policy, Rung

THRESHOLD = "SPECPIVOT_DISABLE_BATCH_THRESHOLD"
RESUME_AT = "SPECPIVOT_RESUME_BATCH_THRESHOLD"
MIN_DWELL = "SPECPIVOT_MIN_DWELL_STEPS"
POLICY_FILE = "SPECPIVOT_POLICY_FILE"
ALLOW_MODIFIED_SOURCE = "SPECPIVOT_ALLOW_MODIFIED_SOURCE"
DRAFT_SYNC_STEPS = "SPECPIVOT_DRAFT_SYNC_STEPS"
AUTO_MIN = "SPECPIVOT_AUTO_MIN"
AUTO_MAX = "SPECPIVOT_AUTO_MAX"
AUTO_DRY_RUN = "SPECPIVOT_AUTO_DRY_RUN"
TRACE_FILE = "SPECPIVOT_TRACE_FILE"
AUTO = "auto"
MAX_DRAFT_SYNC_STEPS = 64  # 0.4 GB of hidden states for 256 requests of an 8B model
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
        order: what the autopilot is to do; None: the threshold stays as it is set.
        trace_file: where decode steps are recorded; None: nowhere.
    """

    policy: Policy
    allow_modified_source: bool = False
    draft_sync_steps: int | None = None
    order: Order | None = None
    trace_file: Path | None = None


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
        draft_sync_steps=_sync_steps(environ),
        order=_order(environ),
        trace_file=Path(file) if (file := environ.get(TRACE_FILE)) else None,
    )


def _sync_steps(environ: Mapping[str, str]) -> int | None:
    steps = _number(environ, DRAFT_SYNC_STEPS)
    if steps is not None and not 1 <= steps <= MAX_DRAFT_SYNC_STEPS:
        raise Refusal(
            f"{DRAFT_SYNC_STEPS} is {steps}; give 1 to {MAX_DRAFT_SYNC_STEPS} plain steps, "
            "or leave it out for the number of draft tokens"
        )
    return steps


def _order(environ: Mapping[str, str]) -> Order | None:
    named = [name for name in (AUTO_MIN, AUTO_MAX, AUTO_DRY_RUN) if environ.get(name)]
    if environ.get(THRESHOLD) != AUTO:
        if named:
            raise Refusal(f"{', '.join(named)} without {THRESHOLD}={AUTO}; give that too, or none of them")
        return None
    mode = Mode.DRY_RUN if environ.get(AUTO_DRY_RUN) == "1" else Mode.AUTO
    try:
        return Order(mode, Bounds(_number(environ, AUTO_MIN) or 0, _number(environ, AUTO_MAX)))
    except ValueError as error:
        raise Refusal(str(error)) from error


def threshold_from_text(text: str) -> int | None:
    """`never` or -1: speculation is never disabled (None); `auto`: where the autopilot begins; else a number.

    Raises:
        ValueError: anything else.
    """
    if text in ("never", str(NEVER_DISABLE)):
        return None
    return START_THRESHOLD if text == AUTO else int(text)


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
    if not text or (text == AUTO and environ.get(POLICY_FILE)):
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
