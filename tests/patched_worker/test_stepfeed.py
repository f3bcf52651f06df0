"""Steps become records when time and tokens are known, in order."""

from __future__ import annotations

from patched_worker.stepfeed import OPEN_STEPS, StepFeed
from patched_worker.steptrace import StepRecord


def test_a_step_waits_for_its_time_and_its_tokens() -> None:
    """With the overlap scheduler tokens come one step late."""
    seen: list[StepRecord] = []
    feed = StepFeed([seen.append])
    first = feed.begin(4, 400, False, 0.0)
    first.seconds, first.drafts = 0.01, 3
    second = feed.begin(5, 500, True, 0.01)
    assert seen == []
    first.tokens = 9
    second.seconds, second.tokens = 0.02, 5
    feed.begin(5, 505, False, 0.03)

    assert seen == [
        StepRecord(4, 400, 3, False, True, 9, 0.01, 0.0),
        StepRecord(5, 500, 0, True, False, 5, 0.02, 0.0),
    ]


def test_prefills_between_steps_are_timed() -> None:
    """From the first of them to the next step, with the requests of all: a prompt in three chunks is one request."""
    feed = StepFeed([])
    feed.begin(4, 0, False, 0.0)
    feed.prefill(1.0, 2)
    feed.prefill(1.25, 1)
    feed.prefill(1.5, 3)
    steps = [feed.begin(5, 0, False, now_s) for now_s in (2.25, 3.0)]

    assert [(step.prefill_s, step.joined) for step in steps] == [(1.25, 4), (0.0, 0)]


def test_idleness_is_marked_and_no_prefill() -> None:
    """What ran before it says nothing of what comes."""
    feed = StepFeed([])
    feed.begin(4, 0, False, 0.0)
    feed.prefill(1.0, 1)
    feed.idle()
    step = feed.begin(4, 0, False, 9.0)

    assert (step.after_idle, step.prefill_s, step.joined) == (True, 0.0, 0)


def test_a_step_without_tokens_does_not_hold_up_the_others() -> None:
    """Its requests were retracted before their tokens were counted."""
    seen: list[StepRecord] = []
    feed = StepFeed([seen.append])
    feed.begin(1, 0, False, 0.0).seconds = 1.0  # no tokens, ever
    for batch in range(2, OPEN_STEPS + 4):
        step = feed.begin(batch, 0, False, 0.0)
        step.seconds, step.tokens = 1.0, batch

    assert [record.batch for record in seen][:2] == [2, 3]
