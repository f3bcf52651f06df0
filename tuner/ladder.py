"""Bands of the decode batch, and of the context, where one threshold is not the answer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations, pairwise

import msgspec

from patched_worker.policy import default_resume_at
from tuner.curves import Pivot, Shape

Ladder = tuple[dict[str, int | None], ...]


def bands(fit: Pivot) -> Ladder:
    """Rungs that speculate exactly in the bands of batches where the measured ratio is above zero.

    A rung's num_steps of 0 is off, None is the server's own number; above the last rung speculation is off.
    """
    edges: list[tuple[int | None, bool]] = []
    for here, after in zip(fit.ratios, fit.ratios[1:], strict=False):
        wins = here.log_ratio > 0
        if wins != (after.log_ratio > 0):
            share = here.log_ratio / (here.log_ratio - after.log_ratio)
            edges.append((max(1, int(here.batch * (after.batch / here.batch) ** share)), wins))
    if fit.ratios[-1].log_ratio > 0:
        edges.append((None, True))
    return tuple(
        {
            "threshold": upto,
            "resume_at": None if upto is None else default_resume_at(upto),
            "num_steps": None if wins else 0,
        }
        for upto, wins in edges
    )


class ContextPivot(msgspec.Struct, frozen=True):
    """The pivot at one context length.

    Attributes:
        input_tokens: length of the prompts.
        mean_context: mean sequence length while they decode, in tokens.
        threshold, interval, shape: as in Pivot.
    """

    input_tokens: int
    mean_context: int
    threshold: int | None
    interval: tuple[int | None, int | None]
    shape: Shape


def context_bands(pivots: Sequence[ContextPivot]) -> Ladder | None:
    """Rungs that speculate up to each context length's own threshold; None where no two lengths surely differ.

    Between two lengths the border is their geometric mean. A rung holds up to a batch and a context, so batches between
    two thresholds need a rung for each run of lengths that agree there; what is off above all thresholds needs none.

    Args:
        pivots: by rising context.
    """
    if not any(_apart(a, b) for a, b in combinations(pivots, 2)):
        return None
    ends = [round(math.sqrt(a.mean_context * b.mean_context)) for a, b in pairwise(pivots)]
    edges: list[int | None] = [*ends, None]
    steps = sorted({_up_to(pivot.threshold) for pivot in pivots} - {0})
    rungs = [rung for step in steps for rung in _agreeing(step, [_up_to(p.threshold) >= step for p in pivots], edges)]
    while rungs and rungs[-1]["num_steps"] == 0:
        rungs.pop()
    return tuple(rungs)


def _agreeing(step: float, wins: Sequence[bool], edges: Sequence[int | None]) -> Ladder:
    """One rung up to a threshold for each run of neighbouring lengths that agree on it."""
    upto = None if math.isinf(step) else int(step)
    ends = [i for i, win in enumerate(wins) if i + 1 == len(wins) or wins[i + 1] != win]
    return tuple(
        {
            "threshold": upto,
            "resume_at": None if upto is None else default_resume_at(upto) if wins[i] else upto,
            "num_steps": None if wins[i] else 0,
            "max_mean_context": edges[i],
        }
        for i in ends
    )


def _up_to(threshold: int | None) -> float:
    return math.inf if threshold is None else threshold


def _apart(a: ContextPivot, b: ContextPivot) -> bool:
    """Whether the intervals of two pivots do not meet."""
    (low_a, high_a), (low_b, high_b) = ((_up_to(low), _up_to(high)) for low, high in (a.interval, b.interval))
    return high_a < low_b or high_b < low_a
