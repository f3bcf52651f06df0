"""Other lengths of the ring that holds what the draft's KV still lacks: one step, and fewer than the draft tokens."""

from __future__ import annotations

import random

import pytest

from tests.sglang_cpu.servers import ARRANGEMENTS
from tests.sglang_cpu.slot import Patched
from tests.sglang_cpu.test_draft_kv import probed_stream, stale_rows
from tests.sglang_cpu.traffic import Answer, answers, differences, greedy, prompt, streams

pytestmark = [
    pytest.mark.only_full,
    pytest.mark.arrangements(*(one.name for one in ARRANGEMENTS if one.worker == "v2")),
]
REQUESTS = 500


def test_tokens_slots_and_draft_kv(synced: Patched, reference: dict[str, list[Answer]]) -> None:
    """Tokens are the baseline's, no slot is lost over hundreds of requests, no row of the draft's KV is stale."""
    synced.server.flush()
    free = synced.server.internal_state()["probe_free_kv_slots"]
    numbers = random.Random(REQUESTS)
    many = [
        {"text": prompt(numbers.randrange(40)), "sampling_params": greedy(numbers.choice((1, 2, 3, 4, 6, 9)))}
        for _ in range(REQUESTS // 2)
    ]
    synced.set_policy(4, resume_at=4)
    crossing = synced.server.generate_all(many)
    synced.probe(force=5)
    forced = synced.server.generate_all(many)
    replies = synced.server.generate_all(streams())

    assert answers(crossing) == answers(forced)
    assert differences(answers(replies), reference["streams"]) == []
    synced.server.flush()
    assert synced.server.internal_state()["probe_free_kv_slots"] == free

    tokens, states = probed_stream(synced)
    stale, compared = stale_rows(synced, tokens, states)
    assert compared > 100
    assert stale == set()
