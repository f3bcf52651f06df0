"""The requests that every server gets, and what of an answer is compared.

All greedy and in float32, so that a server that does the same work gives the same tokens. Lengths differ, so that
batches shrink and grow through the threshold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

STREAMS = 24
LOGPROB_TOLERANCE = 2e-3  # float32 matrix products of another shape


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client gets of one sequence.

    Attributes:
        tokens: output token ids.
        finish: SGLang's finish reason type.
        logprobs: of the output tokens, in nats; empty unless asked for.
        top: for each output token, the (log-probability, token) of the likeliest; empty unless asked for.
    """

    tokens: tuple[int, ...]
    finish: str
    logprobs: tuple[float, ...] = ()
    top: tuple[tuple[tuple[float, int], ...], ...] = ()


def answers(replies: list[Any]) -> list[Answer]:
    """One per sequence: a reply to a request with n > 1 is a list."""
    flat = [one for reply in replies for one in (reply if isinstance(reply, list) else [reply])]
    return [_answer(one) for one in flat]


def _answer(reply: Any) -> Answer:
    meta = reply["meta_info"]
    top = meta.get("output_top_logprobs") or ()
    return Answer(
        tokens=tuple(reply["output_ids"]),
        finish=meta["finish_reason"]["type"],
        logprobs=tuple(entry[0] for entry in meta.get("output_token_logprobs") or ()),
        top=tuple(tuple((entry[0], entry[1]) for entry in position) for position in top),
    )


def differences(got: list[Answer], wanted: list[Answer]) -> list[str]:
    """What is unequal, one line per sequence; log-probabilities may differ by LOGPROB_TOLERANCE."""
    assert len(got) == len(wanted)
    return [
        f"sequence {number}: {mine} instead of {theirs}"
        for number, (mine, theirs) in enumerate(zip(got, wanted, strict=True))
        if not _equal(mine, theirs)
    ]


def _equal(mine: Answer, theirs: Answer) -> bool:
    if (mine.tokens, mine.finish) != (theirs.tokens, theirs.finish):
        return False
    if len(mine.logprobs) != len(theirs.logprobs) or len(mine.top) != len(theirs.top):
        return False
    pairs = list(zip(mine.logprobs, theirs.logprobs, strict=True))
    for mine_at, theirs_at in zip(mine.top, theirs.top, strict=True):
        pairs += [(one[0], other[0]) for one, other in zip(mine_at, theirs_at, strict=True)]
    return all(abs(one - other) < LOGPROB_TOLERANCE for one, other in pairs)


# ---- requests


def greedy(tokens: int, **parameters: Any) -> Json:
    """Sampling parameters for exactly `tokens` greedy tokens, unless `parameters` stop it."""
    return {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True, **parameters}


def prompt(number: int) -> str:
    return f"request {number}: " + "lorem ipsum " * (number % 5)


def streams() -> list[Json]:
    """Twenty-four requests of 12 to 59 tokens: more than run at once, so that they join and leave all the time."""
    return [{"text": prompt(i), "sampling_params": greedy(12 + (i * 7) % 48)} for i in range(STREAMS)]


def logprobs() -> list[Json]:
    return [
        {"text": prompt(i), "sampling_params": greedy(20 + i), "return_logprob": True, "top_logprobs_num": i % 3}
        for i in range(6)
    ]


def biased() -> list[Json]:
    """A bias that decides some tokens, not all."""
    return [{"text": prompt(i), "sampling_params": greedy(24, logit_bias={str(100 + i): 6.0})} for i in range(3)]


def stopped() -> list[Json]:
    """By token id and by a string that spans tokens; a few run to their length."""
    by_token = [
        {"text": prompt(i), "sampling_params": greedy(60, stop_token_ids=list(range(40, 120)))} for i in range(4)
    ]
    by_string = [{"text": prompt(i), "sampling_params": greedy(60, stop=[f"w{i}", " w3", "1 w"])} for i in range(4)]
    return by_token + by_string


def several() -> list[Json]:
    """n > 1: one request, several sequences."""
    return [{"text": prompt(i), "sampling_params": greedy(20 + i, n=2 + i)} for i in range(2)]


def grammar() -> list[Json]:
    """Constrained by regular expressions, bounded and unbounded, and a JSON schema."""
    schema = (
        '{"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}}, "required": ["a", "b"]}'
    )
    constraints: list[Json] = [
        {"regex": "[a-f]{12}(x|y)+"},
        {"regex": "(ab|cd|ef){30}"},
        {"json_schema": schema},
        {"regex": "[0-9]{4}-[0-9]{2}-[0-9]{2}"},
    ]
    return [
        {"text": prompt(i), "sampling_params": greedy(40, ignore_eos=False, **c)} for i, c in enumerate(constraints)
    ]


def penalised() -> list[Json]:
    penalties = {"frequency_penalty": 1.2, "presence_penalty": 0.6}
    return [{"text": prompt(i), "sampling_params": greedy(50, **penalties)} for i in (1, 3, 4, 5, 6)]


PARTS = {
    "streams": streams,
    "logprobs": logprobs,
    "biased": biased,
    "stopped": stopped,
    "several": several,
    "grammar": grammar,
    "penalised": penalised,
}
