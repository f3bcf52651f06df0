"""What upstream itself gets wrong, shown on servers that are not patched: docs/patched-worker.md lists these.

They are left as upstream has them. When a later release mends one, its test here fails, and the exception for it in
the other tests goes.
"""

from __future__ import annotations

import urllib.error

import pytest

from tests.sglang_cpu.servers import Server
from tests.sglang_cpu.slot import Slot
from tests.sglang_cpu.traffic import PARTS, Answer, answers, differences, grammar, greedy, logprobs, prompt

V2_OF_0_5_9 = "0.5.9-v2"


def test_penalties_are_relaxed_inside_a_draft_chain(unpatched: Server, reference: dict[str, list[Answer]]) -> None:
    """One token a step is counted towards penalties, however many are accepted; 0.5.9 v2 counts none."""
    replies = unpatched.generate_all(PARTS["penalised"]())

    assert differences(answers(replies), reference["penalised"]) != []


@pytest.mark.arrangements(V2_OF_0_5_9)
def test_v2_of_0_5_9_ignores_penalties(unpatched: Server) -> None:
    """The same tokens with and without penalties."""
    with_penalties = PARTS["penalised"]()
    without = [
        {**request, "sampling_params": {k: v for k, v in request["sampling_params"].items() if "penalty" not in k}}
        for request in with_penalties
    ]

    assert answers(unpatched.generate_all(with_penalties)) == answers(unpatched.generate_all(without))


@pytest.mark.arrangements(V2_OF_0_5_9)
def test_v2_of_0_5_9_dies_of_logprobs(doomed: Server, slot: Slot) -> None:
    """One request that asks for log-probabilities ends the scheduler."""
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        doomed.generate(**logprobs()[0])

    assert any("Traceback" in line for line in doomed.faults())


def test_grammar_masks_its_neighbours(unpatched: Server, reference: dict[str, list[Answer]]) -> None:
    """llguidance's mask is reused without being cleared: requests without a grammar in the batch get stale rows."""
    plain = [{"text": prompt(i), "sampling_params": greedy(12)} for i in range(8)]

    replies = [unpatched.generate_all([*grammar(), *plain])[len(grammar()) :] for _ in range(3)]

    wanted = [answer.tokens[:12] for answer in reference["streams"][:8]]
    assert any([answer.tokens for answer in answers(reply)] != wanted for reply in replies)
