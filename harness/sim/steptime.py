"""Step times as tables: measured sizes -> seconds.

A decode step's size is its batch in requests, a prefill's is its tokens. Between measured sizes the table is a
monotone cubic (PCHIP) in log-log: step times are flat while memory-bound and rise towards proportionality, a bend
that straight lines between C = 64 and 256 miss by 5 to 10 % and the cubic by 1 to 3 %; a formula fitted to all sizes
misses real tables by 10 to 20 %. Outside the measured sizes it stays physical: never cheaper than the smallest, and
growing no faster than the size itself.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from functools import lru_cache
from itertools import pairwise

import msgspec
import numpy as np
import scipy

# Beyond these a table is damaged: a clock would stand still, or never come to the next step.
MAX_SIZE = 2**40
MIN_STEP_S, MAX_STEP_S = 1e-9, 1e6
MAX_TAX = 1e6


class StepTable(msgspec.Struct, frozen=True):
    """Seconds of one step, by size.

    Attributes:
        sizes: strictly rising, 1 or more.
        seconds: duration of a step of each size, from MIN_STEP_S to MAX_STEP_S.

    Raises:
        ValueError: the table is empty, uneven, unsorted, or holds what no step takes.
    """

    sizes: tuple[int, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        _check_sizes(self.sizes, len(self.seconds))
        if not all(MIN_STEP_S <= value <= MAX_STEP_S for value in self.seconds):
            raise ValueError(f"step times must be {MIN_STEP_S:g} to {MAX_STEP_S:g} s, got {self.seconds}")

    def at(self, size: float) -> float:
        """Seconds of a step of `size` requests or tokens."""
        first, last = self.sizes[0], self.sizes[-1]
        if size <= first or first == last:
            return self.seconds[0]
        if size > last:
            slope = min(max(float(_curve(self.sizes, self.seconds)(math.log(last), 1)), 0.0), 1.0)
            return self.seconds[-1] * math.pow(size / last, slope)
        place = bisect_left(self.sizes, size)
        if self.sizes[place] == size:
            return self.seconds[place]
        return math.exp(float(_curve(self.sizes, self.seconds)(math.log(size))))

    def scaled(self, factor: float) -> StepTable:
        """The same table with every duration times `factor`."""
        return StepTable(self.sizes, tuple(value * factor for value in self.seconds))


class TaxTable(msgspec.Struct, frozen=True):
    """What a patched server's off step costs beyond its reference's decode step, as a fraction, by batch.

    Interpolated over log(batch), constant outside; may be negative.

    Raises:
        ValueError: the table is empty, uneven or unsorted, or takes a whole step away.
    """

    sizes: tuple[int, ...]
    fraction: tuple[float, ...]

    def __post_init__(self) -> None:
        _check_sizes(self.sizes, len(self.fraction))
        if not all(-1 < value <= MAX_TAX for value in self.fraction):
            raise ValueError(f"an off-step tax must be greater than -1 and at most {MAX_TAX:g}, got {self.fraction}")

    def at(self, size: float) -> float:
        """The tax of an off step over `size` requests."""
        if size <= self.sizes[0]:
            return self.fraction[0]
        if size >= self.sizes[-1]:
            return self.fraction[-1]
        right = bisect_left(self.sizes, size)
        low, high = self.sizes[right - 1], self.sizes[right]
        share = math.log(size / low) / math.log(high / low)
        return self.fraction[right - 1] + share * (self.fraction[right] - self.fraction[right - 1])


@lru_cache(maxsize=256)
def _curve(sizes: tuple[int, ...], seconds: tuple[float, ...]) -> scipy.interpolate.PchipInterpolator:
    """log(size) -> log(seconds)."""
    return scipy.interpolate.PchipInterpolator(np.log(sizes), np.log(seconds))


def _check_sizes(sizes: tuple[int, ...], values: int) -> None:
    if not sizes or len(sizes) != values:
        raise ValueError(f"a table needs one value for each of its sizes, got {len(sizes)} sizes and {values} values")
    if sizes[0] < 1 or sizes[-1] > MAX_SIZE or any(a >= b for a, b in pairwise(sizes)):
        raise ValueError(f"sizes must rise strictly from 1 or more to at most {MAX_SIZE}, got {sizes}")
