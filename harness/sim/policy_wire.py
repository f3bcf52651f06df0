"""The patched worker's keys of POST /set_internal_state, and its block in /server_info, for the simulated server."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from harness.sim import engine as engine_module
from harness.sim.engine import Engine
from harness.sim.preset import Preset
from patched_worker.policy import NEVER_DISABLE, Policy

THRESHOLD = "speculative_disable_batch_threshold"
RESUME = "speculative_resume_batch_threshold"
DWELL = "speculative_min_dwell_steps"
_KEYS = frozenset({THRESHOLD, RESUME, DWELL})
_WORKERS = {"v1": "EAGLEWorker", "v2": "EAGLEWorkerV2"}
_SOURCE_HASH = hashlib.sha256(Path(engine_module.__file__).read_bytes()).hexdigest()


def updated_policy(policy: Policy, update: dict[str, Any]) -> Policy:
    """The policy after an update on the wire; a new threshold without a resume value takes its default.

    Raises:
        ValueError: an unknown key or an unfit value.
    """
    if unknown := sorted(set(update) - _KEYS):
        raise ValueError(f"unknown keys {unknown}; give {', '.join(sorted(_KEYS))}")
    threshold, resume_at, dwell = policy.threshold, policy.resume_at or None, policy.min_dwell
    if THRESHOLD in update:
        threshold, resume_at = _number(THRESHOLD, update[THRESHOLD]), None
    if RESUME in update:
        resume_at = _number(RESUME, update[RESUME])
    if DWELL in update:
        dwell = _number(DWELL, update[DWELL]) or 0
    return Policy.from_threshold(threshold, resume_at, dwell)


def specpivot_block(engine: Engine, preset: Preset, last_error: str | None) -> dict[str, Any] | None:
    """What the patched worker would report of itself; None for a server that is not patched."""
    if engine.gate is None:
        return None
    policy, counters = engine.gate.policy, engine.counters
    return {
        "worker": _WORKERS[preset.patched.worker],
        "module": engine_module.__name__,
        "version": preset.sglang_version,
        "source_hash": _SOURCE_HASH,
        "threshold": NEVER_DISABLE if policy.threshold is None else policy.threshold,
        "resume_at": NEVER_DISABLE if policy.resume_at is None else policy.resume_at,
        "min_dwell": policy.min_dwell,
        "policy_id": policy.policy_id,
        "last_error": last_error,
        "steps_on": counters.steps("on"),
        "steps_off": counters.steps("off"),
        "switches": counters.switches,
        "ungated": 0,
        "by_batch": [
            {"batch": batch, "state": state, "steps": at.steps, "tokens": at.tokens, "seconds": at.seconds}
            for (batch, state), at in sorted(counters.by_batch.items())
        ],
        "ranks_agree": True,
    }


def _number(key: str, value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
        raise ValueError(f"{key} is {value!r}; give a whole number, {NEVER_DISABLE} for never")
    return None if value == NEVER_DISABLE else int(value)
