"""What is believed of a server: pure, from one look to the next."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.service.answers import Server
from tuner.service.look import MISSES, Seen, Told, judged, unseen

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
AUTO = {"state": "auto", "bounds": [0, None], "steps": 5, "moves": []}
FIELDS = ("worker", "threshold", "resume_at", "min_dwell", "policy_id", "steps_on", "steps_off", "switches", "by_batch")


def info(
    on: dict[int, tuple[int, int]] | None = None, off: dict[int, tuple[int, int]] | None = None, **changes: Any
) -> dict[str, Any]:
    """A patched server's /server_info: steps and tokens by batch, and whatever else is changed in its block."""
    counts = {"on": on or {}, "off": off or {}}
    rows = [
        {"batch": batch, "state": state, "steps": steps, "tokens": tokens, "seconds": 0.01 * steps}
        for state, by_batch in counts.items()
        for batch, (steps, tokens) in by_batch.items()
    ]
    totals = {f"steps_{state}": sum(steps for steps, _ in counts[state].values()) for state in counts}
    block = {"worker": "EAGLEWorkerV2", "threshold": 4, "resume_at": 3, "min_dwell": 16, "policy_id": "p"}
    block |= {"last_error": None, "switches": 2, "ungated": 0, "by_batch": rows, "ranks_agree": True}
    return {"version": "0.5.16", "random_seed": 1, "internal_states": [{"specpivot": block | totals | changes}]}


def after(*looks: Seen, job: str | None = None) -> Server:
    """What is believed after these looks, a second apart."""
    told = unseen("box", "http://127.0.0.1:1", 0.0)
    for seconds, seen in enumerate(looks, start=1):
        told = judged(told, seen, job, float(seconds))
    return told.server


def seen(document: dict[str, Any] | None, at_s: float = 0.0, samples: dict[str, float] | None = None) -> Seen:
    """A look at a server that answered."""
    return Seen(at_s, True, document, samples=samples)


def test_figures_are_of_the_time_between_two_looks() -> None:
    """Batch, state, accept length and rate from what the counters gained; nothing of it at the first look."""
    first = info(on={1: (100, 280)})
    second = info(on={1: (110, 308), 4: (10, 112)}, off={8: (5, 40)})
    server = after(seen(first, 10.0), seen(second, 12.0))
    assert (server.state, server.since_s, server.problem, server.worker) == ("up", 1.0, None, "EAGLEWorkerV2")
    assert (server.threshold, server.resume_at, server.min_dwell, server.switches) == (4, 3, 16, 2)
    assert (server.steps_on, server.steps_off, server.ungated) == (120, 5, 0)
    assert server.batch == pytest.approx((10 * 1 + 10 * 4 + 5 * 8) / 25)
    assert server.speculating is True
    assert server.accept_len == pytest.approx((28 + 112) / (10 + 40))
    assert server.tok_per_s == pytest.approx((28 + 112 + 40) / 2.0)
    alone = after(seen(first, 10.0))
    assert (alone.batch, alone.speculating, alone.accept_len, alone.tok_per_s) == (None, None, None, None)


def test_an_idle_server_neither_speculates_nor_not() -> None:
    """No step between two looks: batch 0, and no state."""
    server = after(seen(info(on={1: (1, 3)}), 1.0), seen(info(on={1: (1, 3)}), 2.0))
    assert (server.batch, server.speculating, server.tok_per_s) == (0.0, None, 0.0)


def test_a_server_that_never_disables_has_no_threshold() -> None:
    """Whether it says so in the worker's word or the wire's."""
    for never in (None, -1):
        server = after(seen(info(on={9: (1, 3)}, threshold=never, resume_at=None)))
        assert (server.state, server.threshold, server.resume_at, server.steps_on) == ("up", None, None, 1)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"threshold": "4"}, "specpivot block cannot be true"),
        ({"threshold": -2}, "specpivot block cannot be true"),
        ({"threshold": 10**30}, "specpivot block cannot be true"),
        ({"steps_on": -1}, "specpivot block cannot be true"),
        ({"by_batch": {}}, "specpivot block cannot be true"),
        ({"by_batch": [{"batch": 0, "state": "on", "steps": 3, "tokens": 1, "seconds": 0}]}, "cannot be true"),
        ({"worker": "x" * 1000}, "specpivot block cannot be true"),
        ({"autopilot": AUTO | {"state": "asleep"}}, "specpivot block cannot be true"),
        ({"steps_on": 5}, "counts 5 steps on, but 3 by batch"),
    ],
)
def test_what_cannot_be_makes_a_liar(changes: dict[str, Any], why: str) -> None:
    """Its figures are not shown; the reason is."""
    server = after(seen(info(on={1: (3, 9)}, **changes)))
    assert server.state == "lying"
    assert why in str(server.problem)
    assert (server.threshold, server.steps_on, server.worker) == (None, None, None)


