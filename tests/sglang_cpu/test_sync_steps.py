"""The draft's KV brought up after every plain step, or after fewer or more of them than there are draft tokens."""

from __future__ import annotations

import random

import pytest

from tests.sglang_cpu.servers import ARRANGEMENTS
from tests.sglang_cpu.slot import RING_STEPS, Patched
from tests.sglang_cpu.test_draft_kv import check_second_turn, probed_stream, stale_rows
from tests.sglang_cpu.traffic import Answer, answers, differences, greedy, prompt, streams

pytestmark = [
    pytest.mark.only_full,
    pytest.mark.arrangements(*(one.name for one in ARRANGEMENTS if one.worker == "v2")),
]
REQUESTS = 500


@pytest.mark.parametrize("steps", [1, 3, RING_STEPS])
def test_tokens_slots_and_draft_kv(patched: Patched, reference: dict[str, list[Answer]], steps: int) -> None:
    """Tokens are the baseline's, no slot is lost over hundreds of requests, no row of the draft's KV is stale."""
    patched.set_sync_steps(steps)
    patched.server.flush()
    free = patched.server.internal_state()["probe_free_kv_slots"]
    numbers = random.Random(REQUESTS)
    many = [
        {"text": prompt(numbers.randrange(40)), "sampling_params": greedy(numbers.choice((1, 2, 3, 4, 6, 9)))}
        for _ in range(REQUESTS // 2)
    ]
    patched.set_policy(4, resume_at=4)
    crossing = patched.server.generate_all(many)
    patched.probe(force=steps + 2)
    forced = patched.server.generate_all(many)
    replies = patched.server.generate_all(streams())

    assert answers(crossing) == answers(forced)
    assert differences(answers(replies), reference["streams"]) == []
    patched.server.flush()
    assert patched.server.internal_state()["probe_free_kv_slots"] == free

    tokens, states = probed_stream(patched)
    stale, compared = stale_rows(patched, tokens, states)
    assert compared > 100
    assert stale == set()


@pytest.mark.parametrize("steps", [1, RING_STEPS])
def test_radix_hit_on_a_prefix_decoded_while_off(patched: Patched, steps: int) -> None:
    """What a request that ends while off hands to the radix cache has its draft rows."""
    patched.set_sync_steps(steps)
    check_second_turn(patched, steps + 1)
