"""When a threshold that was placed on little is placed again, and what the error of a saving does."""

from __future__ import annotations

import math

import pytest

from patched_worker.autopilot_curve import curve_of
from patched_worker.autopilot_decide import ANY_THRESHOLD, PLACED_SE, decide
from patched_worker.autopilot_evidence import Evidence, Triple
from patched_worker.steptrace import StepRecord
from patched_worker.switchback import Plan

COMPARISONS = 60


def evidence(off_tok_per_s: float = 0.0) -> Evidence:
    """Sixty comparisons around a batch of 32, where two tokens a step are worth just what they cost."""
    found = Evidence()
    for _ in range(400):
        found.add(StepRecord(32, 32 * 200, 3, False, False, 64, 0.01, 0.0))
    for index in range(COMPARISONS):
        octave = 5.0 + 0.5 * (index % 3 - 1)
        cost = math.log(2.0) + 0.1 * (octave - 5.0) + (0.01 if index % 2 else -0.01)
        found.learn(Triple(octave, cost, 8.0, 200.0, off_tok_per_s))
    return found


def se_at(found: Evidence, threshold: int) -> float:
    """Standard error of the gain there."""
    curve = curve_of(found)
    assert curve is not None
    return curve.at(math.log2(threshold)).se


def test_it_is_placed_again_once_twice_as_much_is_known_and_then_rests() -> None:
    """At 30 it loses less than the error, so only better knowledge moves it, to 32, and once."""
    found, plan = evidence(), Plan(30, 28)
    more = max(1.5 * se_at(found, 30), 1.1 * PLACED_SE)
    resting = decide(found, plan, ANY_THRESHOLD, None)
    again = decide(found, plan, ANY_THRESHOLD, more)

    assert (resting.plan.threshold, resting.reason) == (30, None)
    assert again.plan.threshold in (31, 32, 33)
    assert str(again.reason).startswith(f"30 to {again.plan.threshold}: ")
    assert decide(found, plan, ANY_THRESHOLD, again.placed_se).plan.threshold == 30


@pytest.mark.parametrize("share", [0.5, 0.95])
def test_what_was_placed_on_nearly_as_much_or_well_enough_stays(share: float) -> None:
    """Little more than before is no better knowledge, and a small one is good enough."""
    found, plan = evidence(), Plan(30, 28)

    assert decide(found, plan, ANY_THRESHOLD, 1.3 * se_at(found, 30)).plan.threshold == 30
    assert decide(found, plan, ANY_THRESHOLD, share * PLACED_SE).plan.threshold == 30


def test_a_threshold_placed_after_a_break_is_placed_again_however_much_was_compared_before() -> None:
    """Sixty comparisons stand behind it, and a minute of the new acceptance does not: it counts what is known now."""
    found = evidence()
    for accept_len in (128, 64):
        for _ in range(12):
            found.add(StepRecord(32, 32 * 200, 3, False, False, accept_len, 0.01, 0.0))
    assert found.breaks == 2
    placed_se = se_at(found, 30)
    assert placed_se > PLACED_SE
    for _ in range(12_000):
        found.add(StepRecord(32, 32 * 200, 3, False, False, 64, 0.01, 0.0))
    assert decide(found, Plan(30, 28), ANY_THRESHOLD, placed_se).plan.threshold in (31, 32, 33)


def test_the_error_of_what_prefills_save_is_in_the_gain() -> None:
    """Prefills whose time hangs on prompts, not on how many there are, tell little of their fixed part."""
    apart = []
    for wild in (False, True):
        found = evidence(3200.0)
        for index in range(400):
            prefill_s = 0.02 + 0.02 * (index // 2 % 2 if wild else 1)
            found.add(StepRecord(32, 32 * 200, 3, False, False, 64, 0.01, prefill_s, 1 + index % 2))
        saved = found.prefills.saving(32.0, found.accept.mean, 3200.0)
        apart.append((se_at(found, 32), saved.se / (1 + saved.value)))

    (calm, none), (wild_se, saved_se) = apart
    assert none == pytest.approx(0.0, abs=1e-6)
    assert saved_se > 0.02
    assert wild_se**2 - calm**2 == pytest.approx(saved_se**2, rel=0.3)
