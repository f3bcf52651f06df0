"""The probes report what ran, and tokens are those that clients get."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from patched_worker.control import Control, Identity
from patched_worker.policy import Policy
from patched_worker.probes import TokenCount, context_of, output_tokens, watch_draft, watch_target


def mode(decode: bool = False, verify: bool = False) -> SimpleNamespace:
    """A ForwardMode."""
    return SimpleNamespace(is_decode=lambda: decode, is_target_verify=lambda: verify)


def test_target_probe_counts_decode_forwards_only() -> None:
    """A prefill's tokens are not a decode step's; the forward's result passes through."""
    control = Control(Policy.from_threshold(4), 3, Identity("w", "m", "v", "h"))
    runner = SimpleNamespace(forward=lambda batch, scale=1: len(batch.input_ids) * scale)
    watch_target(runner, control)
    step = control.begin(2)

    runner.forward(SimpleNamespace(forward_mode=mode(), input_ids=[0] * 100))
    runner.forward(SimpleNamespace(forward_mode=mode(verify=True), input_ids=[0] * 8))
    answer = runner.forward(SimpleNamespace(forward_mode=mode(decode=True), input_ids=[0] * 2), scale=3)

    assert step.target_tokens == 10
    assert answer == 6


def test_draft_probe_counts_rounds_of_proposals() -> None:
    """Once per call, arguments and result as they are."""
    control = Control(Policy.from_threshold(4), 3, Identity("w", "m", "v", "h"))
    worker = SimpleNamespace(draft=lambda batch: batch + 1)
    watch_draft(worker, control)
    step = control.begin(2)

    assert worker.draft(1) == 2
    assert step.draft_calls == 1


def test_tokens_after_a_stop_do_not_count() -> None:
    """A verify may append tokens behind a stop that the client never sees; also when nothing is left."""
    running = SimpleNamespace(output_ids=[1, 2, 3], finished_len=None)
    stopped = SimpleNamespace(output_ids=[1, 2, 3, 4], finished_len=2)
    emptied = SimpleNamespace(output_ids=[1], finished_len=0)

    assert output_tokens([running, running]) == 6
    assert output_tokens([running, stopped, emptied]) == 5
    assert output_tokens([]) == 0


def test_token_count_follows_the_batch_as_requests_come_and_go() -> None:
    """Steps with the same requests, then one that has left and one that has joined with a prefill's token."""
    first, second, third = ([1], [1, 2], [9])
    reqs = [SimpleNamespace(output_ids=ids, finished_len=None) for ids in (first, second, third)]
    count = TokenCount()
    counted = []
    for running, appended in ((reqs[:2], 4), (reqs[:2], 1), (reqs[1:], 2)):
        count.before(running)
        running[-1].output_ids.extend([0] * appended)
        counted.append(count.after())

    assert counted == [4, 1, 2]


class Lengths(list[int]):
    """What is asked of a tensor of lengths."""

    def sum(self) -> int:
        return sum(iter(self))


def test_context_is_the_sum_of_the_lengths_where_the_host_has_them() -> None:
    """Also where the requests are there to ask."""
    assert context_of(SimpleNamespace(seq_lens_cpu=Lengths([100, 50]), reqs=[1, 2])) == 150


def test_context_is_estimated_from_some_requests_elsewhere() -> None:
    """Exact for a few, close for many, and 0 where nothing is known."""
    reqs = [SimpleNamespace(origin_input_ids=[0] * 100, output_ids=[0] * index) for index in range(256)]

    assert context_of(SimpleNamespace(seq_lens_cpu=None, reqs=reqs[:3])) == 303
    assert context_of(SimpleNamespace(seq_lens_cpu=None, reqs=reqs)) == pytest.approx(256 * 227.5, rel=0.1)
    assert context_of(SimpleNamespace(seq_lens_cpu=None)) == 0
