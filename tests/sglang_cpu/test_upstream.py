"""What upstream itself gets wrong, shown on servers that are not patched: docs/patched-worker.md lists these.

They are left as upstream has them. When a later release mends one, its test here fails, and the exception for it in
the other tests goes.
"""

from __future__ import annotations

import urllib.error

import pytest

from tests.sglang_cpu.servers import Json, Server
from tests.sglang_cpu.slot import Slot
from tests.sglang_cpu.traffic import PARTS, Answer, answers, differences, greedy, logprobs, prompt

V2_OF_0_5_9 = "0.5.9-v2"
EARLY_V2 = (V2_OF_0_5_9, "0.5.12.post1-v2")


def test_penalties_are_relaxed_inside_a_draft_chain(unpatched: Server, reference: dict[str, list[Answer]]) -> None:
    """One token a step is counted towards penalties, however many are accepted; 0.5.9 v2 counts none."""
    replies = unpatched.generate_all(PARTS["penalised"]())

    assert differences(answers(replies), reference["penalised"]) != []


@pytest.mark.arrangements(V2_OF_0_5_9)
@pytest.mark.parametrize("part", ["penalised", "biased"])
def test_v2_of_0_5_9_ignores_penalties_and_bias(unpatched: Server, part: str) -> None:
    """While it speculates; a request's first token comes from its prefill, which does not."""
    asked = PARTS[part]()
    without = [{**request, "sampling_params": _plain(request["sampling_params"])} for request in asked]

    pairs = list(zip(unpatched.generate_all(asked), unpatched.generate_all(without), strict=True))

    alike = [(mine, plain) for mine, plain in pairs if mine["output_ids"][0] == plain["output_ids"][0]]
    assert len(alike) > 0
    assert [mine["output_ids"] for mine, _ in alike] == [plain["output_ids"] for _, plain in alike]


def _plain(parameters: Json) -> Json:
    return {name: value for name, value in parameters.items() if "penalty" not in name and name != "logit_bias"}


@pytest.mark.arrangements(V2_OF_0_5_9)
def test_v2_of_0_5_9_dies_of_logprobs(doomed: Server, slot: Slot) -> None:
    """One request that asks for log-probabilities ends the scheduler."""
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        doomed.generate(**logprobs()[0])

    assert any("Traceback" in line for line in doomed.faults())


@pytest.mark.arrangements(*EARLY_V2)
def test_early_v2_runs_past_a_stop_string(unpatched: Server, reference: dict[str, list[Answer]]) -> None:
    """Tokens that a chain accepts behind a stop string are handed out."""
    got = answers(unpatched.generate_all(PARTS["stopped"]()))

    unequal = [(mine, wanted) for mine, wanted in zip(got, reference["stopped"], strict=True) if mine != wanted]
    assert len(unequal) > 0
    assert all(mine.tokens[: len(wanted.tokens)] == wanted.tokens for mine, wanted in unequal)


@pytest.mark.arrangements("0.5.12.post1-v1")
def test_grammar_masks_its_neighbours(unpatched: Server, reference: dict[str, list[Answer]]) -> None:
    """llguidance reuses its mask uncleared: the row of a request that has ended masks its successor in the batch."""
    ended_early = {"regex": "[a-f]{6}"}
    long = {"regex": "(ab|cd|ef){30}"}
    plain = range(6)
    parameters = [greedy(40, ignore_eos=False, **long), greedy(40, ignore_eos=False, **ended_early)]

    replies = unpatched.generate(
        text=[prompt(0), prompt(1), *(prompt(i) for i in plain)],
        sampling_params=[*parameters, *(greedy(40) for _ in plain)],
    )

    tokens = [answer.tokens for answer in answers(replies)[2:]]
    wanted = [answer.tokens for answer in reference["streams"][: len(plain)]]
    assert any(mine[: len(theirs)] != theirs[: len(mine)] for mine, theirs in zip(tokens, wanted, strict=True))
