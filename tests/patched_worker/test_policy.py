"""The switching rule: when it leaves a rung, when it climbs back, and what it forgets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patched_worker.policy import (
    RUNGS_KEY,
    THRESHOLD_KEY,
    Gate,
    Policy,
    Rung,
    default_resume_at,
    rung_key,
    to_wire,
    updated,
)

STEPS = 3


def gate(threshold: int | None, resume_at: int | None = None, min_dwell: int = 0) -> Gate:
    """A gate over a one-threshold policy."""
    return Gate(Policy.from_threshold(threshold, resume_at, min_dwell), STEPS)


def decisions(gate: Gate, batches: list[int]) -> list[int]:
    """The draft steps for a run of decode batches."""
    return [gate.decide(batch) for batch in batches]


def test_batch_above_the_threshold_is_plain_at_once() -> None:
    """The threshold itself still speculates, one request more does not."""
    assert decisions(gate(4), [4, 5]) == [STEPS, 0]


def test_it_resumes_at_resume_at_and_not_above() -> None:
    """Between resume_at and the threshold the state stays what it was."""
    assert decisions(gate(8, resume_at=5), [9, 8, 6, 5, 6, 8]) == [0, 0, 0, STEPS, STEPS, STEPS]


def test_it_does_not_resume_before_it_has_dwelt() -> None:
    """The step that goes plain counts as the first of the dwell."""
    assert decisions(gate(4, resume_at=4, min_dwell=3), [5, 1, 1, 1]) == [0, 0, 0, STEPS]


def test_dwell_does_not_delay_going_plain() -> None:
    """An overloaded step costs every request in it, so only climbing waits."""
    assert decisions(gate(4, resume_at=4, min_dwell=2), [5, 5, 4, 5]) == [0, 0, STEPS, 0]


def test_reset_forgets_the_dwell() -> None:
    """After idleness the first step may speculate at once, also above resume_at."""
    switching = gate(8, resume_at=2, min_dwell=16)
    assert switching.decide(9) == 0

    switching.reset()

    assert switching.decide(8) == STEPS


def test_switches_count_changes_between_consecutive_steps() -> None:
    """A reset is not a switch."""
    switching = gate(4, resume_at=4)
    decisions(switching, [1, 5, 1])
    switching.reset()
    switching.decide(5)

    assert switching.switches == 2


@pytest.mark.parametrize("batch", [1, 100_000])
def test_zero_never_speculates_and_none_always_does(batch: int) -> None:
    """Both ends of the threshold's range are policies of their own."""
    assert gate(0).decide(batch) == 0
    assert gate(None).decide(batch) == STEPS


@pytest.mark.parametrize(("threshold", "resume_at"), [(0, 0), (1, 1), (2, 1), (3, 2), (4, 3), (8, 6), (24, 18)])
def test_default_resume_is_a_quarter_below(threshold: int, resume_at: int) -> None:
    """At least one below, so that load at the threshold cannot flap; 1 has no room for that."""
    assert default_resume_at(threshold) == resume_at


def test_ladder_takes_the_first_rung_that_holds() -> None:
    """Fewer draft steps as the batch grows, none beyond the last rung."""
    ladder = Gate(Policy((Rung(2, 2, 3), Rung(8, 6, 1)), min_dwell=0), STEPS)

    assert decisions(ladder, [2, 3, 8, 9, 7, 6, 3, 2]) == [3, 1, 1, 0, 0, 1, 1, 3]


def test_long_contexts_leave_a_rung_too() -> None:
    """The context is a mean: two requests of 400 tokens are not one of 800."""
    limited = Gate(Policy((Rung(8, 8, None, max_mean_context=500),), min_dwell=0), STEPS)

    assert [limited.decide(2, 800), limited.decide(1, 800), limited.decide(2, 800)] == [STEPS, 0, STEPS]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Policy.from_threshold(-1),
        lambda: Policy.from_threshold(4, resume_at=5),
        lambda: Policy.from_threshold(4, resume_at=0),
        lambda: Policy.from_threshold(4, min_dwell=-1),
        lambda: Policy((Rung(0, None),)),
        lambda: Policy((Rung(8, 8), Rung(8, 8))),
        lambda: Policy((Rung(None, None), Rung(8, 8))),
    ],
)
def test_senseless_policies_are_refused(make: object) -> None:
    """A rule that could not be told apart from another, or could never fire, is an error where it is made."""
    assert callable(make)
    with pytest.raises(ValueError, match=r"give|rise"):
        make()


