"""A machine of known truth in the place of servers, for tests of whole tunings."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.worlds import Machine
from harness.config import SweepConfig, make_config
from harness.records import LevelRow, PointKey
from harness.runfolder import RunWriter
from harness.sweep import Keys
from patched_worker.policy import Policy
from tuner.asked import TuneOptions, TuneOutcome
from tuner.tune import run_tune
from tuner.tune_cli import _resumed

GUESS = SweepConfig.point_s_at


CONFIG = make_config({"sim": "any", "concurrency": [1, 2, 4, 8, 16, 32, 64, 128, 256], "duration": 0.5, "warmup": 0.0})


class Quiet:
    """A reporter that remembers what was said."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)

    def plan(self, points: int, seconds: float, at_most: bool = False) -> None:
        self.lines.append(f"{points} points")

    def point(self, key: PointKey, left_s: float) -> None:
        raise AssertionError("this bench reports no progress")

    def row(self, row: LevelRow) -> None:
        self.lines.append(str(row.key))


class FakeBench:
    """Stands in for servers: measures a world, writes rows like the real bench."""

    def __init__(self, writer: RunWriter, machine: Machine, on_point: Callable[[int, int], None]) -> None:
        self.config = CONFIG
        self.writer = writer
        self.servers: dict[str, Any] = {"baseline": None, "eagle3": None, "forced_off": None}
        self.machine = machine
        self.on_point = on_point
        self.stop = threading.Event()

    def measure(self, key: PointKey, policy: Policy | None, on_progress: object) -> LevelRow:
        row = self.machine.measure(key.variant, policy, key.concurrency, key.repeat)
        self.writer.put_row(row)
        self.on_point(self.machine.points, key.concurrency)
        return row


def run(path: Path, options: TuneOptions, resume: bool = False) -> tuple[TuneOutcome, list[str]]:
    reporter = Quiet()
    return run_tune(CONFIG, options, path, ["specpivot", "tune"], reporter, Keys(), resume), reporter.lines


def resumed(path: Path) -> tuple[TuneOutcome, list[str]]:
    """As the command resumes: settings and options are those of the manifest."""
    config, options, _ = _resumed(path)
    reporter = Quiet()
    return run_tune(config, options, path, ["specpivot", "tune"], reporter, Keys(), resume=True), reporter.lines
