"""The autopilot on synthetic streams: it finds the pivot, follows it, stays put, and obeys."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from patched_worker.autopilot import KEYS, MAX_KEY, MIN_KEY, MODE_KEY, TICK_STEPS, Autopilot, Mode, Order
from patched_worker.autopilot_decide import Bounds
from patched_worker.policy import Policy
from tests.patched_worker.streams import DRAFTS, PIVOT, Machine, around


def _always(size: int) -> Callable[[int], int]:
    return lambda _: size


def pilot(threshold: int = 32, order: Order | None = None) -> Autopilot:
    """An autopilot that starts at a threshold."""
    return Autopilot(DRAFTS, Policy.from_threshold(threshold), order)


@pytest.mark.parametrize("start", [4, 256])
def test_a_wrong_threshold_is_corrected(start: int) -> None:
    """From far below and far above to within a sixth of the pivot, in minutes of traffic."""
    ours = pilot(start)
    Machine(ours).run(40_000, around(PIVOT))

    assert PIVOT / 1.17 < ours.plan.threshold < PIVOT * 1.17
    assert ours.policy.threshold == ours.plan.threshold


def test_nothing_changes_nothing_moves() -> None:
    """After it has settled, 150 000 steps of the same traffic bring no move."""
    ours = pilot()
    machine = Machine(ours)
    machine.run(30_000, around(PIVOT))
    moved = ours.moved
    machine.run(150_000, around(PIVOT, seed=1))

    assert ours.moved == moved
    assert ours.flipped_steps / ours.steps < 0.04


@pytest.mark.parametrize(("accept_len", "up"), [(1.6, False), (2.6, True)])
def test_it_follows_acceptance_within_a_minute(accept_len: float, up: bool) -> None:
    """Worse drafts move the threshold down, better ones up, however sure it was of the old one."""
    ours = pilot()
    machine = Machine(ours)
    machine.run(30_000, around(PIVOT))
    before, started_s = ours.plan.threshold, ours.evidence.now_s
    machine.accept_len = accept_len
    while ours.plan.threshold == before and ours.evidence.now_s < started_s + 120:
        machine.run(TICK_STEPS, around(PIVOT, seed=2))

    assert (ours.plan.threshold > before) == up
    assert ours.evidence.now_s - started_s < 60


def test_it_follows_the_machine_too() -> None:
    """Speculative steps that become 20 % dearer move the threshold down."""
    ours = pilot()
    machine = Machine(ours)
    machine.run(30_000, around(PIVOT))
    before = ours.plan.threshold
    machine.run(20_000, around(PIVOT, seed=2), on_factor=1.2)

    assert ours.plan.threshold < before


def test_it_loses_little_to_knowing_everything() -> None:
    """Measuring included, at least 97 % of what the right state at every step brings."""
    ours = pilot()
    machine = Machine(ours)
    machine.run(30_000, around(PIVOT))
    tokens, seconds = machine.tokens, machine.seconds
    machine.run(30_000, around(PIVOT, seed=1))
    perfect = Machine(Autopilot(DRAFTS, Policy.from_threshold(PIVOT), Order(Mode.HELD)))
    perfect.run(30_000, around(PIVOT, seed=1))

    share = (machine.tokens - tokens) / (machine.seconds - seconds) / (perfect.tokens / perfect.seconds)
    assert share > 0.97


def test_without_traffic_at_other_batches_it_stays_near_what_it_knows() -> None:
    """A steady batch of 8, where speculation gains, says nothing of 256: it goes half an octave beyond, no farther."""
    ours = pilot(4)
    Machine(ours).run(10_000, lambda _: 8)

    assert 8 <= ours.plan.threshold <= 12


def test_a_lone_user_keeps_speculation_unless_it_is_clearly_worse() -> None:
    """Equal on both sides is no reason to give it up; half as fast is."""
    ours = pilot(1)
    Machine(ours, accept_len=1.4).run(20_000, lambda _: 1, on_factor=1.4 * 0.00503 / 0.00712)
    assert ours.plan.threshold == 1

    ours = pilot(1)
    Machine(ours, accept_len=1.4).run(20_000, lambda _: 1, on_factor=2.0)
    assert ours.plan.threshold == 0


def test_it_comes_back_from_never() -> None:
    """At threshold 0 it still looks, so better drafts are noticed."""
    ours = pilot(0)
    Machine(ours, accept_len=2.8).run(10_000, around(16))

    assert ours.plan.threshold >= 16


def test_bounds_hold() -> None:
    """The operator's limits, whatever the evidence says."""
    low, high = pilot(256, Order(bounds=Bounds(80, None))), pilot(4, Order(bounds=Bounds(0, 20)))
    for ours in (low, high):
        Machine(ours).run(20_000, around(PIVOT))

    assert low.plan.threshold == 80
    assert high.plan.threshold == 20


def test_new_bounds_take_effect_at_the_next_look() -> None:
    """Narrower ones move the threshold, and the log says that it was the bounds."""
    ours = pilot()
    machine = Machine(ours)
    machine.run(30_000, around(PIVOT))
    ours.command(Order(bounds=Bounds(0, 10)))
    machine.run(2 * TICK_STEPS, around(PIVOT))

    assert ours.policy.threshold == 10
    assert "bounds" in ours.moves[-1].reason


