"""What a whole tuning shares, however many servers it starts: its time, its keys, whom it tells, what it sends.

Each point and stage is in search_history.jsonl as it happens, with the time spent so far.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import msgspec

from harness.config import SweepConfig
from harness.console import duration
from harness.errors import UserError
from harness.manifest import workload_of
from harness.pace import Pace
from harness.records import LevelRow
from harness.runfolder import RunWriter
from harness.sweep import Keys, Reporter
from harness.workload import WorkloadPlan
from tuner.asked import TuneOptions
from tuner.budget import Budget
from tuner.history import note_history
from tuner.search import TRIAL_REPEATS

Measured = Callable[[], LevelRow]


class Stopped(Exception):
    """The person, or the end of the budget, ended the tuning; what was measured is kept."""


@dataclass(frozen=True, slots=True)
class Session:
    """What a whole tuning shares, however many servers it starts.

    Attributes:
        pace: what points take.
        command: the command line, for manifests.
        stop: set to end the point in progress, and the tuning.
    """

    options: TuneOptions
    budget: Budget
    pace: Pace
    reporter: Reporter
    keys: Keys
    command: Sequence[str]
    stop: threading.Event

    def point(
        self, writer: RunWriter, point: str, watching: AbstractContextManager[None], measure: Measured
    ) -> LevelRow:
        """Take one point within the budget.

        Args:
            writer: the run folder that has the logs of its server.
            point: its name, for people.
            watching: learns how long it takes.
            measure: takes it.

        Raises:
            Stopped: before it, or while it ran.
            UserError: its server died or holds another policy.
        """
        if self.stop.is_set():
            raise Stopped
        with watching:
            row = measure()
        note_history(writer.path, "point", point=point, verdict=row.verdict, spent_s=self.budget.spent_s)
        if self.stop.is_set():
            raise Stopped
        if row.verdict in ("server_died", "policy_refused"):
            raise UserError(f"{point}: {row.verdict}; see {writer.path / 'logs'}, then --resume goes on")
        return row

    def note(self, writer: RunWriter, line: str) -> None:
        """Tell a stage, and how much time is left."""
        note_history(writer.path, "note", line=line, spent_s=self.budget.spent_s)
        self.reporter.say(f"{line}  ({duration(self.budget.left_s)} of the budget left)")


class SharedRequests(WorkloadPlan, frozen=True):
    """Request lists that are the same for every trial: differences between thresholds are not those of requests."""

    def requests(self, concurrency: int, repeat: int) -> Iterator[Any]:
        return super().requests(concurrency, repeat % TRIAL_REPEATS)


def shared_requests(config: SweepConfig) -> SharedRequests:
    """The requests of a tuning."""
    return SharedRequests(**msgspec.structs.asdict(workload_of(config)))
