"""What a request may carry, and how it may end, while speculation switches in the middle of it."""

from __future__ import annotations

import re
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tests.sglang_cpu.references import at_once_with_penalties
from tests.sglang_cpu.servers import ARRANGEMENTS, Arrangement, Json, Server
from tests.sglang_cpu.slot import Patched
from tests.sglang_cpu.traffic import PARTS, Answer, answers, differences, greedy, prompt, streams

# upstream's own faults, shown by test_upstream.py: not asked of a patched server either
IGNORES_PENALTIES = ("0.5.9-v2",)
KILLS = {"0.5.9-v2": {"logprobs"}}
WRONG_WHILE_SPECULATING = {"0.5.9-v2": {"biased", "stopped"}, "0.5.12.post1-v2": {"stopped"}}
MIXED = ("logprobs", "biased", "stopped", "several")


def _parts(arrangement: Arrangement, gate: dict[str, int]) -> list[str]:
    left_out = KILLS.get(arrangement.name, set())
    if gate != {"threshold": 0}:
        left_out = left_out | WRONG_WHILE_SPECULATING.get(arrangement.name, set())
    return [name for name in MIXED if name not in left_out]


GATES = pytest.mark.parametrize(
    "gate",
    [{"force": 3}, {"threshold": 0}, pytest.param({"threshold": 4}, marks=pytest.mark.only_full)],
    ids=["switching", "off", "crossing"],
)


def _set(patched: Patched, gate: dict[str, int]) -> None:
    if "threshold" in gate:
        patched.set_policy(gate["threshold"], resume_at=gate["threshold"])
    else:
        patched.probe(**gate)


@GATES
def test_request_features(patched: Patched, reference: dict[str, list[Answer]], gate: dict[str, int]) -> None:
    """Log-probabilities, bias, stops and n > 1, all in the same batches, are the baseline's."""
    names = _parts(patched.arrangement, gate)
    requests = [(name, request) for name in names for request in PARTS[name]()]
    _set(patched, gate)
    before = patched.state()["steps_off"]

    replies = patched.server.generate_all([request for _, request in requests])

    for name in names:
        mine = [reply for (part, _), reply in zip(requests, replies, strict=True) if part == name]
        assert differences(answers(mine), reference[name]) == [], name
    assert patched.state()["steps_off"] > before


@pytest.mark.needs_grammars
@GATES
def test_grammars(patched: Patched, reference: dict[str, list[Answer]], gate: dict[str, int]) -> None:
    """Constrained output is the baseline's and obeys its grammar.

    Alone in its batches: llguidance's mask in 0.5.12.post1 is reused uncleared, and may mask a neighbour without one.
    """
    requests = PARTS["grammar"]()
    if "threshold" in gate:
        gate = {"threshold": min(gate["threshold"], len(requests) // 2)}  # fewer requests cross lower
    _set(patched, gate)
    before = patched.state()["steps_off"]

    replies = patched.server.generate_all(requests)

    assert differences(answers(replies), reference["grammar"]) == []
    assert re.fullmatch(r"[a-f]{12}[xy]+", replies[0]["text"])
    assert re.fullmatch(r"(ab|cd|ef){,20}", replies[1]["text"])
    assert re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", replies[3]["text"])
    assert patched.state()["steps_off"] > before


@pytest.mark.arrangements(*(one.name for one in ARRANGEMENTS if one.name not in IGNORES_PENALTIES))
def test_penalties_are_exact_while_off(patched: Patched, reference: dict[str, list[Answer]]) -> None:
    """Threshold 0: penalties are the baseline's (inside a draft chain upstream relaxes them: test_upstream.py)."""
    patched.set_policy(0)

    replies = patched.server.generate_all(PARTS["penalised"](), at_once_with_penalties(patched.arrangement))

    assert differences(answers(replies), reference["penalised"]) == []


def test_all_finish_in_one_off_step(patched: Patched, reference: dict[str, list[Answer]]) -> None:
    """A whole batch ends in the same plain step, leaves nothing behind, and the next one starts clean."""
    patched.set_policy(0)
    requests = streams()[:8]
    texts = [request["text"] for request in requests]

    for tokens in (9, 1, 10):
        replies = patched.server.generate(text=texts, sampling_params=greedy(tokens))
        assert [reply["meta_info"]["finish_reason"]["type"] for reply in replies] == ["length"] * len(texts)
        wanted = [answer.tokens[:tokens] for answer in reference["streams"][: len(texts)]]
        assert [tuple(reply["output_ids"]) for reply in replies] == wanted

    patched.server.flush()


def test_abort_one_running_request(patched: Patched, reference: dict[str, list[Answer]]) -> None:
    """A request aborted between switches ends as aborted; those that run beside it are the baseline's."""
    patched.probe(force=3)
    with ThreadPoolExecutor(16) as pool:
        doomed = _start(pool, patched.server, "doomed", 700)
        patched.wait_for_steps(4)
        others = [pool.submit(patched.server.generate, **request) for request in streams()[:8]]
        patched.wait_for_steps(4, batch=2)
        patched.server.post("/abort_request", {"rid": "doomed"})
        aborted = doomed.result()
        finished = [other.result() for other in others]

    assert aborted["meta_info"]["finish_reason"]["type"] == "abort"
    assert 0 < len(aborted["output_ids"]) < 700
    assert differences(answers(finished), reference["streams"][:8]) == []


def test_abort_all(patched: Patched) -> None:
    """Every running request aborted at once, off and on: all slots come back."""
    patched.server.flush()
    free = patched.server.internal_state()["probe_free_kv_slots"]
    for threshold in (0, -1, 3):
        patched.set_policy(threshold)
        with ThreadPoolExecutor(6) as pool:
            doomed = [_start(pool, patched.server, f"doomed-{threshold}-{i}", 700) for i in range(6)]
            patched.wait_for_steps(4, batch=6)
            patched.server.post("/abort_request", {"abort_all": True})
            replies = [future.result() for future in doomed]
        assert [reply["meta_info"]["finish_reason"]["type"] for reply in replies] == ["abort"] * 6
        patched.server.flush()
        assert patched.server.internal_state()["probe_free_kv_slots"] == free


def _start(pool: ThreadPoolExecutor, server: Server, rid: str, tokens: int) -> Future[Any]:
    request: Json = {"text": prompt(1), "sampling_params": greedy(tokens), "rid": rid}
    return pool.submit(server.generate, **request)
