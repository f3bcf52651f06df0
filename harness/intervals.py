"""95 % intervals of a point's quantiles and ratios: pure, without a random number, and fast at 10 ** 7 samples.

Samples that move together tell less than independent ones: the gaps of one request share its luck, and what falls into
one moment shares the server's. So samples are grouped by request, and by twentieths of the time they span, and the
grouping whose sums scatter more says how many independent samples they are worth: what resampling whole groups would
find, to first order. A quantile's interval is that of order statistics at that size; a ratio's is Student's over the
groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Numbers = NDArray[Any]
Groups = NDArray[np.int64]
Interval = tuple[float | None, float | None]

CONFIDENCE = 0.95
SPANS = 20
NO_INTERVAL: Interval = (None, None)
_MIN_GROUPS = 6  # fewer say too little about how they scatter


def spans(moments_s: Floats) -> Groups:
    """Which twentieth of the time that they span each moment falls into."""
    if not moments_s.size:
        return np.zeros(0, dtype=np.int64)
    first_s = float(moments_s.min())
    length_s = float(moments_s.max()) - first_s
    if length_s <= 0:
        return np.zeros(moments_s.size, dtype=np.int64)
    return np.minimum((moments_s - first_s) * (SPANS / length_s), SPANS - 1).astype(np.int64)


def in_order(ticks: NDArray[np.integer[Any]]) -> NDArray[np.integer[Any]]:
    """Whole numbers from 0 on, sorted: by counting, which is faster, where that takes no more room than they do."""
    if ticks.size and int(ticks.max()) < ticks.size:
        counts = np.bincount(ticks)
        return np.repeat(np.arange(counts.size, dtype=ticks.dtype), counts)
    return np.sort(ticks)


def quantile(ordered: Numbers, share: float) -> float | None:
    """Of sorted samples, with linear interpolation; None where there is none."""
    if not ordered.size:
        return None
    at = share * (ordered.size - 1)
    low = int(at)
    below, above = float(ordered[low]), float(ordered[min(low + 1, ordered.size - 1)])
    return below + (above - below) * (at - low)


def quantile_interval(values: Numbers, ordered: Numbers, share: float, groupings: Sequence[Groups]) -> Interval:
    """The interval of a quantile; an end that the samples cannot bound is None, as the upper one of p99 mostly is.

    Args:
        values: the samples.
        ordered: the same, sorted.
        share: 0.5 is the median.
        groupings: for each way to group the samples, the group of each; none where they are independent.
    """
    middle = quantile(ordered, share)
    if middle is None:
        return NO_INTERVAL
    below = values <= middle
    worth = [float(values.size), *(_worth(below, groups) for groups in groupings)]
    size = int(min(worth))
    low = int(scipy.stats.binom.ppf((1 - CONFIDENCE) / 2, size, share)) if size else 0
    high = int(scipy.stats.binom.isf((1 - CONFIDENCE) / 2, size, share)) + 1 if size else 1
    return _ranked(ordered, low, size), _ranked(ordered, high, size)


def ratio_interval(over: Floats, under: Floats, groupings: Sequence[Groups]) -> Interval:
    """The interval of sum(over) / sum(under), as wide as the groups make it that scatter most."""
    total = float(under.sum())
    if total <= 0:
        return NO_INTERVAL
    ratio = float(over.sum()) / total
    halves = [_half_width(over - ratio * under, groups) / total for groups in groupings]
    half = max(halves)
    return (max(0.0, ratio - half), ratio + half) if np.isfinite(half) else NO_INTERVAL


def _worth(below: NDArray[np.bool_], groups: Groups) -> float:
    """How many independent samples would leave the share of hits as uncertain as these groups do."""
    sizes = np.bincount(groups)
    count = np.count_nonzero(sizes)
    if count < _MIN_GROUPS:
        return 0.0
    above = np.bincount(groups[~below], minlength=sizes.size)  # the smaller part, mostly
    share = float(above.sum()) / below.size
    sums = above - share * sizes
    variance = count / (count - 1) * float(sums @ sums) / below.size**2
    if variance == 0:
        return float(below.size)  # all alike: nothing scatters
    few = (scipy.stats.norm.ppf(0.5 + CONFIDENCE / 2) / scipy.stats.t.ppf(0.5 + CONFIDENCE / 2, count - 1)) ** 2
    return float(few * share * (1 - share) / variance)


def _half_width(residuals: Floats, groups: Groups) -> float:
    count = np.count_nonzero(np.bincount(groups))
    if count < _MIN_GROUPS:
        return float("inf")
    sums = np.bincount(groups, weights=residuals)
    return float(scipy.stats.t.ppf(0.5 + CONFIDENCE / 2, count - 1) * np.sqrt(count / (count - 1) * float(sums @ sums)))


def _ranked(ordered: Numbers, rank: int, size: int) -> float | None:
    """The `rank`th of `size` equally spread samples, counted from 1; None beyond them."""
    if not 1 <= rank <= size:
        return None
    return float(ordered[min(ordered.size - 1, -(-rank * ordered.size // size) - 1)])
