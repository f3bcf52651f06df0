"""What only a GPU has: plain decode graphs beside the verify's, and batches beyond the largest of either."""

from __future__ import annotations

import pytest

from tests.sglang_cpu.machines import Machine
from tests.sglang_cpu.servers import MAX_RUNNING_REQUESTS, Json
from tests.sglang_cpu.slot import Patched
from tests.sglang_cpu.traffic import Answer, answers, differences, streams

pytestmark = pytest.mark.only_gpu
CAPTURING = ("Capture cuda graph", "Capturing batches", "CUDA graph begin", "cuda graph begin")


def _plain_steps(state: Json, largest: int) -> tuple[int, int]:
    """Plain steps of batches that a graph was captured for, and of larger ones."""
    rows = [row for row in state["by_batch"] if row["state"] == "off"]
    small = sum(row["steps"] for row in rows if row["batch"] <= largest)
    return small, sum(row["steps"] for row in rows) - small


def test_every_plain_step_that_fits_replays_a_graph(
    patched: Patched, reference: dict[str, list[Answer]], machine: Machine
) -> None:
    """Threshold 0, all requests at once, so that batches fall from the largest through every captured size."""
    patched.set_policy(0)
    before = patched.state()
    texts = [request["text"] for request in streams()[:MAX_RUNNING_REQUESTS]]
    parameters = [request["sampling_params"] for request in streams()[:MAX_RUNNING_REQUESTS]]

    replies = patched.server.generate(text=texts, sampling_params=parameters)

    assert differences(answers(replies), reference["streams"][:MAX_RUNNING_REQUESTS]) == []
    after = patched.state()
    fitted, larger = (
        now - then
        for now, then in zip(
            _plain_steps(after, machine.largest_graph), _plain_steps(before, machine.largest_graph), strict=True
        )
    )
    assert min(fitted, larger) > 5
    assert after["off_graph_steps"] - before["off_graph_steps"] == fitted


def test_graphs_are_swapped_at_every_switch(
    patched: Patched, reference: dict[str, list[Answer]], machine: Machine
) -> None:
    """Off and on in turn, two requests at once: plain steps still replay their graph, and the tokens are right."""
    patched.probe(force=1)
    before = patched.state()

    replies = patched.server.generate_all(streams(), at_once=2)

    assert differences(answers(replies), reference["streams"]) == []
    after = patched.state()
    off = after["steps_off"] - before["steps_off"]
    assert off > 100
    assert after["off_graph_steps"] - before["off_graph_steps"] == off


def test_nothing_is_captured_while_serving(patched: Patched) -> None:
    """A switch does not make SGLang capture graphs again: after all that was served, the log shows none since start."""
    later = patched.server.log_since_start()

    assert [line for line in later.splitlines() if any(words in line for words in CAPTURING)] == []
