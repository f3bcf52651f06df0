"""What the live points of a threshold say against what the measured curves promise of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from harness.records import LevelRow
from tuner import objective
from tuner.curves import Pivot
from tuner.levels import usable
from tuner.objective import Curves


def trial_levels(curves: Curves, fit: Pivot, threshold: int | None) -> tuple[int, ...]:
    """Levels at which a threshold is measured live: the smallest, and those that it and the crossing may tell apart.

    Everywhere else a threshold does what the replicated curves already show.
    """
    ends = [value for value in (threshold, fit.threshold, *fit.interval) if value]
    low, high = min(ends, default=1), max(ends, default=1)
    counted = [c for c in curves.batches if curves.weights[c] > 0]
    inside = [c for c in counted if low * 0.75 <= curves.batches[c] <= high * 1.35]
    return tuple(dict.fromkeys([min(counted), *inside]))


def judge(curves: Curves, fit: Pivot, promised: int | None, measured: Sequence[LevelRow]) -> tuple[float, float] | None:
    """Gain of live points over what the curves promise of a threshold, with its standard error.

    Args:
        promised: the threshold to replay.
        measured: live points of one policy.

    Returns:
        In log score; None where a point is not usable.
    """
    good = {row.concurrency: row.output_tok_per_s for row in usable(measured)}
    if len(good) < len(measured):
        return None
    noise, gain, variance = _point_sd(fit), 0.0, 0.0
    ratios = {ratio.concurrency: ratio for ratio in fit.ratios}
    for level, rate in good.items():
        weight = curves.weights.get(level, 0.0)
        gain += weight * math.log((rate or math.nan) / objective.throughput(curves, promised, level))
        variance += weight**2 * (noise**2 + ratios[level].se ** 2 / 2)
    return gain, math.sqrt(variance)


def latency_excess(curves: Curves, threshold: int, slack: float) -> float:
    """By how much a lone user's time per token surely exceeds what is allowed; <= 0 is feasible.

    The replicated level decides: a single live point would falsely reject about one good trial in six.
    """
    replayed = objective.latency_c1(curves, threshold, slack)
    if replayed.ok or replayed.eagle3_s is None or replayed.at_threshold_s is None:
        return 0.0
    return replayed.at_threshold_s / replayed.eagle3_s - 1 - slack


def _point_sd(fit: Pivot) -> float:
    """Noise of one point, from the standard errors of the ratios: two points make a pair."""
    squares = [ratio.se**2 * ratio.repeats / 2 for ratio in fit.ratios]
    return math.sqrt(sum(squares) / len(squares))
