"""Ladders banded by context: every batch at every context is decided as its own length's threshold says."""

from __future__ import annotations

import math
from itertools import permutations, product

import pytest

from patched_worker.policy import MAX_RUNGS, Gate, Policy, Rung, to_wire, updated
from tuner.ladder import ContextPivot, context_bands

CONTEXTS = (192, 2112, 8256)
THRESHOLDS = (0, 5, 40, 90, None)


def pivots(thresholds: tuple[int | None, ...], spread: int = 0) -> list[ContextPivot]:
    """Lengths with these thresholds, known to `spread` requests."""
    found = []
    for context, threshold in zip(CONTEXTS, thresholds, strict=False):
        ends = (None, None) if threshold is None else (max(0, threshold - spread), threshold + spread)
        found.append(ContextPivot(context - 64, context, threshold, ends, "crossover"))
    return found


@pytest.mark.parametrize("lengths", [2, 3])
def test_each_length_is_switched_at_its_own_threshold(lengths: int) -> None:
    """Whatever the order of the thresholds, rising, falling or neither, within what the wire can carry."""
    for thresholds in permutations(THRESHOLDS, lengths):
        ladder = context_bands(pivots(thresholds))
        assert ladder is not None
        policy = Policy(tuple(Rung(**rung) for rung in ladder))
        assert len(policy.rungs) <= MAX_RUNGS
        assert updated(Policy.from_threshold(1), to_wire(policy)).rungs == policy.rungs
        for batch, (context, threshold) in product((1, 5, 6, 40, 41, 90, 91, 500), zip(CONTEXTS, thresholds)):  # noqa: B905 - two or three
            on = threshold is None or batch <= threshold
            assert bool(Gate(policy, 3).decide(batch, batch * context)) is on, (thresholds, batch, context)


def test_the_border_between_two_lengths_is_their_geometric_mean() -> None:
    """It is not measured, and lies as far from the one as from the other."""
    ladder = context_bands(pivots((40, 90)))
    assert ladder is not None
    assert [rung["max_mean_context"] for rung in ladder] == [None, round(math.sqrt(192 * 2112)), None]
    assert [rung["num_steps"] for rung in ladder] == [None, 0, None]


def test_lengths_that_noise_may_explain_have_no_ladder() -> None:
    """Intervals that meet are no difference; those of other lengths may still part."""
    assert context_bands(pivots((40, 44), spread=3)) is None
    assert context_bands(pivots((40, 44, 90), spread=3)) is not None
    assert context_bands(pivots((40,))) is None
