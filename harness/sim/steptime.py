"""Step times as tables: measured sizes -> seconds.

A decode step's size is its batch in requests, a prefill's is its tokens. Between two measured sizes the table is a
straight line in log-log, the shape that real step times of dense and MoE models follow closest; a formula fitted to
all of them misses real tables by 10 to 20 %. Outside the measured sizes it stays physical: never cheaper than the
smallest, and growing no faster than the size itself.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from itertools import pairwise

import msgspec


class StepTable(msgspec.Struct, frozen=True):
    """Seconds of one step, by size.

    Attributes:
        sizes: strictly rising, 1 or more.
        seconds: duration of a step of each size, greater than 0.

    Raises:
        ValueError: the table is empty, uneven, unsorted or not positive.
    """

    sizes: tuple[int, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        _check_sizes(self.sizes, len(self.seconds))
        if not all(math.isfinite(value) and value > 0 for value in self.seconds):
            raise ValueError(f"step times must be finite and greater than 0, got {self.seconds}")

    def at(self, size: float) -> float:
        """Seconds of a step of `size` requests or tokens."""
        if size <= self.sizes[0] or len(self.sizes) == 1:
            return self.seconds[0]
        if size > self.sizes[-1]:
            slope = min(max(self._slope(len(self.sizes) - 1), 0.0), 1.0)
            return self.seconds[-1] * math.pow(size / self.sizes[-1], slope)
        right = bisect_left(self.sizes, size)
        if self.sizes[right] == size:
            return self.seconds[right]
        return self.seconds[right - 1] * math.pow(size / self.sizes[right - 1], self._slope(right))

    def scaled(self, factor: float) -> StepTable:
        """The same table with every duration times `factor`."""
        return StepTable(self.sizes, tuple(value * factor for value in self.seconds))

    def _slope(self, right: int) -> float:
        rise = math.log(self.seconds[right] / self.seconds[right - 1])
        return rise / math.log(self.sizes[right] / self.sizes[right - 1])


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
        if not all(math.isfinite(value) and value > -1 for value in self.fraction):
            raise ValueError(f"an off-step tax must be finite and greater than -1, got {self.fraction}")

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


def _check_sizes(sizes: tuple[int, ...], values: int) -> None:
    if not sizes or len(sizes) != values:
        raise ValueError(f"a table needs one value for each of its sizes, got {len(sizes)} sizes and {values} values")
    if sizes[0] < 1 or any(a >= b for a, b in pairwise(sizes)):
        raise ValueError(f"sizes must rise strictly from 1 or more, got {sizes}")
