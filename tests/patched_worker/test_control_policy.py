"""The live policy: set, refused with a reason, and shown."""

from __future__ import annotations

import pytest

from patched_worker.control import Control
from patched_worker.policy import DWELL_KEY, RESUME_KEY, THRESHOLD_KEY, Policy, Rung, to_wire
from patched_worker.settings import Refusal
from tests.patched_worker.test_control import IDENTITY


def test_update_sets_the_live_policy(control: Control) -> None:
    """All three keys at once, as whole numbers of any numeric type."""
    policy = control.prepare({THRESHOLD_KEY: 8.0, RESUME_KEY: 5, DWELL_KEY: 2})
    assert policy is not None
    control.apply(policy)

    assert control.gate.policy == Policy.from_threshold(8, 5, 2)


def test_threshold_alone_takes_its_default_resume_and_keeps_the_dwell(control: Control) -> None:
    """The old resume value would make no sense for a new threshold."""
    assert control.prepare({THRESHOLD_KEY: 16}) == Policy.from_threshold(16, 12, 0)


def test_minus_one_never_disables_and_leaves_no_threshold(control: Control) -> None:
    """The wire has no null: newer releases take numbers only."""
    policy = control.prepare({THRESHOLD_KEY: -1})
    assert policy is not None
    control.apply(policy)

    assert control.snapshot()["threshold"] is None
    assert not control.begin(1000).off


@pytest.mark.parametrize(
    "update",
    [
        {THRESHOLD_KEY: -2},
        {THRESHOLD_KEY: 2.5},
        {THRESHOLD_KEY: "4"},
        {THRESHOLD_KEY: True},
        {RESUME_KEY: 5},
        {DWELL_KEY: -3},
        {"speculative_num_steps": 2},
        {THRESHOLD_KEY: float("inf")},
    ],
)
def test_a_refused_update_changes_nothing_and_says_why(control: Control, update: dict[str, object]) -> None:
    """The policy stays, and the reason names the key or the value."""
    before = control.gate.policy

    assert control.prepare(update) is None
    assert control.gate.policy == before
    assert "refused" in str(control.snapshot()["last_error"])


def test_a_ladder_is_set_in_numbers_and_shown(control: Control) -> None:
    """A band that is off below one that is on: two rungs, read back as they were sent."""
    ladder = Policy((Rung(2, 1, 0), Rung(8, 6)), 4)
    policy = control.prepare({key: float(value) for key, value in to_wire(ladder).items()})
    assert policy == ladder
    control.apply(policy)

    shown = control.snapshot()["rungs"]
    assert shown == [
        {"threshold": 2, "resume_at": 1, "num_steps": 0, "max_mean_context": None},
        {"threshold": 8, "resume_at": 6, "num_steps": None, "max_mean_context": None},
    ]
    assert [control.begin(batch).off for batch in (2, 8, 9)] == [True, False, True]


def test_draft_steps_that_the_server_does_not_have_are_refused(control: Control) -> None:
    """It drafts 3 steps or none: a rung of 1 would silently run 3; live it is refused, at start it ends the server."""
    other = Policy((Rung(2, 1, 3), Rung(8, 6, 1)))

    assert control.prepare(to_wire(other)) is None
    assert "drafts 3 steps or none" in str(control.last_error)
    with pytest.raises(Refusal, match=r"asks for \[1\]"):
        Control(other, 3, IDENTITY)


def test_accepting_an_update_clears_the_last_error(control: Control) -> None:
    """What is shown is the state now."""
    control.prepare({THRESHOLD_KEY: -2})
    policy = control.prepare({THRESHOLD_KEY: 2})
    assert policy is not None
    control.apply(policy)

    assert control.snapshot()["last_error"] is None
