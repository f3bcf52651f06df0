"""What whole tunings are tested on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from benchmarks.worlds import Machine
from harness import pace
from harness.config import SweepConfig
from harness.records import ServerRecord, VariantRecord
from harness.runfolder import RunWriter
from tests.tuner.lab import FakeBench
from tests.tuner.test_search import world
from tuner import budget, contexts, restarts, session


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A world in the place of servers, and a clock that points advance; `stop_at` interrupts after so many points."""
    state: dict[str, Any] = {"machine": Machine(world(noise=0.02), seed=3), "stop_at": None, "starts": 0, "clock": 0.0}
    state |= {"started": [], "machines": {}, "point_s": lambda level: 1.0, "start_s": 0.0}

    @contextmanager
    def opened(
        config: SweepConfig,
        plans: object,
        writer: RunWriter,
        workload: Any,
        reporter: object,
        keys: object,
        stop: threading.Event,
    ) -> Iterator[FakeBench]:
        state["starts"] += 1
        state["clock"] += state["start_s"]
        state["workload"] = workload
        played = {v: VariantRecord("7@1") for v in ("baseline", "eagle3", "forced_off")}
        servers = {"7@1": ServerRecord("7@1", "http://127.0.0.1:1", server_args={"speculative_num_steps": 3})}
        writer.set_manifest(msgspec.structs.replace(writer.manifest, variants=played, servers=servers))
        state["started"].append((config.draft_steps, config.variants))
        machine = state["machines"].get(config.draft_steps, state["machine"])
        bench = FakeBench(writer, machine, lambda n, level: on_point(n, level, stop))
        bench.stop = stop
        yield bench

    def on_point(points: int, level: int, stop: threading.Event) -> None:
        state["clock"] += state["point_s"](level)
        if points == state["stop_at"]:
            stop.set()

    def at_a_length(
        config: SweepConfig, writer: RunWriter, servers: object, requests: object, attempts: object, stop: Any
    ) -> FakeBench:
        return FakeBench(writer, state["machines"][config.input_tokens], lambda n, level: on_point(n, level, stop))

    for module in (session, restarts, contexts):
        monkeypatch.setattr(module, "opened", opened)
    monkeypatch.setattr(contexts, "Bench", at_a_length)
    for module in (budget, pace):
        monkeypatch.setattr(module, "now_s", lambda: state["clock"])
    monkeypatch.setattr(SweepConfig, "point_s_at", lambda config, level: 1.0)
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    return state
