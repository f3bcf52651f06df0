"""Speculation off, on, and back again, against a server that never speculates: token by token."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.sglang_cpu.machines import Machine
from tests.sglang_cpu.servers import MAX_RUNNING_REQUESTS, Json
from tests.sglang_cpu.slot import Patched
from tests.sglang_cpu.traffic import Answer, answers, differences, streams


def _window(patched: Patched, before: Json) -> tuple[Json, dict[tuple[int, str], int]]:
    """Counters since `before`: on, off, switches, and steps by (batch, state)."""
    after = patched.state()
    steps = {(row["batch"], row["state"]): row["steps"] for row in after["by_batch"]}
    for row in before["by_batch"]:
        steps[row["batch"], row["state"]] -= row["steps"]
    totals = {name: after[name] - before[name] for name in ("steps_on", "steps_off", "switches")}
    return totals, {key: count for key, count in steps.items() if count}


AT_ONCE = pytest.mark.parametrize("at_once", [MAX_RUNNING_REQUESTS, pytest.param(2, marks=pytest.mark.only_full)])


@AT_ONCE
def test_always_off_equals_the_baseline(
    patched: Patched, reference: dict[str, list[Answer]], at_once: int, machine: Machine
) -> None:
    """Threshold 0: every decode step is a plain one, and the tokens are the baseline's."""
    patched.set_policy(0)
    before = patched.state()

    replies = patched.server.generate_all(streams(), at_once)

    assert differences(answers(replies), reference["streams"]) == []
    totals, steps = _window(patched, before)
    assert totals["steps_on"] == 0
    assert totals["steps_off"] > 0
    # a request may end before the last one has come, but the batch must have gone beyond its graphs
    least = min(at_once, machine.largest_graph + 1 if machine.largest_graph else MAX_RUNNING_REQUESTS // 2)
    assert least <= max(batch for batch, _ in steps) <= at_once


def test_never_off_is_static_eagle(reference: dict[str, list[Answer]], accepted: list[float], patched: Patched) -> None:
    """Never disabled: every step speculates; tokens are the baseline's, acceptance is static EAGLE-3's per request."""
    before = patched.state()

    replies = patched.server.generate_all(streams())

    assert differences(answers(replies), reference["streams"]) == []
    assert [reply["meta_info"]["spec_accept_length"] for reply in replies] == accepted
    totals, _ = _window(patched, before)
    assert (totals["steps_off"], totals["switches"]) == (0, 0)


@pytest.mark.parametrize("threshold", [4, pytest.param(9, marks=pytest.mark.only_full)])
def test_crossing_the_threshold(patched: Patched, reference: dict[str, list[Answer]], threshold: int) -> None:
    """Streams of mixed length join and leave: steps above the threshold are plain, the others speculate."""
    patched.set_policy(threshold, resume_at=threshold)
    before = patched.state()

    replies = patched.server.generate_all(streams())

    assert differences(answers(replies), reference["streams"]) == []
    _, steps = _window(patched, before)
    assert {state for batch, state in steps if batch > threshold} == {"off"}
    assert {state for batch, state in steps if batch <= threshold} == {"on"}


@AT_ONCE
@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.only_full)])
def test_switching_every_few_steps(
    patched: Patched, reference: dict[str, list[Answer]], every: int, at_once: int
) -> None:
    """Forced switches in the middle of every request: they leave no trace in the tokens."""
    patched.probe(force=every)
    before = patched.state()

    replies = patched.server.generate_all(streams(), at_once)

    assert differences(answers(replies), reference["streams"]) == []
    totals, _ = _window(patched, before)
    assert totals["switches"] >= 12
    assert abs(totals["steps_on"] - totals["steps_off"]) <= every + 1


def test_hovering_around_the_threshold(patched: Patched, reference: dict[str, list[Answer]]) -> None:
    """Few streams at once, so that the batch crosses a threshold again and again."""
    patched.set_policy(3, resume_at=3)
    before = patched.state()

    replies = patched.server.generate_all(streams(), at_once=4)

    assert differences(answers(replies), reference["streams"]) == []
    totals, _ = _window(patched, before)
    assert totals["switches"] >= 8


def test_a_threshold_that_never_rests(patched: Patched, reference: dict[str, list[Answer]]) -> None:
    """A new one as often as the server takes them, a hundred a second at most: no trace in the tokens, no slot lost."""
    patched.server.flush()
    free, before = patched.server.internal_state()["probe_free_kv_slots"], patched.state()
    over, numbers, taken = threading.Event(), random.Random(1), list[object]()

    def flip() -> None:
        while not over.wait(0.01):
            update = {"speculative_disable_batch_threshold": numbers.choice((-1, 0, 1, 3, 6, 12))}
            taken.append(patched.server.post("/set_internal_state", {"server_args": update}))

    with ThreadPoolExecutor(1) as pool:
        flipping = pool.submit(flip)
        try:
            # How many thresholds fall into one round is the machine's affair.
            while len(taken) <= 20 or _window(patched, before)[0]["switches"] < 4:
                replies = patched.server.generate_all(streams())
                assert differences(answers(replies), reference["streams"]) == []
        finally:
            over.set()
        flipping.result()

    assert all(answer in ([True], True, [{"updated": True}]) for answer in taken)
    patched.server.flush()
    assert patched.server.internal_state()["probe_free_kv_slots"] == free
