"""A mean that forgets, knows its error, and notices when what it measures has changed.

Observations are means over blocks of steps. Their scatter is taken from the observations themselves, and widened by
the correlation of each with the one before, because blocks that follow one another share their requests. One wild value
is cut to size. Where the last few differ clearly from all before, that is a break: then only they count, so a long
memory does not make it slow.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

SCATTER_SIGMAS = 2.5  # that one observation counts for at most in the scatter
SWING_MEMORY_S = 300.0
SWING_PRIOR_S = 60.0  # for how many seconds of watching the swing counts that is assumed at the start
OUTLIER_SWINGS = 3.0
LOCAL_GAIN = 0.25
LOCAL_EXCESS = 1 + LOCAL_GAIN / (2 - LOCAL_GAIN)  # variance of an observation around the local mean, over its own
PRIOR_OBSERVATIONS = 4.0  # weight of the scatter that is assumed until observations show their own
SCATTER_MEMORY = 0.98  # kept per observation
MAX_CORRELATION = 0.6


@dataclass(frozen=True, slots=True)
class Kind:
    """How one sort of level behaves.

    Attributes:
        half_life_s: after which an observation counts half.
        unit_sd: standard deviation of an observation of weight 1, until it is known.
        break_runs: over how many last observations a break is looked for, the fewest first.
        break_sigmas, break_size: how far their mean must lie off, in standard errors (of which a swing is part) and as
            such.
        outlier_sigmas: a single observation farther off than this is cut to it.
        swing_s: for how long a level that swings around its mean stays on one side; 0: it does not swing. What swings
            is which requests happen to run: no news, and no error of the blocks either.
        swing_sd: how far it swings, until that is known; or the first swings would each pass for a change.
    """

    half_life_s: float
    unit_sd: float
    break_runs: tuple[int, ...]
    break_sigmas: float
    break_size: float
    outlier_sigmas: float = 4.0
    swing_s: float = 0.0
    swing_sd: float = 0.0


class Scatter:
    """Variance of an observation of weight 1, and the correlation of neighbours; may be shared by several levels.

    Two of them: around the mean (what the mean's error rests on; a slow drift is in it), and around the observations
    just before (what a break is judged by; a drift is not in it, or it would hide itself).
    """

    def __init__(self, kind: Kind) -> None:
        self._squares = self._local_squares = PRIOR_OBSERVATIONS * kind.unit_sd**2
        self._products = 0.0
        self._weight = PRIOR_OBSERVATIONS

    @property
    def variance(self) -> float:
        return self._squares / self._weight

    @property
    def noise(self) -> float:
        """The variance around the observations just before."""
        return self._local_squares / self._weight

    @property
    def inflation(self) -> float:
        """By how much correlated neighbours widen the variance of a mean."""
        correlation = min(max(self._products / self._squares, 0.0), MAX_CORRELATION)
        return (1 + correlation) / (1 - correlation)

    def add(self, residual: float, before: float, local: float) -> None:
        """Take one more residual, scaled to weight 1, the one before it (0.0: there is none), and the local one."""
        self._local_squares = self._local_squares * SCATTER_MEMORY + local * local
        self._squares = self._squares * SCATTER_MEMORY + residual * residual
        self._products = self._products * SCATTER_MEMORY + residual * before
        self._weight = self._weight * SCATTER_MEMORY + 1.0


class Level:
    """See the module.

    Args:
        kind: how it behaves.
        scatter: shared with other levels of the same kind; its own by default.
    """

    def __init__(self, kind: Kind, scatter: Scatter | None = None) -> None:
        self.kind = kind
        self.scatter = Scatter(kind) if scatter is None else scatter
        self.mean = 0.0
        self.weight = 0.0
        self.count = 0  # observations since the last break
        self.at_s = 0.0  # of the last observation
        self._run: deque[tuple[float, float, float, float]] = deque(maxlen=kind.break_runs[-1])
        self._before = 0.0
        self._local = 0.0  # mean of the observations just before
        self._swing = kind.swing_sd**2  # variance of that around the mean, beyond its error
        self._watched_s = SWING_PRIOR_S

    def variance(self) -> float:
        """Of the mean; infinite without observations."""
        if self.weight <= 0.0:
            return math.inf
        return self._unit / self.weight

    def widen(self, variance: float) -> None:
        """What is known holds only to within this much more: later observations count for more."""
        self.weight /= 1.0 + self.weight * variance / self._unit

    @property
    def _unit(self) -> float:
        """Variance that a weight of 1 stands for in the mean."""
        return self.scatter.noise if self.kind.swing_s else self.scatter.variance * self.scatter.inflation

    def _counts(self, weight: float, passed_s: float) -> float:
        """What an observation weighs in the mean.

        A swing is common to all observations within `swing_s`: a hundred of them in a second say little more than one.
        """
        if not self.kind.swing_s or self._swing <= 0.0:
            return weight
        swings = min(max(passed_s, 1e-9) / self.kind.swing_s, 1.0)
        return 1.0 / (1.0 / weight + self._swing / (self.scatter.noise * swings))

    def add(self, value: float, weight: float, now_s: float) -> bool:
        """Take an observation.

        Args:
            value: a block's mean.
            weight: of it; its variance is that of weight 1 divided by this.
            now_s: on a clock that never runs backwards.

        Returns:
            Whether this one completed a break.
        """
        passed_s = now_s - self.at_s
        self.weight *= 0.5 ** (passed_s / self.kind.half_life_s)
        self.at_s = now_s
        if self.count == 0:
            self._restart([(value, weight)])
            return False
        deviation = value - self.mean
        counts = self._counts(weight, passed_s)
        own = self.scatter.noise if self.kind.swing_s else self.scatter.variance
        spread = own * (1.0 / weight + 1.0 / max(self.weight, 1e-9)) + max(0.0, self._swing)
        limit = self.kind.outlier_sigmas * math.sqrt(spread)
        self._run.append((value, weight, counts, self.mean + min(max(deviation, -limit), limit)))
        if run := self._break():
            self._restart(run)
            return True
        deviation = min(max(deviation, -limit), limit)
        # what changes must not pass for noise, or the change is lost in it
        most = SCATTER_SIGMAS * math.sqrt(self.scatter.variance)
        residual = deviation * math.sqrt(self.scatter.variance / spread)
        residual = min(max(residual, -most), most)
        local = (value - self._local) * math.sqrt(weight / LOCAL_EXCESS)
        self._local += LOCAL_GAIN * (value - self._local)
        most_local = SCATTER_SIGMAS * math.sqrt(self.scatter.noise)
        self.scatter.add(residual, self._before, min(max(local, -most_local), most_local))
        self._before = residual
        if self.kind.swing_s:
            self._swung(weight, passed_s)
        self.weight += counts
        self.mean += deviation * counts / self.weight
        self.count += 1
        return False

    def _swung(self, weight: float, passed_s: float) -> None:
        known = math.sqrt(max(0.0, self._swing))
        most = self.kind.break_size / 2 + OUTLIER_SWINGS * known  # or a change would pass for a swing
        swing = min(abs(self._local - self.mean), most)
        own = self.scatter.noise * (LOCAL_EXCESS - 1.0) / weight
        self._watched_s = min(self._watched_s + passed_s, SWING_MEMORY_S)
        self._swing += -math.expm1(-passed_s / self._watched_s) * (swing * swing - own - self._swing)

    def _break(self) -> list[tuple[float, float]]:
        """The last observations, where they differ from all before them; none where there is no break.

        All but the newest are in the mean already: they are taken out of it again. A wild value counts as cut to size.
        """
        kind, total, weight, length = self.kind, 0.0, 0.0, 0
        absorbed, absorbed_weight = 0.0, 0.0
        noise, swing = self.scatter.noise, max(0.0, self._swing)
        for _, share, counts, cut in reversed(self._run):
            total, weight, length = total + cut * share, weight + share, length + 1
            if length > 1:
                absorbed, absorbed_weight = absorbed + cut * counts, absorbed_weight + counts
            if length not in kind.break_runs or length > self.count:
                continue
            rest = self.weight - absorbed_weight
            if rest <= 0.0:
                return []
            shift = total / weight - (self.mean * self.weight - absorbed) / rest
            spread = math.sqrt(noise * (1.0 / weight + 1.0 / rest) + swing)
            if abs(shift) > max(kind.break_size, kind.break_sigmas * spread):
                return [(value, share) for value, share, _, _ in self._run][-length:]
        return []

    def _restart(self, values: list[tuple[float, float]]) -> None:
        weight = sum(w for _, w in values)
        self.mean = sum(v * w for v, w in values) / weight
        self.weight = self._counts(weight, math.inf)
        self.count = len(values)
        self._local = self.mean
        self._before = 0.0
        self._run.clear()