def test_every_move_has_its_reason_in_words() -> None:
    """What was measured, where, and how sure it is."""
    ours = pilot(256)
    Machine(ours).run(20_000, around(PIVOT))
    reason = ours.moves[-1].reason

    assert "speculation costs" in reason
    assert "standard error" in reason
    assert "pivot lies" in reason


def test_dry_run_measures_and_notes_but_leaves_the_threshold() -> None:
    """The policy is the operator's, the log says what would have been."""
    ours = pilot(4, Order(Mode.DRY_RUN))
    Machine(ours).run(20_000, around(PIVOT))

    assert ours.policy.threshold == 4
    assert ours.moves[-1].dry_run
    assert ours.plan.threshold > 30


def test_held_neither_flips_nor_moves_and_remembers() -> None:
    """The operator's threshold stands; what was learned is there when tuning resumes."""
    ours = pilot()
    machine = Machine(ours)
    machine.run(30_000, around(PIVOT))
    ours.hold(Policy.from_threshold(7))
    flipped, comparisons = ours.flipped_steps, ours.evidence.triples
    machine.run(10_000, around(PIVOT))
    assert (ours.policy.threshold, ours.flipped_steps) == (7, flipped)

    ours.command(Order())
    machine.run(3 * TICK_STEPS, around(PIVOT))
    assert ours.policy.threshold is not None
    assert ours.policy.threshold > 40
    assert ours.evidence.triples < comparisons + 30


@pytest.mark.parametrize("dwell", [0, 5])
def test_the_operators_dwell_stays(dwell: int) -> None:
    """Also none at all, through every move; one that is set later takes its place when tuning resumes."""
    ours = Autopilot(DRAFTS, Policy.from_threshold(256, min_dwell=dwell))
    assert ours.policy.min_dwell == dwell
    Machine(ours).run(20_000, around(PIVOT))
    assert ours.moved
    assert ours.policy.min_dwell == dwell

    ours.hold(Policy.from_threshold(7, min_dwell=dwell + 3))
    ours.command(Order())
    assert ours.policy.min_dwell == dwell + 3


def test_ranks_decide_alike_though_their_clocks_differ() -> None:
    """One leads, the others take over its plan at the same step; what they measured themselves does not matter."""
    told: list[list[int]] = []

    def lead(numbers: list[int]) -> list[int]:
        told.append(numbers)
        return numbers

    leader = Autopilot(DRAFTS, Policy.from_threshold(256), exchange=lead)
    follower = Autopilot(
        DRAFTS,
        Policy.from_threshold(256),
        exchange=lambda numbers: told[follower.steps // TICK_STEPS - 1],
        leading=False,
    )
    machine, batches = Machine(leader), around(PIVOT)
    decided = []
    for index in range(20_000):
        machine.run(1, _always(batches(index)))
        decided.append((leader.flipped, leader.policy.threshold))
    machine_too = [(follower.decide(batches(i), 0), follower.flipped, follower.policy.threshold) for i in range(20_000)]

    assert [(flipped, threshold) for _, flipped, threshold in machine_too] == decided
    assert len(told) == 20_000 // TICK_STEPS - (20_000 % TICK_STEPS == 0)
    assert follower.evidence.triples == 0
    assert leader.policy.policy_id == follower.policy.policy_id


def test_the_block_in_server_info_is_plain_json() -> None:
    """Bounds, threshold, interval, evidence and the last moves."""
    import json

    ours = pilot(256, Order(bounds=Bounds(1, None)))
    assert json.loads(json.dumps(ours.snapshot()))["interval"] == [None, None]
    Machine(ours).run(20_000, around(PIVOT))
    found = json.loads(json.dumps(ours.snapshot(), allow_nan=False))

    assert found["state"] == "auto"
    assert found["bounds"] == [1, None]
    assert found["interval"][0] < found["pivot"] < found["interval"][1]
    assert found["moves"][-1]["new"] == found["threshold"]
    assert found["evidence"]["accept_len"] == pytest.approx(2.0, abs=0.05)
    assert {row["batch"] for row in found["evidence"]["by_batch"]}


def test_orders_on_the_wire_are_numbers() -> None:
    """Mode and bounds; -1 takes the upper bound away."""
    order = Order().updated({MODE_KEY: 2, MIN_KEY: 4.0, MAX_KEY: 64})
    assert order == Order(Mode.DRY_RUN, Bounds(4, 64))
    assert order.updated({MAX_KEY: -1}).bounds == Bounds(4, None)
    assert {MODE_KEY, MIN_KEY, MAX_KEY} == KEYS


@pytest.mark.parametrize(
    "update", [{MODE_KEY: 3}, {MODE_KEY: "auto"}, {MIN_KEY: -1}, {MIN_KEY: 9, MAX_KEY: 8}, {MAX_KEY: 1.5}]
)
def test_orders_that_make_no_sense_are_refused(update: dict[str, object]) -> None:
    """With the key and the value."""
    with pytest.raises(ValueError, match="give"):
        Order().updated(update)
