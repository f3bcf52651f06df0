"""Plain steps that replay captured graphs, and batches beyond the largest of them.

On a CPU a graph is the recorded function, run again: it shows that the runner is built, chosen, padded and fed as it
should be. Memory, streams and events are a GPU's.
"""

from __future__ import annotations

from tests.sglang_cpu.machines import LARGEST_CAPTURED
from tests.sglang_cpu.servers import MAX_RUNNING_REQUESTS, Json
from tests.sglang_cpu.slot import Patched
from tests.sglang_cpu.traffic import Answer, answers, differences, streams

STREAMS = 12
CAPTURING = ("Capture cuda graph", "Capturing batches", "CUDA graph begin", "cuda graph begin")


def _plain_steps(state: Json) -> tuple[int, int]:
    """Plain steps of batches that a graph was captured for, and of larger ones."""
    rows = [row for row in state["by_batch"] if row["state"] == "off"]
    small = sum(row["steps"] for row in rows if row["batch"] <= LARGEST_CAPTURED)
    return small, sum(row["steps"] for row in rows) - small


def test_every_plain_step_that_fits_replays_a_graph(graphed: Patched, reference: dict[str, list[Answer]]) -> None:
    """Threshold 0, all requests at once, so that batches fall from the largest through every captured size."""
    graphed.set_policy(0)
    before = graphed.state()
    texts = [request["text"] for request in streams()[:MAX_RUNNING_REQUESTS]]
    parameters = [request["sampling_params"] for request in streams()[:MAX_RUNNING_REQUESTS]]

    replies = graphed.server.generate(text=texts, sampling_params=parameters)

    assert differences(answers(replies), reference["streams"][:MAX_RUNNING_REQUESTS]) == []
    after = graphed.state()
    fitted, larger = (now - then for now, then in zip(_plain_steps(after), _plain_steps(before), strict=True))
    assert min(fitted, larger) > 5
    assert after["off_graph_steps"] - before["off_graph_steps"] == fitted


def test_graphs_are_swapped_at_every_switch(graphed: Patched, reference: dict[str, list[Answer]]) -> None:
    """Off and on in turn, two requests at once: plain steps still replay their graph, and the tokens are right."""
    graphed.probe(force=1)
    before = graphed.state()

    replies = graphed.server.generate_all(streams()[:STREAMS], at_once=2)

    assert differences(answers(replies), reference["streams"][:STREAMS]) == []
    after = graphed.state()
    off = after["steps_off"] - before["steps_off"]
    assert off > 40
    assert after["off_graph_steps"] - before["off_graph_steps"] == off


def test_nothing_is_captured_while_serving(graphed: Patched) -> None:
    """A switch does not make SGLang capture graphs again: after all that was served, the log shows none since start."""
    later = graphed.server.log_since_start()

    assert [line for line in later.splitlines() if any(words in line for words in CAPTURING)] == []