def test_steps_that_contradict_the_threshold_make_a_liar() -> None:
    """Unless the policy changed meanwhile, is a ladder, or an autopilot tries what it would not do."""
    first, more = info(on={1: (1, 3)}), {1: (1, 3), 8: (5, 80)}
    server = after(seen(first, 1.0), seen(info(on=more), 2.0))
    assert (server.state, server.problem) == (
        "lying",
        "it says threshold 4, but 5 steps speculated with a larger batch",
    )
    for change in ({"policy_id": "q"}, {"rungs": [{}, {}]}, {"autopilot": AUTO}):
        assert after(seen(first, 1.0), seen(info(on=more, **change), 2.0)).state == "up", change
    assert after(seen(first, 1.0), seen(info(on=more, autopilot=AUTO | {"state": "held"}), 2.0)).state == "lying"


def test_a_restarted_server_is_no_liar() -> None:
    """Counters that ran backwards, or another process: the figures begin anew."""
    first = info(on={1: (100, 280)})
    for second in (info(on={1: (2, 5)}), info(on={9: (500, 9000)}) | {"random_seed": 2}):
        server = after(seen(first, 1.0), seen(second, 2.0))
        assert (server.state, server.batch, server.tok_per_s) == ("up", None, None)


def test_what_a_worker_complains_of_is_shown() -> None:
    """Its last error, and ranks that disagree."""
    assert after(seen(info(last_error="a\nb"))).problem == "a b"
    assert after(seen(info(ranks_agree=False))).problem == "its tensor-parallel ranks disagree"


def test_down_and_up_again() -> None:
    """`since_s` is when the state changed, not when it was seen last."""
    down, up = Seen(0.0, False), seen(info())
    assert (after(down).state, after(down).problem) == ("down", "it does not answer")
    assert (after(up, up, up).since_s, after(up, down, down).since_s, after(up, down, down, up).since_s) == (1, 2, 4)
    assert after(up, down).threshold is None


def test_a_server_without_server_info_lacks_it() -> None:
    """At once where it never had it; where it had, only after some looks: a busy scheduler answers late."""
    without = seen(None)
    assert (after(without).state, after(without).problem) == (
        "lacking",
        "it answers, but has no JSON at /server_info",
    )
    states = [after(seen(info()), *[without] * n).state for n in range(MISSES + 1)]
    assert states == ["up"] * MISSES + ["lacking"]
    assert after(seen(info()), without, seen(info()), without).state == "up"


def test_a_server_that_is_measured_is_left_alone() -> None:
    """Only its health is known then; the figures are those from before, and it is shown whose job it is."""
    quiet = Seen(5.0, True, asked=False)
    server = after(seen(info(on={1: (3, 9)})), quiet, job="j1")
    assert (server.state, server.steps_on, server.job) == ("up", 3, "j1")
    assert after(quiet, job="j1").state == "up"
    assert after(seen(info()), Seen(5.0, False, asked=False), job="j1").state == "down"


def test_what_a_job_did_is_not_taken_for_what_came_after_it() -> None:
    """A job may set other policies and end with the one before it: the first look afterwards compares with nothing."""
    quiet, without = Seen(2.0, True, asked=False), seen(None)
    first, ended = seen(info(on={1: (1, 3)}), 1.0), seen(info(on={1: (1, 3), 8: (5, 80)}), 60.0)
    server = after(first, quiet, ended)
    assert (server.state, server.steps_on, server.batch, server.tok_per_s) == ("up", 6, None, None)
    next_one = after(first, quiet, ended, seen(info(on={1: (3, 9), 8: (5, 80)}), 62.0))
    assert (next_one.state, next_one.batch, next_one.tok_per_s) == ("up", 1.0, 3.0)
    states = [after(first, quiet, *[without] * n).state for n in range(MISSES + 1)]
    assert states == ["up"] * MISSES + ["lacking"]


def test_a_server_that_is_not_patched_is_read_from_its_metrics() -> None:
    """Running requests, generated tokens, and whether it speculates at all."""
    plain = {"version": "0.5.16", "speculative_algorithm": None}
    eagle = {"version": "0.5.16", "speculative_algorithm": "EAGLE3"}
    samples = [{"sglang:num_running_reqs": 3.0, "sglang:generation_tokens_total": n} for n in (10.0, 50.0)]
    server = after(seen(plain, 1.0, samples[0]), seen(plain, 3.0, samples[1]))
    assert (server.state, server.worker, server.batch, server.speculating) == ("up", "none", 3.0, False)
    assert (server.tok_per_s, server.threshold, server.steps_on) == (20.0, None, None)
    accepts = samples[0] | {"sglang:spec_accept_length": 2.5}
    assert after(seen(eagle, 1.0, accepts)).accept_len == 2.5
    assert after(seen(eagle, 1.0, accepts)).speculating is True
    assert after(seen(eagle, 1.0)).batch is None


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4), st.dictionaries(st.text(max_size=8), JSON, max_size=3)
)
def test_whatever_a_server_says_is_judged(changes: dict[str, Any], more: dict[str, Any]) -> None:
    """Any JSON leads to a state, and to an answer that can be written as JSON."""
    told: Told = unseen("box", "http://127.0.0.1:1", 0.0)
    for document in (info(on={1: (3, 9)}), info(on={1: (4, 12)}, **changes) | more, more):
        told = judged(told, seen(document, 1.0), None, 1.0)
        assert told.server.state in ("up", "lying")
        msgspec.json.encode(told.server)
