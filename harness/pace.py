"""How long points take: a guess before any is measured, then what the measured ones took.

The load stays on until the requests of the window have ended, and what was sent meanwhile ends after them, so a point
is longer than its warm-up and window by about two answers; those grow with the concurrency. Every plan and every
"time left" comes from here.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from time import monotonic as now_s

from harness.config import SweepConfig
from harness.records import LevelRow


class Pace:
    """What the points of one configuration take.

    Args:
        config: the settings of the points.
        rows: measured by an earlier command, whose answers' lengths tell how long each one took.
    """

    def __init__(self, config: SweepConfig, rows: Iterable[LevelRow] = ()) -> None:
        self._config = config
        self._took_s: defaultdict[int, list[float]] = defaultdict(list)  # by concurrency
        for row in rows:
            if row.usable and row.e2e_p50_s is not None:
                self._took_s[row.concurrency].append(config.point_s_with(row.e2e_p50_s))

    def point_s(self, concurrency: int) -> float:
        """What a point will take, in seconds of ours: the mean of those measured, or as the nearest level has it."""
        if concurrency in self._took_s:
            return self._mean_s(concurrency)
        guess_s = self._config.point_s_at(concurrency)
        if not self._took_s:
            return guess_s
        nearest = min(self._took_s, key=lambda level: abs(math.log(level / concurrency)))
        slower = self._rest_s(self._mean_s(nearest)) / self._rest_s(self._config.point_s_at(nearest))
        return guess_s + (slower - 1) * self._rest_s(guess_s)

    def points_s(self, levels: Iterable[int]) -> float:
        """The same of many points."""
        return sum(self.point_s(level) for level in levels)

    @property
    def mean_s(self) -> float:
        """What a point takes on average over the levels of the settings."""
        return self.points_s(self._config.concurrency) / len(self._config.concurrency)

    @contextmanager
    def watching(self, concurrency: int) -> Iterator[None]:
        """One point is measured inside; one that raises, or ends before its window would, teaches nothing."""
        began_s = now_s()
        yield
        if (took_s := now_s() - began_s) >= self._config.load_s:
            self._took_s[concurrency].append(took_s)

    def _mean_s(self, concurrency: int) -> float:
        return sum(self._took_s[concurrency]) / len(self._took_s[concurrency])

    def _rest_s(self, point_s: float) -> float:
        """The part of a point beyond its warm-up and window, which a setting does not fix."""
        return max(0.0, point_s - self._config.load_s)
