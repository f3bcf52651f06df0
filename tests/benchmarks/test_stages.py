"""Traces summed by stage: a made one by hand, graph replays, operators on a CPU, and what is no trace."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import profile_step
from benchmarks.profile_step import table, whole_trace
from benchmarks.stages import Event, profile, read_trace
from harness.errors import UserError


def event(cat: str, name: str, ts: float, dur: float, tid: int = 1, **args: Any) -> Event:
    """A complete event of a trace, in microseconds."""
    return {"ph": "X", "cat": cat, "name": name, "pid": 7, "tid": tid, "ts": ts, "dur": dur, "args": args}


def python(name: str, ts: float, dur: float, tid: int = 1) -> Event:
    return event("python_function", name, ts, dur, tid)


STEP = [
    python("sglang/srt/managers/scheduler.py(900): run_batch", 0, 100),
    python("sglang/srt/speculative/eagle_worker_v2.py(1122): forward_batch_generation", 1, 98),
    python("sglang/srt/speculative/eagle_worker_v2.py(500): draft", 2, 20),
    python("sglang/srt/model_executor/model_runner.py(10): forward", 5, 10),
    event("cuda_runtime", "cudaLaunchKernel", 6, 1, correlation=1),
    python("sglang/srt/speculative/eagle_worker_v2.py(1498): verify", 30, 30),
    python("sglang/srt/model_executor/model_runner.py(10): forward", 32, 10),
    event("cuda_runtime", "cudaGraphLaunch", 35, 1, correlation=2),
    python("sglang/srt/speculative/eagle_info.py(9): eagle_sample", 45, 10),
    event("cuda_runtime", "cudaLaunchKernel", 46, 1, correlation=3),
    python("sglang/srt/speculative/eagle_worker_v2.py(869): _draft_extend_for_decode", 65, 20),
    python("sglang/srt/model_executor/model_runner.py(10): forward", 66, 10),
    event("cuda_driver", "cuLaunchKernel", 67, 1, correlation=4),
    event("cuda_runtime", "cudaMemcpyAsync", 200, 1, correlation=5),
    event("cuda_runtime", "cudaLaunchKernel", 6, 1, tid=2, correlation=6),
]
KERNELS = [
    event("kernel", "gemm", 10, 5, tid=90, correlation=1),
    event("kernel", "gemm", 40, 20, tid=90, correlation=2),
    event("kernel", "attention", 60, 30, tid=90, correlation=2),
    event("kernel", "argmax", 95, 1, tid=90, correlation=3),
    event("kernel", "gemm", 85, 10, tid=91, correlation=4),
    event("gpu_memcpy", "copy", 210, 2, tid=90, correlation=5),
    event("kernel", "other", 90, 2, tid=90, correlation=6),
]


def test_kernels_belong_to_the_functions_that_launched_them() -> None:
    """A draft's forward is the draft's, a graph's kernels are the target's; what has no function is the scheduler's."""
    found = profile([*STEP, *KERNELS])
    assert {stage: round(seconds * 1e6, 3) for stage, seconds in found.stages.items()} == {
        "draft_extend": 10.0,
        "draft": 5.0,
        "target": 50.0,
        "verify": 1.0,
        "scheduler": 4.0,
    }
    assert found.counts == {"draft_extend": 1, "draft": 1, "target": 2, "verify": 1, "scheduler": 2}
    assert list(found.kernels)[:2] == ["gemm", "attention"]
    assert found.span_s == pytest.approx(202e-6)
    assert found.busy_s == pytest.approx((5 + 56 + 2) * 1e-6)
    assert found.idle_s == pytest.approx(139e-6)


def test_our_off_step_is_seen() -> None:
    """The catch-up of the draft is apart from what else the patched worker launches, whatever it calls."""
    frames = [
        python("/x/patched_worker/install.py(37): run_scheduler_process", 0, 1000),
        python("/x/patched_worker/off_step.py(97): run", 0, 100),
        python("/x/patched_worker/off_step.py(191): _catch_up", 10, 30),
        python("sglang/srt/speculative/eagle_worker_v2.py(869): _draft_extend_for_decode", 15, 10),
        *(event("cuda_runtime", "cudaLaunchKernel", ts, 1, correlation=ts) for ts in (5, 16, 50)),
        python("sglang/srt/model_executor/model_runner.py(10): forward", 60, 20),
        event("cuda_runtime", "cudaGraphLaunch", 65, 1, correlation=65),
        event("cuda_runtime", "cudaLaunchKernel", 150, 1, correlation=150),
    ]
    kernels = [event("kernel", "k", 200 + ts, 1, tid=90, correlation=ts) for ts in (5, 16, 50, 65, 150)]
    assert profile([*frames, *kernels]).counts == {"catch_up": 1, "target": 1, "off_step": 2, "scheduler": 1}


def test_operators_stand_for_kernels_on_a_cpu() -> None:
    """Only the outermost ones count, on each thread."""
    operators = [
        event("cpu_op", "aten::linear", 6, 4),
        event("cpu_op", "aten::addmm", 7, 2),
        event("cpu_op", "aten::add", 34, 3),
        event("cpu_op", "aten::add", 7, 2, tid=2),
    ]
    found = profile([one for one in STEP if one["cat"] == "python_function"] + operators)
    assert (found.device, found.counts) == ("cpu", {"draft": 1, "target": 1, "scheduler": 1})
    assert found.stages["draft"] == pytest.approx(4e-6)


def test_what_holds_no_work_is_refused(tmp_path: Path) -> None:
    """An idle server's trace, a cut one, and another file."""
    with pytest.raises(UserError, match="idle"):
        profile([python("sglang/srt/managers/scheduler.py(1): loop", 0, 10)])
    whole = gzip.compress(json.dumps({"traceEvents": [*STEP, {"ph": "M", "name": "process_name"}]}).encode())
    (tmp_path / "whole.json.gz").write_bytes(whole)
    (tmp_path / "cut.json.gz").write_bytes(whole[:-20])
    (tmp_path / "other.json").write_text("[]")
    assert read_trace(tmp_path / "whole.json.gz") == STEP
    for name in ("cut.json.gz", "other.json", "missing.json"):
        with pytest.raises(UserError, match="no profiler's trace"):
            read_trace(tmp_path / name)


def test_states_stand_beside_one_another() -> None:
    """Milliseconds per step; a stage that a state lacks is zero there."""
    lines = table({"baseline": profile([*STEP, *KERNELS]), "eagle3": profile([*STEP, *KERNELS[:1]])}, 1).splitlines()
    assert lines[0] == "| ms per step | baseline | eagle3 |"
    assert "| target | 0.050 | 0.000 |" in lines
    assert "| all kernels | 0.070 | 0.005 |" in lines


def test_a_trace_is_read_when_all_of_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that has stopped growing may still lack its end; other ranks' traces are left alone."""
    whole = gzip.compress(json.dumps({"traceEvents": STEP}).encode())
    file = tmp_path / "1-TP-0.trace.json.gz"
    (tmp_path / "1-TP-1.trace.json.gz").write_bytes(whole[:9])
    written = iter((whole[:30], whole[:60], whole[:60], whole, whole))
    monkeypatch.setattr(profile_step.time, "sleep", lambda seconds: file.write_bytes(next(written)))
    assert whole_trace(tmp_path, "http://server") == STEP
    monkeypatch.setattr(profile_step, "PATIENCE_S", 0.0)
    with pytest.raises(UserError, match="wrote no whole trace"):
        whole_trace(tmp_path / "other", "http://server")
