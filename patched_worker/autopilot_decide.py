"""From the curve to a threshold, in bounds, with a reason: moved only when evidence exceeds the noise.

The threshold is wrong where speculation clearly loses at a batch that speculates, or clearly gains at one that does
not: by more than MARGIN even if the error is SIGMAS standard errors. Then, and only then, it moves to the present best
cut. One that was placed with a larger standard error than PLACED_SE is placed again when twice as much is known: the
better estimate is the better place, also where the two differ by MARGIN but not beyond the noise. Batches where nothing
was measured have no say. Speculation is never given up at batch 1 on less than LONE_TRIPLES measurements there and
LONE_SIGMAS standard errors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from patched_worker.autopilot_curve import REACH, Curve, Point, curve_of
from patched_worker.autopilot_evidence import Evidence
from patched_worker.switchback import BINS, Plan

MARGIN = 0.006  # log of throughput
SIGMAS = 3.0
PLACED_SE = 0.01  # of the gain at the threshold: good enough to leave it where it is
LONE_SIGMAS, LONE_TRIPLES = 4.0, 8
NEAR_GAIN = 0.04  # both states are worth about the same below this
CERTAIN_SIGMAS, CERTAIN_SE = 4.0, 0.1  # then a place needs no triples of its own
ENOUGH, ENOUGH_NEAR = 0.02, 0.004  # standard error of a place's cost ratio, elsewhere and near the pivot
EDGE = 0.25  # octaves beyond the measured batches that may give evidence
RESUME_SHARE = 12


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the operator allows: thresholds from `low` to `high` (None: no end), in requests.

    Raises:
        ValueError: low is negative or above high.
    """

    low: int = 0
    high: int | None = None

    def __post_init__(self) -> None:
        if self.low < 0 or (self.high is not None and self.high < self.low):
            raise ValueError(f"autopilot bounds are {self.low} to {self.high}; give 0 <= min <= max")

    def clamp(self, threshold: int) -> int:
        bounded = max(self.low, threshold)
        return bounded if self.high is None else min(self.high, bounded)


ANY_THRESHOLD = Bounds()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one look at the evidence says.

    Attributes:
        plan: the next one.
        reason: why its threshold differs from the one before; None where it does not.
        curve: what it rests on; None while too little is known.
        pivot: log2 of the batch where the curve turns from gain to loss.
        placed_se: standard error of the gain there when the threshold was placed; None where somebody else placed it.
    """

    plan: Plan
    reason: str | None = None
    curve: Curve | None = None
    pivot: float = math.nan
    placed_se: float | None = None


def decide(evidence: Evidence, plan: Plan, bounds: Bounds, placed_se: float | None = None) -> Verdict:
    """The next plan.

    Args:
        evidence: all of it.
        plan: the present one.
        bounds: of the threshold.
        placed_se: standard error of the gain there when the threshold was placed; None where somebody else placed it.
    """
    curve = curve_of(evidence)
    threshold = bounds.clamp(plan.threshold)
    if curve is None:
        reason = None if threshold == plan.threshold else "the bounds changed"
        return Verdict(make_plan(threshold, evidence, None), reason, placed_se=placed_se)
    pivot = curve.best_cut()
    wanted, reason = threshold, None if threshold == plan.threshold else "the bounds changed"
    target = bounds.clamp(_guarded(_target(curve, pivot), curve, evidence))
    wrong = wrong_at(curve, threshold)
    if wrong is None and threshold and target and placed_se is not None and placed_se > PLACED_SE:
        here = curve.at(math.log2(threshold))
        if 2 * here.se**2 <= placed_se**2:
            wrong, placed_se = here if abs(here.gain) > MARGIN else None, here.se
    if wrong is not None and (target > threshold) == (wrong.gain > 0) and target != threshold:
        wanted, reason = target, _reason(threshold, target, wrong, curve, evidence)
        placed_se = curve.at(math.log2(max(1, wanted))).se
    return Verdict(make_plan(wanted, evidence, curve), reason, curve, pivot, placed_se)


def resume_at(threshold: int) -> int:
    """Closer than the default: the pivot is known, and a wide gap costs what it leaves off."""
    return threshold if threshold <= 1 else max(1, threshold - max(1, threshold // RESUME_SHARE))


def wrong_at(curve: Curve, threshold: int) -> Point | None:
    """The batch at which the threshold is most clearly wrong; None where it is nowhere beyond the noise."""
    edge = math.log2(threshold) if threshold else -math.inf
    found, worst = None, 0.0
    points = [p for p in curve.points if curve.low - EDGE <= p.octave <= curve.high + EDGE]
    if curve.low <= edge <= curve.high:
        points.append(curve.at(edge))
    for point in points:
        loss = -point.gain if point.octave <= edge else point.gain
        excess = loss - MARGIN - SIGMAS * point.se
        if excess > worst:
            found, worst = point, excess
    return found


def _target(curve: Curve, pivot: float) -> int:
    if pivot > -math.inf:
        return max(1, math.floor(2**pivot + 1e-9))
    lowest = curve.low - REACH
    return 0 if curve.low < REACH else max(1, math.floor(2**lowest))


def _guarded(target: int, curve: Curve, evidence: Evidence) -> int:
    if target > 0:
        return target
    lone, point = evidence.places[0], curve.at(0.0)
    clear = point.gain + LONE_SIGMAS * point.se < -MARGIN
    return 0 if lone.cost.count >= LONE_TRIPLES and clear else 1


def make_plan(threshold: int, evidence: Evidence, curve: Curve | None) -> Plan:
    """The plan with this threshold: where to measure follows from what is known."""
    thin, near_low, near_high = 0, 1, 0
    if curve is not None:
        near = [p.octave for p in curve.points if abs(p.gain) < max(NEAR_GAIN, 2 * p.se)]
        if near:
            near_low, near_high = math.ceil(2 ** near[0]), math.floor(2 ** near[-1])
    for index in range(BINS):
        is_near = near_low <= 2 ** (index / 2) <= near_high
        if evidence.lacking(index, ENOUGH_NEAR if is_near else ENOUGH) and not (curve and _certain(curve, index / 2)):
            thin |= 1 << index
    return Plan(threshold, resume_at(threshold), near_low, near_high, thin)


def _certain(curve: Curve, octave: float) -> bool:
    if not curve.low - EDGE <= octave <= curve.high + EDGE:
        return False
    point = curve.at(octave)
    return point.se < CERTAIN_SE and abs(point.gain) > CERTAIN_SIGMAS * point.se


def _reason(old: int, new: int, wrong: Point, curve: Curve, evidence: Evidence) -> str:
    change = math.expm1(wrong.gain) * 100
    error = math.exp(wrong.gain) * wrong.se * 100
    word = "brings" if change > 0 else "costs"
    low, high = curve.interval()
    return (
        f"{old} to {new}: at a batch of {2**wrong.octave:.0f} speculation {word} {abs(change):.1f} % "
        f"(standard error {error:.1f} %) of throughput at {evidence.accept.mean:.2f} tokens per step; "
        f"the pivot lies {_span(low, high)}; {evidence.triples} comparisons so far"
    )


def _span(low: float, high: float) -> str:
    if low == -math.inf and high == math.inf:
        return "somewhere"
    if low == -math.inf:
        return f"below {2**high:.0f}"
    if high == math.inf:
        return f"above {2**low:.0f}"
    return f"between {2**low:.0f} and {2**high:.0f}"
