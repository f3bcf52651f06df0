"""No KV slot is lost by switching: strict checks at every step, and a count after many requests."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.sglang_cpu.slot import RING_STEPS, Patched
from tests.sglang_cpu.traffic import Answer, answers, differences, greedy, prompt, streams

MAX_GROWN_BYTES = 32 << 20  # of tensors on a GPU: the last batch's results live until the next one


@pytest.mark.parametrize("requests", [500, pytest.param(2000, marks=pytest.mark.only_full)])
def test_free_slots_after_many_requests(patched: Patched, requests: int) -> None:
    """After hundreds of requests across the threshold, with forced switches, as many slots are free as before."""
    patched.server.flush()
    before = patched.server.internal_state()
    numbers = random.Random(requests)
    batch = [
        {"text": prompt(numbers.randrange(40)), "sampling_params": greedy(numbers.choice((1, 2, 3, 4, 6, 9)))}
        for _ in range(requests // 2)
    ]

    patched.set_policy(4, resume_at=4)
    crossing = patched.server.generate_all(batch)
    patched.probe(force=3)
    forced = patched.server.generate_all(batch)

    assert answers(crossing) == answers(forced)
    assert "[Mem Check (BUSY)]" in patched.server.log_text()  # they did run
    patched.server.flush()
    after = patched.server.internal_state()
    assert after["probe_free_kv_slots"] == before["probe_free_kv_slots"]
    grown = after.get("probe_gpu_bytes", 0) - before.get("probe_gpu_bytes", 0)
    assert grown < MAX_GROWN_BYTES


def test_pages_and_retraction(paged: Patched, reference: dict[str, list[Answer]]) -> None:
    """Page size 16, and requests retracted every few steps: tokens are the baseline's, slots come back.

    On v2 also with catch-ups of more plain steps than there are draft tokens, which come early where the chunk of a
    prefill would not hold them.
    """
    paged.server.flush()
    free = paged.server.internal_state()["probe_free_kv_slots"]

    for every in (3, 1):
        paged.probe(force=every)
        replies: list[Any] = paged.server.generate_all(streams())
        assert differences(answers(replies), reference["streams"]) == []
    if paged.arrangement.worker == "v2":
        _catch_up_early(paged, reference)

    assert "etract" in paged.server.log_text()
    paged.server.flush()
    assert paged.server.internal_state()["probe_free_kv_slots"] == free


def _catch_up_early(paged: Patched, reference: dict[str, list[Answer]]) -> None:
    """With switches, and then without any, where catch-ups can be counted."""
    paged.set_sync_steps(RING_STEPS)
    paged.probe(force=RING_STEPS + 2)
    replies = paged.server.generate_all(streams())
    assert differences(answers(replies), reference["streams"]) == []
    paged.set_policy(0)
    before = paged.state()
    replies = paged.server.generate_all(streams())
    after = paged.state()
    assert differences(answers(replies), reference["streams"]) == []
    plain, syncs = (after[name] - before[name] for name in ("steps_off", "draft_syncs"))
    assert syncs > 0
    assert plain / syncs < RING_STEPS - 2  # it is 12 where a chunk holds them all


def test_tree_of_drafts(tree: Patched, reference: dict[str, list[Answer]]) -> None:
    """v1 with topk 4: proposals keep their width through plain steps."""
    tree.probe(force=3)

    replies = tree.server.generate_all(streams())

    assert differences(answers(replies), reference["streams"]) == []
    state = tree.state()
    assert state["steps_off"] > 0
    assert state["steps_on"] > 0
