"""What speculation gains at each batch, and where it turns to loss: a smooth curve through the measured places.

The cost ratio is taken to rise with the batch by about SLOPE an octave, give or take WANDER: a random walk with drift
over log2(batch), smoothed forwards and backwards (Rauch, Tung, Striebel), so that every place lends its neighbours what
it knows, and less the farther they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from patched_worker.autopilot_evidence import SLOPE, Evidence, uncertainty

WANDER = 0.05**2  # variance per octave
BETWEEN = 0.02**2  # the same between two measured places: real curves are smoother than a random walk
REACH = 0.5  # octaves beyond the outermost measured place in which the curve is used
GRID = 0.25  # octaves
INTERVAL_Z = 1.645  # 90 %


@dataclass(frozen=True, slots=True)
class Node:
    """A place: `octave` = log2(batch), its cost ratio less what prefills save, and that one's variance."""

    octave: float
    cost: float
    variance: float


@dataclass(frozen=True, slots=True)
class Point:
    """The gain at one batch: log(tokens per second on / off) with its standard error."""

    octave: float
    gain: float
    se: float


@dataclass(frozen=True, slots=True)
class Smoothed:
    """A node after smoothing; `link` is its covariance with the next one."""

    octave: float
    cost: float
    variance: float
    link: float


@dataclass(frozen=True, slots=True)
class Curve:
    """The gain over all batches, from the smallest measured one to the largest, and REACH beyond.

    Attributes:
        points: rising in batch, GRID apart.
        low, high: log2 of the smallest and the largest batch that was measured.
    """

    points: tuple[Point, ...]
    low: float
    high: float

    def at(self, octave: float) -> Point:
        """The gain between two points of the grid, and as at its ends beyond them."""
        points = self.points
        place = (octave - points[0].octave) / GRID
        if place <= 0:
            return points[0]
        if place >= len(points) - 1:
            return points[-1]
        left, share = points[int(place)], place - int(place)
        right = points[int(place) + 1]
        gain = left.gain + share * (right.gain - left.gain)
        return Point(octave, gain, left.se + share * (right.se - left.se))

    def best_cut(self) -> float:
        """log2 of the batch up to which speculating gains most; -inf where it loses at the smallest batch already.

        Every octave counts alike. Where it still gains at the largest, that one is the cut.
        """
        total, best, cut = 0.0, 0.0, -1
        for index, point in enumerate(self.points):
            total += point.gain
            if total > best:
                best, cut = total, index
        if cut < 0:
            return -math.inf
        return self._zero(cut, 0.0)

    def interval(self) -> tuple[float, float]:
        """log2 of the batches between which the pivot lies with 90 %; -inf and inf where it may lie outside."""
        low, high = -math.inf, math.inf
        cut = next((i for i, p in enumerate(self.points) if p.gain - INTERVAL_Z * p.se <= 0), None)
        if cut is None:
            low = self.points[-1].octave
        elif cut > 0:
            low = self._zero(cut - 1, -INTERVAL_Z)
        cut = next((i for i, p in reversed(list(enumerate(self.points))) if p.gain + INTERVAL_Z * p.se >= 0), None)
        if cut is None:
            high = self.points[0].octave
        elif cut < len(self.points) - 1:
            high = self._zero(cut, INTERVAL_Z)
        return low, high

    def _zero(self, index: int, z: float) -> float:
        """Where gain + z se falls through zero between two neighbours."""
        if index == len(self.points) - 1:
            return self.points[-1].octave
        left, right = self.points[index], self.points[index + 1]
        a, b = left.gain + z * left.se, right.gain + z * right.se
        return left.octave + (GRID * a / (a - b) if a > 0 >= b else 0.0)


def curve_of(evidence: Evidence) -> Curve | None:
    """The curve that the evidence gives now; None where it has no place or no speculative step yet."""
    accept, known = evidence.accept, [place for place in evidence.places if place.cost.count >= 2]
    if not known or accept.mean <= 0:
        return None
    savings = [evidence.prefills.saving(2**place.octave, accept.mean, place.off_tok_per_s) for place in known]
    smooth = smoothed(
        [
            Node(
                place.octave,
                place.cost_ratio - math.log1p(saving.value),
                uncertainty(place, evidence.now_s, evidence.context),
            )
            for place, saving in zip(known, savings, strict=True)
        ]
    )
    benefit, variance = math.log(accept.mean), accept.variance() / accept.mean**2
    # the same prefills are in all of them: neighbours do not make this error smaller
    shared = [saving.se / (1.0 + saving.value) for saving in savings]
    low, high = smooth[0].octave, smooth[-1].octave
    points, octave, index = [], low - REACH, 0
    while octave <= high + REACH + 1e-9:
        while index + 1 < len(smooth) and smooth[index + 1].octave < octave:
            index += 1
        cost, cost_variance = _between(smooth, index, octave)
        saved_se = max(shared[index : index + 2])
        points.append(Point(octave, benefit - cost, math.sqrt(variance + cost_variance + saved_se**2)))
        octave += GRID
    return Curve(tuple(points), low, high)


def smoothed(nodes: Sequence[Node]) -> list[Smoothed]:
    """The nodes, each with what its neighbours say of it."""
    means, variances, ahead = [nodes[0].cost], [nodes[0].variance], [(0.0, 0.0)]
    for before, node in pairwise(nodes):
        gap = node.octave - before.octave
        mean, variance = means[-1] + SLOPE * gap, variances[-1] + WANDER * gap
        ahead.append((mean, variance))
        share = variance / (variance + node.variance)
        means.append(mean + share * (node.cost - mean))
        variances.append((1 - share) * variance)
    found = [Smoothed(nodes[-1].octave, means[-1], variances[-1], 0.0)]
    for i in range(len(nodes) - 2, -1, -1):
        later, (mean, variance) = found[-1], ahead[i + 1]
        back = variances[i] / variance
        found.append(
            Smoothed(
                nodes[i].octave,
                means[i] + back * (later.cost - mean),
                variances[i] + back * back * (later.variance - variance),
                back * later.variance,
            )
        )
    return found[::-1]


def _between(nodes: Sequence[Smoothed], index: int, octave: float) -> tuple[float, float]:
    """Cost ratio and variance at `octave`, which lies behind node `index`, or outside of all."""
    node = nodes[index]
    if octave <= node.octave or index == len(nodes) - 1:
        gap = octave - node.octave
        return node.cost + SLOPE * gap, node.variance + WANDER * abs(gap)
    later = nodes[index + 1]
    gap = later.octave - node.octave
    share = (octave - node.octave) / gap
    rest = 1 - share
    variance = rest * rest * node.variance + share * share * later.variance + 2 * share * rest * node.link
    return node.cost + share * (later.cost - node.cost), variance + BETWEEN * gap * share * rest
