"""What a simulated server says of its worker is what the real one says: tests on the simulation rest on it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from harness.proof import worker_of, wrong_worker
from harness.sim.policy_wire import specpivot_block
from harness.sim.predict import make_engine
from harness.sim.preset import load_preset
from harness.sim.progress import Request
from patched_worker.policy import Policy
from tests.harness.commands import SIM
from tests.sglang_cpu.slot import Patched
from tests.sglang_cpu.traffic import greedy, prompt

REAL_ONLY = {
    *("off_graph_steps", "draft_sync_steps", "draft_sync_most", "draft_syncs"),  # of graphs and of a draft's KV
    "autopilot",  # the same record on both sides, but there only once one was set: another test of this server may have
}


def simulated(worker: Any, version: str, threshold: int | None) -> dict[str, Any]:
    """The block of a simulated server that has answered one request."""
    preset = load_preset(SIM)
    preset = replace(preset, sglang_version=version, patched=replace(preset.patched, worker=worker))
    engine = make_engine(preset, "dynamic", Policy.from_threshold(threshold))
    engine.submit(Request("0", 8, 20, sent_s=0.0))
    while engine.step() is not None:
        pass
    block = specpivot_block(engine, preset, None)
    assert block is not None
    return block


def shape(block: Any) -> Any:
    """Names and kinds of values, all the way down."""
    if isinstance(block, dict):
        return {name: shape(value) for name, value in block.items()}
    return [shape(each) for each in block[:1]] if isinstance(block, list) else type(block).__name__


@pytest.mark.parametrize("threshold", [None, 0, 8])
def test_the_simulated_worker_reports_as_the_real_one_does(patched: Patched, threshold: int | None) -> None:
    """The same names, kinds of values and class, and the same policy where neither speaks of thresholds."""
    patched.set_policy(-1 if threshold is None else threshold, min_dwell=Policy.from_threshold(threshold).min_dwell)
    patched.server.generate(text=prompt(0), sampling_params=greedy(20))
    real = patched.state()
    block = simulated(patched.arrangement.worker, patched.arrangement.release, threshold)
    assert shape({name: value for name, value in real.items() if name not in REAL_ONLY}) == shape(block)
    for name in ("worker", "version", "threshold", "resume_at", "min_dwell", "rungs", "policy_id", "last_error"):
        assert block[name] == real[name], name
    told = [worker_of({"internal_states": [{"specpivot": each}]}) for each in (real, block)]
    assert told[0] == told[1]
    assert told[0][1] == "reported"
    assert wrong_worker(patched.arrangement.worker, told[0][0]) is None