def test_policy_id_names_the_rule() -> None:
    """Equal rules have equal ids, and anything that changes a decision changes the id."""
    base = Policy.from_threshold(8, 6, 16)
    others = [Policy.from_threshold(9, 6, 16), Policy.from_threshold(8, 5, 16), Policy.from_threshold(8, 6, 15)]

    assert base.policy_id == Policy.from_threshold(8).policy_id
    assert len({base.policy_id, *(other.policy_id for other in others)}) == 4


def test_with_num_steps_fills_only_what_is_open() -> None:
    """A rung that names its draft steps keeps them."""
    policy = Policy((Rung(2, 2, 5), Rung(8, 6))).with_num_steps(STEPS)

    assert [rung.num_steps for rung in policy.rungs] == [5, STEPS]


thresholds = st.integers(1, 40)
loads = st.lists(st.integers(1, 50), max_size=80)


@given(threshold=thresholds, batches=loads, dwell=st.integers(0, 10))
def test_no_step_above_the_threshold_ever_speculates(threshold: int, batches: list[int], dwell: int) -> None:
    """The promise of the threshold, whatever came before."""
    steps = decisions(gate(threshold, min_dwell=dwell), batches)

    assert all(step == 0 for batch, step in zip(batches, steps, strict=True) if batch > threshold)


@given(threshold=thresholds, batches=loads, dwell=st.integers(1, 10))
def test_plain_periods_last_the_dwell(threshold: int, batches: list[int], dwell: int) -> None:
    """Every finished plain period is at least min_dwell steps long."""
    steps = decisions(gate(threshold, min_dwell=dwell), batches)
    runs = "".join("0" if step == 0 else "+" for step in steps).split("+")

    assert all(len(run) >= dwell for run in runs[:-1] if run)


@given(threshold=thresholds, low=st.integers(1, 40), batches=loads)
def test_resuming_happens_only_at_resume_at_or_below(threshold: int, low: int, batches: list[int]) -> None:
    """Hysteresis: a step that follows a plain one and speculates has a small batch."""
    resume_at = min(low, threshold)
    steps = decisions(gate(threshold, resume_at), batches)
    resumed = [b for b, before, now in zip(batches[1:], steps, steps[1:], strict=False) if before == 0 and now]

    assert all(batch <= resume_at for batch in resumed)


@given(batches=loads, threshold=st.one_of(st.none(), st.integers(0, 40)))
def test_ranks_that_see_the_same_batches_decide_alike(batches: list[int], threshold: int | None) -> None:
    """Nothing but the batches and the step count enters a decision."""
    assert decisions(gate(threshold, min_dwell=4), batches) == decisions(gate(threshold, min_dwell=4), batches)


LADDERS = [
    Policy(()),
    Policy.from_threshold(None),
    Policy.from_threshold(8, 5, 0),
    Policy((Rung(4, 3, 5), Rung(16, 12, 3), Rung(64, 48, 1)), 8),
    Policy((Rung(4, 3, 3, 2000), Rung(4, 3, 1), Rung(None, None, 0))),
]


@pytest.mark.parametrize("policy", LADDERS)
def test_a_policy_survives_the_wire(policy: Policy) -> None:
    """Whatever held before, the numbers name the same rule, id and all."""
    numbers = to_wire(policy)
    assert all(type(number) is int for number in numbers.values())

    for before in LADDERS:
        assert updated(before, numbers).policy_id == policy.policy_id


@pytest.mark.parametrize(
    "update",
    [
        {RUNGS_KEY: 1},
        {RUNGS_KEY: -2},
        {RUNGS_KEY: 10**9},
        {rung_key(1, "threshold"): 4},
        to_wire(LADDERS[3]) | {THRESHOLD_KEY: 4},
        to_wire(LADDERS[3]) | {rung_key(4, "threshold"): 99},
        to_wire(LADDERS[3]) | {rung_key(1, "threshold"): 20},
    ],
)
def test_half_a_ladder_is_refused(update: dict[str, int]) -> None:
    """A rung that is missing, of no ladder, beside a threshold, or below the one before it."""
    with pytest.raises(ValueError, match="rung"):
        updated(Policy.from_threshold(8), update)


def test_more_rungs_than_the_wire_has_cannot_be_set() -> None:
    """Nine bands are refused, not cut off."""
    with pytest.raises(ValueError, match="9 rungs; at most 8"):
        to_wire(Policy(tuple(Rung(n, n, n) for n in range(1, 10))))
