"""Where to measure next so that the pivot becomes sharp soonest.

One pass over all levels finds out roughly where the pivot is. After that each round measures eagle3 and off once more
at the levels around it, and at a level between them while those are far apart, because interpolating over a wide gap
costs more than noise does. Every such pair informs every threshold, since thresholds are replayed on the curves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

from harness.checks import REMEDIES
from harness.records import LevelRow, Variant
from tuner.curves import Pivot
from tuner.levels import decode_batches, usable

NARROW = 1.08  # an interval this narrow (high / low) is sharp enough: a few per cent of batch cost nothing
WIDEST_GAP = 1.30  # two neighbouring levels further apart than this get another one between them
REACH = 1.15  # how far beyond the interval a level still informs it
PAIRS_PER_ROUND = 4


def missing(
    concurrency: Sequence[int], reference: Variant | None, rows: Iterable[LevelRow]
) -> list[tuple[Variant, int, int]]:
    """Points of the first pass that are still to be measured, variants alternating."""
    variants: list[Variant] = ["eagle3", "forced_off"]
    if reference is not None:
        variants.insert(0, reference)
    done = {(row.variant, row.concurrency) for row in usable(rows)}
    points: list[tuple[Variant, int, int]] = []
    for turn, level in enumerate(concurrency):
        order = [*variants[turn % len(variants) :], *variants[: turn % len(variants)]]
        points += [(variant, level, 1) for variant in order if (variant, level) not in done]
    return points


def blind_above(concurrency: Sequence[int], rows: Iterable[LevelRow]) -> bool:
    """Whether some level has a usable pair, but not the largest one."""
    good = usable(rows)
    on, off = ({row.concurrency for row in good if row.variant == v} for v in ("eagle3", "forced_off"))
    return bool(on & off) and max(concurrency) not in on & off


def spoilt(points: Sequence[tuple[Variant, int, int]], rows: Iterable[LevelRow]) -> str:
    """Which points of the first pass are measured again, and what may help."""
    verdicts = {row.verdict for row in rows if (row.variant, row.concurrency, row.repeat) in points}
    told = "; ".join(f"{v}: {REMEDIES[v]}" if v in REMEDIES else v for v in sorted(verdicts))
    which = "1 point was not usable and is" if len(points) == 1 else f"{len(points)} points were not usable and are"
    return f"{which} measured once more ({told})"


def sharp(fit: Pivot) -> bool:
    """Whether the interval of the pivot is narrow enough to stop replicating."""
    low, high = fit.interval
    if low is None or high is None or low == 0 or high == 0:
        return low == high
    return high <= max(low * NARROW, low + 1)


def next_round(fit: Pivot, rows: Iterable[LevelRow]) -> tuple[int, ...]:
    """Concurrencies at which to measure eagle3 and off once more, smallest first.

    Args:
        fit: the pivot so far.
        rows: what has been measured.
    """
    levels = [ratio.concurrency for ratio in fit.ratios]
    low, high = _around(fit)
    inside = [ratio.concurrency for ratio in fit.ratios if low / REACH <= ratio.batch <= high * REACH]
    below = [ratio.concurrency for ratio in fit.ratios if ratio.batch < low][-1:]
    above = [ratio.concurrency for ratio in fit.ratios if ratio.batch > high][:1]
    wanted = sorted({*inside, *below, *above, *_between(levels, low, high, rows, fit)})
    replicas = {ratio.concurrency: ratio.repeats for ratio in fit.ratios}
    fewest = sorted(wanted, key=lambda c: (replicas.get(c, 0), -_closeness(fit, c)))
    return tuple(sorted(fewest[:PAIRS_PER_ROUND]))


def _around(fit: Pivot) -> tuple[float, float]:
    """The interval of the pivot as batches inside the measured range."""
    small, large = fit.ratios[0].batch, fit.ratios[-1].batch
    low, high = fit.interval
    return (large if low is None else max(small, low)), (large if high is None else max(small, high))


def _between(levels: Sequence[int], low: float, high: float, rows: Iterable[LevelRow], fit: Pivot) -> list[int]:
    """A level in the middle of each wide gap that the interval touches."""
    batches, _ = decode_batches(usable(rows), ("eagle3", fit.off))
    found = []
    for left, right in pairwise(levels):
        touches = batches[left] <= high and low <= batches[right]
        middle = round(math.sqrt(left * right))
        if touches and right / left > WIDEST_GAP and left < middle < right:
            found.append(middle)
    return found


def _closeness(fit: Pivot, concurrency: int) -> float:
    low, high = _around(fit)
    return -abs(math.log(concurrency) - math.log(math.sqrt(low * high)))
