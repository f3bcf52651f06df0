"""When a threshold that was placed on little is placed again."""

from __future__ import annotations

import math

import pytest

from patched_worker.autopilot_decide import ANY_THRESHOLD, better_known, decide
from patched_worker.autopilot_evidence import Evidence, Triple
from patched_worker.steptrace import StepRecord
from patched_worker.switchback import Plan

COMPARISONS = 60


def evidence() -> Evidence:
    """Sixty comparisons around a batch of 32, where two tokens a step are worth just what they cost."""
    found = Evidence()
    for _ in range(400):
        found.add(StepRecord(32, 32 * 200, 3, False, False, 64, 0.01, 0.0))
    for index in range(COMPARISONS):
        octave = 5.0 + 0.5 * (index % 3 - 1)
        cost = math.log(2.0) + 0.1 * (octave - 5.0) + (0.01 if index % 2 else -0.01)
        found.learn(Triple(octave, cost, 8.0, 200.0))
    return found


@pytest.mark.parametrize(
    ("comparisons", "placed_on", "better"),
    [(31, 5, False), (32, 5, True), (59, 30, False), (60, 30, True), (200, 48, False), (200, None, False)],
)
def test_twice_the_comparisons_are_better_knowledge(comparisons: int, placed_on: int | None, better: bool) -> None:
    """At least 32, and only where there were fewer than 48 before; never what the operator placed."""
    assert better_known(comparisons, placed_on) == better


def test_it_is_placed_again_within_the_noise_and_then_rests() -> None:
    """At 30 it loses less than the error, so only better knowledge moves it, to 32, and once."""
    found, plan = evidence(), Plan(30, 28)
    resting = decide(found, plan, ANY_THRESHOLD, None)
    again = decide(found, plan, ANY_THRESHOLD, 20)

    assert (resting.plan.threshold, resting.reason) == (30, None)
    assert again.plan.threshold in (31, 32, 33)
    assert str(again.reason).startswith(f"30 to {again.plan.threshold}: ")
    assert decide(found, plan, ANY_THRESHOLD, again.placed_on).plan.threshold == 30
