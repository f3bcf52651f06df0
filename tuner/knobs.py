"""What a tuning may vary beside the threshold: the words of --search, and what they mean.

    --search threshold,resume_at,min_dwell            ranked live, under load that rises and falls
    --search num_steps=1,3,5,topk=1                   every combination is a server start

SGLang's names without "speculative-" are the names here; its full ones are taken too.
"""

from __future__ import annotations

from typing import Literal, get_args

from harness.config import MAX_TOKENS
from harness.errors import UserError

Knob = Literal["threshold", "resume_at", "min_dwell", "num_steps", "topk", "draft_tokens"]
Search = dict[Knob, tuple[int, ...]]  # to the values to try; () leaves them to us

HYSTERESIS: tuple[Knob, ...] = ("resume_at", "min_dwell")
RESTARTS: tuple[Knob, ...] = ("num_steps", "topk", "draft_tokens")
MAX_VALUE = 4096
_ALIASES: dict[str, Knob] = {
    "dwell": "min_dwell",
    "speculative_disable_batch_threshold": "threshold",
    "speculative_resume_batch_threshold": "resume_at",
    "speculative_min_dwell_steps": "min_dwell",
    "speculative_num_steps": "num_steps",
    "speculative_eagle_topk": "topk",
    "eagle_topk": "topk",
    "speculative_num_draft_tokens": "draft_tokens",
    "num_draft_tokens": "draft_tokens",
}


def parse_search(text: str) -> Search:
    """The knobs of --search; a number belongs to the name before it.

    Raises:
        UserError: an unknown name, a value that no server takes, or values for the threshold.
    """
    found: Search = {"threshold": ()}
    name: Knob = "threshold"
    for word in (part.strip() for part in text.split(",")):
        head, equals, value = word.rpartition("=")
        if equals or not word.isdecimal():
            name = _knob(head if equals else word)
            found.setdefault(name, ())
        if equals or word.isdecimal():
            found[name] = (*found[name], _value(name, value if equals else word))
    if found["threshold"]:
        raise UserError("--search threshold: its values come from the measured curves; leave them out")
    return found


def parse_lengths(text: str) -> tuple[int, ...]:
    """The prompt lengths of --context-lengths, shortest first.

    Raises:
        UserError: not two or three different lengths; a server's ladder has rungs for no more.
    """
    words = [word.strip() for word in text.split(",")]
    lengths = sorted({int(word) for word in words if word.isdecimal() and len(word) < 8})
    if len(lengths) != len(words) or len(lengths) not in (2, 3) or not 1 <= lengths[0] <= lengths[-1] <= MAX_TOKENS:
        raise UserError(f"--context-lengths {text!r}: give two or three different prompt lengths in tokens: 128,2048")
    return tuple(lengths)


def ranks_hysteresis(search: Search) -> bool:
    """Whether resume points or dwells are to be ranked."""
    return not search.keys().isdisjoint(HYSTERESIS)


def _knob(word: str) -> Knob:
    plain = word.strip().lstrip("-").replace("-", "_")
    name = _ALIASES.get(plain, plain)
    for knob in get_args(Knob):
        if knob == name:
            return knob  # type: ignore[no-any-return]  # get_args forgets types
    raise UserError(f"--search {word!r} is unknown; give some of {', '.join(get_args(Knob))}")


def _value(knob: Knob, text: str) -> int:
    least = 0 if knob == "min_dwell" else 1
    if not text.isdecimal() or not least <= int(text) <= MAX_VALUE:
        raise UserError(f"--search {knob}={text}: give whole numbers from {least} to {MAX_VALUE}")
    return int(text)
