"""The draft's KV after plain steps, element by element, against that of a fresh prefill of the same tokens.

Greedy tokens cannot show a stale draft: the target corrects every proposal. What is compared is the draft's KV at the
start of each round of proposals; a row is a function of a token and the target's hidden state before it, so a
prefill of the same tokens has the same rows.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.sglang_cpu.models import encode
from tests.sglang_cpu.servers import NUM_STEPS
from tests.sglang_cpu.slot import RING_STEPS, Patched
from tests.sglang_cpu.traffic import greedy, prompt

STREAM_TOKENS = 60
COMPARED = 8  # states, spread over a request's length


@dataclass(frozen=True, slots=True)
class State:
    """The draft's KV rows of a request of some length, and the proposals that start from there."""

    length: int
    rows: NDArray[np.float32]
    proposed: NDArray[np.int64]
    probabilities: NDArray[np.float32]


def test_draft_kv_is_exact_after_off_steps(patched: Patched) -> None:
    """Seven plain steps, seven speculative ones, and so on: no row of the draft's KV is stale when it proposes."""
    patched.probe(force=7)

    tokens, states = probed_stream(patched)

    assert len(states) >= COMPARED
    stale, compared = stale_rows(patched, tokens, states)
    assert compared > 100
    assert stale == set()


@pytest.mark.arrangements("0.5.12.post1-v2", "0.5.16-v2")  # test_sync_steps has all of v2
def test_draft_kv_is_exact_with_more_steps_than_draft_tokens(patched: Patched) -> None:
    """The same with catch-ups of 11 plain steps, and of the 4 that are left when speculation resumes."""
    patched.set_sync_steps(RING_STEPS)
    patched.probe(force=RING_STEPS + 4)
    before = patched.state()

    tokens, states = probed_stream(patched)

    after = patched.state()
    off, syncs = (after[name] - before[name] for name in ("steps_off", "draft_syncs"))
    assert off > (NUM_STEPS + 1) * syncs > 0
    stale, compared = stale_rows(patched, tokens, states)
    assert compared > 100
    assert stale == set()


def test_comparison_sees_a_missing_sync(patched: Patched) -> None:
    """Negative control: with what off steps write to the draft's KV taken back, the same comparison fails."""
    patched.probe(force=7, sync=False)

    tokens, states = probed_stream(patched)

    stale, _ = stale_rows(patched, tokens, states)
    assert len(stale) > 10


def test_radix_hit_on_a_prefix_decoded_while_off(patched: Patched) -> None:
    """A second turn inherits KV rows that plain steps have written: the target's and the draft's are both right.

    Upstream does not write the draft's rows of the step in which a request ends, and shares its prefix all the same:
    after a plain step that is one row at most.
    """
    check_second_turn(patched, NUM_STEPS + 2)


@pytest.mark.arrangements("0.5.16-v2")  # test_sync_steps has all of v2
def test_radix_hit_with_more_steps_than_draft_tokens(patched: Patched) -> None:
    """The same where more positions may lack the draft's rows when the request ends: so much less is shared at most."""
    patched.set_sync_steps(RING_STEPS)
    check_second_turn(patched, RING_STEPS + 1)


def check_second_turn(patched: Patched, most_lost: int) -> None:
    """A first turn decoded while off; a second one on its prefix, all but so many tokens of which it inherits."""
    patched.server.flush()
    patched.set_policy(0)
    first = patched.server.generate(text=prompt(3), rid=_rid(), sampling_params=greedy(STREAM_TOKENS))
    patched.set_policy(-1)
    history = encode(prompt(3)) + first["output_ids"]

    rid = _rid()
    second = patched.server.generate(input_ids=history, rid=rid, sampling_params=greedy(12))

    hit = second["meta_info"]["cached_tokens"]
    assert hit >= len(history) - most_lost, "the prefix was not shared"
    stale, compared = stale_rows(patched, history + second["output_ids"], _states(patched.probes, rid))
    assert compared > len(history)
    assert {position for _, position in stale} <= {len(history) - 2}
    patched.server.flush()
    fresh = patched.server.generate(input_ids=history, sampling_params=greedy(12))
    assert fresh["output_ids"] == second["output_ids"]


def _rid() -> str:
    return f"probe-{uuid.uuid4().hex}"


def probed_stream(patched: Patched) -> tuple[list[int], list[State]]:
    """One probed request among six; its tokens, and its states at every round of proposals."""
    rid = _rid()
    requests = [
        {
            "text": prompt(i),
            "rid": rid if i == 0 else _rid().replace("probe", "other"),
            "sampling_params": greedy(STREAM_TOKENS),
        }
        for i in range(6)
    ]
    replies = patched.server.generate_all(requests)
    return encode(prompt(0)) + replies[0]["output_ids"], _states(patched.probes, rid)


def _states(probes: Path, rid: str) -> list[State]:
    """What the probe has left, shortest first."""
    states = []
    for file in probes.glob(f"{rid}@*.npz"):
        with np.load(file) as saved:
            rows = np.concatenate([saved["keys"], saved["values"]], axis=1)
            states.append(State(_length(file), rows, saved["proposed"], saved["probabilities"]))
    return sorted(states, key=lambda state: state.length)


def _length(file: Path) -> int:
    match = re.search(r"@(\d+)\.npz$", file.name)
    assert match is not None
    return int(match[1])


def stale_rows(patched: Patched, tokens: list[int], states: list[State]) -> tuple[set[tuple[int, int]], int]:
    """(length, position) of the rows that differ from a fresh prefill's, and how many were compared."""
    patched.set_policy(-1)
    stale, compared = set(), 0
    known = [state for state in states if state.length < len(tokens)]  # with overlap, one step runs past the end
    for state in known[:: max(1, len(known) // COMPARED)]:
        patched.server.flush()  # or the reference would inherit rows
        rid = _rid()
        patched.server.generate(input_ids=tokens[: state.length], rid=rid, sampling_params=greedy(3))
        fresh = _states(patched.probes, rid)[0]
        assert fresh.length == state.length
        worst = np.abs(fresh.rows - state.rows).reshape(state.length, -1).max(axis=1)
        stale |= {(state.length, int(position)) for position in np.flatnonzero(worst > patched.kv_tolerance)}
        compared += state.length
    return stale, compared
