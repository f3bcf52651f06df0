"""Counters that contradict the policy make a point unproven; those that agree do not."""

from __future__ import annotations

from typing import Any

import pytest

from harness.proof import (
    agreed_ranks,
    contradiction,
    identity,
    reported_arguments,
    steps_between,
    worker_of,
    wrong_worker,
)
from patched_worker.policy import Policy

Histogram = dict[tuple[int, str], int]


def block(by_batch: Histogram, threshold: int, switches: int = 0, **more: Any) -> dict[str, Any]:
    """A `specpivot` block with these steps."""
    rows = [
        {"batch": b, "state": state, "steps": steps, "tokens": b * steps, "seconds": 0.01 * steps}
        for (b, state), steps in by_batch.items()
    ]
    on = sum(steps for (_, state), steps in by_batch.items() if state == "on")
    off = sum(by_batch.values()) - on
    counters = {"steps_on": on, "steps_off": off, "switches": switches, "ungated": 0, "ranks_agree": True}
    return {"threshold": threshold, "by_batch": rows, **counters, **more}


def verdict(by_batch: Histogram, threshold: int | None, switches: int = 0, **more: Any) -> str | None:
    """The contradiction of a window with these steps under this threshold."""
    wire = -1 if threshold is None else threshold
    after = block(by_batch, wire, switches, **more)
    return contradiction(steps_between(block({}, wire), after), after, Policy.from_threshold(threshold))


@pytest.mark.parametrize(
    ("by_batch", "threshold", "switches"),
    [
        ({(4, "on"): 90, (9, "off"): 50}, 8, 1),
        ({(8, "on"): 90}, 8, 0),
        ({(9, "off"): 50}, 8, 0),
        ({(9, "off"): 50, (7, "off"): 400, (6, "off"): 10, (5, "on"): 80}, 8, 1),
        ({(1, "off"): 50, (64, "off"): 50}, 0, 0),
        ({(1, "on"): 50, (64, "on"): 50}, None, 0),
    ],
)
def test_a_policy_at_work_is_proven(by_batch: Histogram, threshold: int | None, switches: int) -> None:
    """Off above the threshold, on below it, off within hysteresis and dwell after an overload."""
    assert verdict(by_batch, threshold, switches) is None


@pytest.mark.parametrize(
    ("by_batch", "threshold", "message"),
    [
        ({(9, "on"): 1}, 8, "speculated with a batch above 8"),
        ({(4, "off"): 5}, 8, "never exceeded 8"),
        ({(9, "off"): 5, (2, "off"): 500}, 8, "longer than the dwell"),
        ({(1, "on"): 1}, 0, "above 0"),
        ({(1, "off"): 1}, None, "never disabled"),
        ({}, 8, "counted no decode step"),
    ],
)
def test_a_contradiction_is_named(by_batch: Histogram, threshold: int | None, message: str) -> None:
    """Each way in which the wrong class, or none, was patched shows."""
    assert message in str(verdict(by_batch, threshold))


@pytest.mark.parametrize(
    ("more", "message"),
    [({"ungated": 3}, "passed the gate by"), ({"ranks_agree": False}, "ranks disagree")],
)
def test_the_worker_s_own_alarms_count(more: dict[str, Any], message: str) -> None:
    """Ungated steps and disagreeing ranks are contradictions."""
    assert message in str(verdict({(4, "on"): 9}, 8, **more))


def test_another_threshold_than_was_set_is_noticed() -> None:
    """The policy in force is the one that the worker reports."""
    after = block({(4, "on"): 9}, 9)
    assert "not 8" in str(contradiction(steps_between(block({}, 9), after), after, Policy.from_threshold(8)))


def test_a_restarted_worker_is_noticed() -> None:
    """Counters that run backwards prove nothing."""
    with pytest.raises(ValueError, match="backwards"):
        steps_between(block({(4, "on"): 9}, 8), block({(4, "on"): 3}, 8))


def test_malformed_counters_are_noticed() -> None:
    """A lying server is not believed, and no traceback follows."""
    with pytest.raises(ValueError, match="malformed"):
        steps_between(block({}, 8), {"steps_on": "many"})


@pytest.mark.parametrize(
    ("info", "worker"),
    [
        ({"speculative_algorithm": None}, ("none", "inferred")),
        (
            {"speculative_algorithm": "EAGLE3", "disable_overlap_schedule": True, "version": "0.5.12.post1"},
            "EAGLEWorker",
        ),
        ({"speculative_algorithm": "EAGLE3", "disable_overlap_schedule": False, "version": "0.5.9"}, "EAGLEWorkerV2"),
        ({"speculative_algorithm": "EAGLE3", "disable_overlap_schedule": True, "version": "0.5.16"}, "EAGLEWorkerV2"),
        ({"internal_states": [{"specpivot": {"worker": "EAGLEWorker"}}]}, ("EAGLEWorker", "reported")),
        (
            {"internal_states": [{"specpivot": {"worker": "sglang.srt.speculative.eagle_worker_v2.EAGLEWorkerV2"}}]},
            ("EAGLEWorkerV2", "reported"),
        ),
        (None, ("", "unknown")),
    ],
)
def test_worker_class(info: dict[str, Any] | None, worker: Any) -> None:
    """A patched server reports its class; a stock one's follows from version and scheduler."""
    expected = worker if isinstance(worker, tuple) else (worker, "inferred")
    assert worker_of(info) == expected


def test_the_wrong_generation_is_a_complaint() -> None:
    """Asked for v1 and got v2, as it once happened."""
    assert "runs EAGLEWorkerV2" in str(wrong_worker("v1", "EAGLEWorkerV2"))
    assert wrong_worker("v1", "EAGLEWorker") is None
    assert wrong_worker("auto", "EAGLEWorkerV2") is None


def test_identity_changes_with_the_process_only() -> None:
    """Counters may move; another seed (drawn at each start) or model is another server."""
    info = {"model_path": "m", "random_seed": 1, "internal_states": [{"last_gen_throughput": 3.0}]}
    assert identity(info) == identity(info | {"internal_states": []})
    assert identity(info) != identity(info | {"random_seed": 2})
    assert identity(info) != identity(info | {"model_path": "n"})


def test_reported_arguments_take_the_effective_limit() -> None:
    """max_running_requests is what the scheduler uses, not what was asked."""
    info = {"max_running_requests": None, "internal_states": [{"effective_max_running_requests_per_dp": 48}]}
    assert reported_arguments(info)["max_running_requests"] == 48


def test_accept_length_is_of_the_steps_that_speculated() -> None:
    """Two requests for ten verify steps with 56 tokens are 2.8; plain steps do not count."""
    after = block({(2, "on"): 10, (9, "off"): 50}, 8, 1)
    after["by_batch"][0]["tokens"] = 56
    assert steps_between(block({}, 8), after).accept_len == pytest.approx(2.8)
    assert steps_between(block({}, 8), block({(9, "off"): 50}, 8)).accept_len is None


def test_ranks_count_where_they_compared_and_agreed() -> None:
    """A report that does not say how many compared, or that they differ, shows nothing of ranks."""
    assert agreed_ranks(block({}, 4, ranks=2)) == 2
    assert agreed_ranks(block({}, 4, ranks=2, ranks_agree=False)) is None
    assert agreed_ranks(block({}, 4)) is None
    assert agreed_ranks(block({}, 4, ranks=True)) is None
    assert agreed_ranks(None) is None
