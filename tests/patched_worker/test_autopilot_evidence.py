"""Comparisons by hand: A B A, what is left out, and what a step with prefills is worth."""

from __future__ import annotations

import math

import pytest

from patched_worker.autopilot_evidence import Evidence, compared
from patched_worker.steptrace import StepRecord
from patched_worker.switchback import SETTLE_STEPS, bin_of


def step(on: bool, seconds: float, batch: int = 32, flipped: bool = False, prefill_s: float = 0.0) -> StepRecord:
    """A step of 2 tokens per request while on, 1 while off."""
    return StepRecord(batch, 200 * batch, 3 if on else 0, flipped, False, batch * (2 if on else 1), seconds, prefill_s)


def test_a_b_a_gives_the_cost_ratio_and_cancels_drift() -> None:
    """Off steps that slow down from 5 to 7 ms around on steps of 9 ms: the ratio is that of 9 to 6."""
    evidence = Evidence()
    before = [step(False, 0.005)] * 12
    flipped = [step(True, 0.009, flipped=True)] * 8
    after = [step(False, 0.007)] * 8
    for record in (*before, *flipped, *after):
        evidence.add(record)

    place = evidence.places[bin_of(32)]
    assert evidence.triples == 1
    assert place.cost_ratio == pytest.approx(math.log(0.009 / 0.006))
    assert place.octave == pytest.approx(5.0)


def test_steps_after_a_switch_are_left_out() -> None:
    """The switch itself costs, and is not what either state costs."""
    evidence = Evidence()
    slow = SETTLE_STEPS
    before = [step(False, 0.006)] * 12
    flipped = [step(True, 0.1 if i < slow else 0.009, flipped=True) for i in range(8)]
    after = [step(False, 0.1 if i < slow else 0.006) for i in range(8)]
    for record in (*before, *flipped, *after):
        evidence.add(record)

    assert evidence.places[bin_of(32)].cost_ratio == pytest.approx(math.log(0.009 / 0.006))


def test_steps_behind_a_prefill_are_left_out() -> None:
    """Their time may be the prefill's."""
    on = [step(True, 0.009), step(True, 0.5, prefill_s=0.02)] * 4
    off = [step(False, 0.006)] * 8
    triple = compared(on, off)

    assert triple is not None
    assert triple.cost == pytest.approx(math.log(0.009 / 0.006))


def test_where_every_step_follows_a_prefill_whole_blocks_count() -> None:
    """The ratio is that of tokens per second with the prefills in: 2 in 29 ms against 1 in 16."""
    on = [step(True, 0.009, prefill_s=0.02)] * 8
    off = [step(False, 0.006, prefill_s=0.01)] * 8
    triple = compared(on, off)

    assert triple is not None
    assert math.log(2) - triple.cost == pytest.approx(math.log((2 / 0.029) / (1 / 0.016)))
    clean = compared([step(True, 0.009)] * 8, [step(False, 0.006)] * 8)
    assert clean is not None
    assert triple.weight < clean.weight


def test_a_burst_of_prefills_on_one_side_says_little() -> None:
    """A surge of requests is prefilled before two plain steps of eight: no state of ours made that."""
    on = [step(True, 0.009, prefill_s=0.02)] * 8
    off = [step(False, 0.006, prefill_s=0.2 if i in (3, 4) else 0.01) for i in range(8)]
    calm, burst = compared(on, [step(False, 0.006, prefill_s=0.01)] * 8), compared(on, off)

    assert calm is not None
    assert burst is not None
    assert burst.weight < calm.weight / 20
    evidence = Evidence()
    for triple in (burst, calm, calm):
        evidence.learn(triple)
    place = evidence.places[bin_of(32)]
    assert place.cost_ratio == pytest.approx(calm.cost, abs=0.05)


def test_batches_that_differ_are_not_compared() -> None:
    """A ratio over 30 and 40 requests is none of one batch."""
    assert compared([step(True, 0.009, batch=40)] * 8, [step(False, 0.006, batch=30)] * 8) is None


def test_a_switch_of_the_policy_is_no_comparison() -> None:
    """Load decided it: the batches differ with the states, and always in the same direction."""
    evidence = Evidence()
    for record in [step(True, 0.009)] * 30 + [step(False, 0.006)] * 30:
        evidence.add(record)

    assert evidence.triples == 0


def test_acceptance_comes_from_every_speculative_step() -> None:
    """Plain steps say nothing of it."""
    evidence = Evidence()
    for record in [step(True, 0.009)] * 30 + [step(False, 0.006)] * 30:
        evidence.add(record)

    assert evidence.accept.mean == pytest.approx(2.0)


def test_a_flipped_block_is_an_observation_of_acceptance_by_itself() -> None:
    """The next one may be seconds away: better drafts must not wait for it."""
    evidence = Evidence()
    for record in [step(False, 0.006)] * 12 + [step(True, 0.009, flipped=True)] * 8 + [step(False, 0.006)]:
        evidence.add(record)

    assert (evidence.accept.count, evidence.accept.mean) == (1, 2.0)


def test_a_lone_user_is_watched() -> None:
    """Seconds per token at batch 1 with speculation."""
    evidence = Evidence()
    for _ in range(64):
        evidence.add(step(True, 0.007, batch=1))

    assert evidence.lone_on.mean == pytest.approx(0.0035)


def test_a_break_at_one_batch_makes_the_others_doubtful() -> None:
    """What changed there has probably changed elsewhere: measure again."""
    evidence = Evidence()

    def comparisons(batch: int, on_s: float, count: int) -> None:
        for _ in range(count):
            triple = compared([step(True, on_s, batch)] * 8, [step(False, 0.006, batch)] * 8)
            assert triple is not None
            evidence.learn(triple)

    comparisons(16, 0.009, 8)
    comparisons(64, 0.009, 8)
    assert not evidence.lacking(bin_of(16), 0.02)
    comparisons(64, 0.012, 2)

    assert evidence.breaks == 1
    assert evidence.lacking(bin_of(16), 0.02)
