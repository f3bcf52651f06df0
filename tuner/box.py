"""A plan for a box of several GPUs: replicas of one simulated server behind a router, one GPU each.

Assumptions, all of them: a replica is the preset's machine and does not feel its neighbours; requests are random tokens
of the lengths given; the router holds each request at one replica; nothing is measured. Tensor parallelism is not
planned for: a preset's step times are of the GPU count they were made from.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

import msgspec
import numpy as np
import scipy

from harness.records import Variant
from harness.sim.preset import Preset
from patched_worker.policy import Policy
from tuner import virtual
from tuner.curves import Pivot, pivot
from tuner.levels import Level, levels
from tuner.virtual import Load

Routing = Literal["even", "random"]


class Box(msgspec.Struct, frozen=True):
    """What one replica does, by its concurrency, and the threshold that follows.

    Attributes:
        curves: of one replica.
        fit: its pivot; the threshold of `dynamic`.
    """

    replicas: int
    accept_len: float
    curves: dict[Variant, list[Level]]
    fit: Pivot

    def throughput(self, variant: Variant, total: int, routing: Routing = "even") -> float:
        """Output tokens per second of the box with `total` requests in flight.

        Args:
            routing: "even" spreads them as evenly as whole requests allow; "random" sends each to any replica alike, so
                that a replica's share is binomial.
        """
        if routing == "even":
            low, more = divmod(total, self.replicas)
            return more * self._replica(variant, low + 1) + (self.replicas - more) * self._replica(variant, low)
        counts = np.arange(total + 1)
        chances = scipy.stats.binom.pmf(counts, total, 1 / self.replicas)
        kept = chances > 1e-9
        rates = np.array([self._replica(variant, int(count)) for count in counts[kept]])
        return float(self.replicas * (chances[kept] @ rates) / chances[kept].sum())

    def _replica(self, variant: Variant, concurrency: int) -> float:
        """One replica's tokens per second, in log-log between its simulated levels and flat beyond the last."""
        if concurrency == 0:
            return 0.0
        curve = self.curves[variant]
        x = [math.log(level.concurrency) for level in curve]
        return math.exp(float(np.interp(math.log(concurrency), x, [math.log(level.tok_per_s) for level in curve])))


def plan(preset: Preset, replicas: int, concurrency: Iterable[int], load: Load, repeats: int = 2) -> Box:
    """Simulate one replica with speculation always on, always off, and switching at the pivot that follows.

    Args:
        concurrency: of one replica.

    Raises:
        ValueError: no level, so that there is no pivot.
    """
    levels_asked = list(concurrency)
    rows = virtual.sweep(preset, levels_asked, repeats, load)
    fit = pivot(rows, "baseline")
    if fit is None:
        raise ValueError("give at least one level")
    policy = Policy.from_threshold(fit.threshold)
    rows += [
        virtual.point(preset, load, "dynamic", policy, level, repeat)
        for repeat in range(1, repeats + 1)
        for level in levels_asked
    ]
    return Box(replicas, preset.acceptance.mean_len, levels(rows), fit)
