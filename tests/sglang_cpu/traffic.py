"""The requests that every server gets, and what of an answer is compared.

All greedy and in float32, so that a server that does the same work gives the same tokens. Lengths differ, so that
batches shrink and grow through the threshold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

STREAMS = 24


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client gets of one sequence; two servers are equal when these are.

    Attributes:
        tokens: output token ids.
        finish: SGLang's finish reason type.
    """

    tokens: tuple[int, ...]
    finish: str


def answers(replies: list[Any]) -> list[Answer]:
    """One per sequence: a reply to a request with n > 1 is a list."""
    flat = [one for reply in replies for one in (reply if isinstance(reply, list) else [reply])]
    return [Answer(tuple(one["output_ids"]), one["meta_info"]["finish_reason"]["type"]) for one in flat]


def greedy(tokens: int, **parameters: Any) -> Json:
    """Sampling parameters for exactly `tokens` greedy tokens, unless `parameters` stop it."""
    return {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True, **parameters}


def prompt(number: int) -> str:
    return f"request {number}: " + "lorem ipsum " * (number % 5)


def streams(first: int = 0) -> list[Json]:
    """Twenty-four requests of 12 to 59 tokens: more than run at once, so that they join and leave all the time."""
    return [{"text": prompt(first + i), "sampling_params": greedy(12 + (i * 7) % 48)} for i in range(STREAMS)]
