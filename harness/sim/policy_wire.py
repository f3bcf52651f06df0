"""The patched worker's block in /server_info, for the simulated server."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.sim import engine as engine_module
from harness.sim.engine import Engine
from harness.sim.preset import Preset
from patched_worker.autopilot import Autopilot

_WORKERS = {
    "v1": "sglang.srt.speculative.eagle_worker.EAGLEWorker",
    "v2": "sglang.srt.speculative.eagle_worker_v2.EAGLEWorkerV2",
}
_SOURCE_HASH = hashlib.sha256(Path(engine_module.__file__).read_bytes()).hexdigest()


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
        "modified_source": False,
        "threshold": policy.threshold,
        "resume_at": policy.resume_at,
        "min_dwell": policy.min_dwell,
        "rungs": [asdict(rung) for rung in policy.rungs],
        "policy_id": policy.policy_id,
        "last_error": last_error,
        "steps_on": counters.steps("on"),
        "steps_off": counters.steps("off"),
        "switches": counters.switches,
        "ungated": 0,
        **({"autopilot": engine.gate.snapshot()} if isinstance(engine.gate, Autopilot) else {}),
        "by_batch": [
            {"batch": batch, "state": state, "steps": at.steps, "tokens": at.tokens, "seconds": at.seconds}
            for (batch, state), at in sorted(counters.by_batch.items())
        ],
        "ranks": 1,
        "ranks_agree": True,
    }
