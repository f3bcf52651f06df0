"""The bytes of an answer in SGLang's three dialects: /generate, /v1/completions and /v1/chat/completions.

A chunk of /generate repeats the whole text and every token id so far, as SGLang's does by default, so that a client
has the same parsing to do. Texts are slices of one table of words made once: at 256 streams the server writes
thousands of chunks a second on one core, and joining words for each would be all it had time for.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harness.sim.progress import Request

DONE = b"data: [DONE]\n\n"
_SYLLABLES = ("ba", "do", "fi", "ka", "lo", "me", "nu", "ra", "so", "ti", "va", "wu")
_VOCABULARY = tuple(first + second for first in _SYLLABLES for second in _SYLLABLES)


class Words:
    """Every simulated text: word i is token i, and a request reads on from its own place.

    Args:
        length: the longest answer in tokens.
    """

    def __init__(self, length: int) -> None:
        self._places = 997
        picks = np.random.default_rng(0).integers(0, len(_VOCABULARY), length + self._places)
        words = [f" {_VOCABULARY[pick]}" for pick in picks]
        ids = [f"{1000 + pick}," for pick in picks]
        self._text, self._ids = "".join(words).encode(), "".join(ids).encode()
        self._text_at = np.cumsum([0, *map(len, words)]).tolist()
        self._ids_at = np.cumsum([0, *map(len, ids)]).tolist()

    def place(self, key: int) -> int:
        return key % self._places

    def text(self, place: int, begin: int, end: int) -> bytes:
        return self._text[self._text_at[place + begin] : self._text_at[place + end]]

    def ids(self, place: int, end: int) -> bytes:
        """Token ids up to `end`, separated by commas."""
        return self._ids[self._ids_at[place] : max(self._ids_at[place + end] - 1, self._ids_at[place])]


@dataclass(slots=True)
class Answer:
    """What is needed to render one request's answer.

    Attributes:
        request: as the engine knows it.
        place: where its text begins.
        draft_steps: draft steps per verify step of this server, 0 where it cannot speculate.
        model, created: as OpenAI's dialects repeat them.
        stream_usage: whether every chunk carries usage.
        index: position in a batch of prompts, None outside one.
        finish_reason: SGLang's dictionary once it has ended.
    """

    request: Request
    words: Words
    place: int
    draft_steps: int = 0
    model: str = ""
    created: int = 0
    stream_usage: bool = False
    index: int | None = None
    finish_reason: dict[str, Any] | None = None
    head: bytes = field(default=b"", init=False)

    def text(self, begin: int, end: int) -> str:
        return self.words.text(self.place, begin, end).decode()

    def meta_info(self, tokens: int) -> dict[str, Any]:
        """SGLang's meta_info after `tokens` tokens."""
        request = self.request
        info: dict[str, Any] = {
            "id": request.rid,
            "finish_reason": self.finish_reason,
            "prompt_tokens": request.prompt_tokens,
            "weight_version": "default",
            "num_retractions": 0,
            "reasoning_tokens": 0,
            "completion_tokens": tokens,
            "cached_tokens": 0,
        }
        if self.finish_reason is not None:
            info["e2e_latency"] = (request.finished_s or 0.0) - request.sent_s
            info.update(self._speculation(tokens))
        return info

    def usage(self, tokens: int) -> dict[str, Any]:
        prompt = self.request.prompt_tokens
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + tokens,
            "completion_tokens": tokens,
            "prompt_tokens_details": None,
            "reasoning_tokens": 0,
        }

    def _speculation(self, tokens: int) -> dict[str, Any]:
        verified = self.request.verify_steps
        if not verified or not self.draft_steps:
            return {}
        accepted, proposed = self.request.accepted_drafts, verified * self.draft_steps
        return {
            "spec_accept_rate": accepted / proposed,
            "spec_accept_length": tokens / verified,
            "spec_num_correct_drafts": accepted,
            "spec_num_proposed_drafts": proposed,
            "spec_verify_ct": verified,
        }


# Renders the chunk that takes an answer from `begin` to `end` tokens.
ChunkRenderer = Callable[[Answer, int, int], bytes]


def generate_chunk(answer: Answer, begin: int, end: int) -> bytes:
    """A chunk of /generate: everything so far."""
    text, ids = answer.words.text(answer.place, 0, end), answer.words.ids(answer.place, end)
    if answer.finish_reason is not None:
        body = _generate_json(answer, end)
        return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"
    if not answer.head:
        # All of meta_info but the count of tokens, which its last place makes cheap to fill in.
        info = answer.meta_info(0)
        del info["completion_tokens"]
        index = "" if answer.index is None else f'"index":{answer.index},'
        answer.head = (
            f'],{index}"meta_info":{json.dumps(info, separators=(",", ":"))[:-1]},"completion_tokens":'.encode()
        )
    return b'data: {"text":"%b","output_ids":[%b%b%d}}\n\n' % (text, ids, answer.head, end)


def generate_whole(answer: Answer, tokens: int) -> dict[str, Any]:
    """The whole answer of /generate."""
    return _generate_json(answer, tokens)


def completion_chunk(answer: Answer, begin: int, end: int) -> bytes:
    """A chunk of /v1/completions: what is new."""
    choice = {"index": answer.index or 0, "text": answer.text(begin, end), "logprobs": None, **_finish(answer)}
    return sse(_envelope(answer, "text_completion", [choice], end if answer.stream_usage else None))


def completion_whole(answers: list[Answer], tokens: list[int]) -> dict[str, Any]:
    """The whole answer of /v1/completions, one choice for each prompt."""
    choices = [
        {"index": index, "text": answer.text(0, count), "logprobs": None, **_finish(answer)}
        for index, (answer, count) in enumerate(zip(answers, tokens, strict=True))
    ]
    body = _envelope(answers[0], "text_completion", choices, None)
    return {**body, "usage": _usage_of_all(answers, tokens)}


def chat_chunk(answer: Answer, begin: int, end: int) -> bytes:
    """A chunk of /v1/chat/completions: the role before the first text, what is new, the reason at the end."""
    role = b"" if begin else _chat(answer, {"role": "assistant", "content": ""}, None, None)
    usage = end if answer.stream_usage else None
    chunk = _chat(answer, {"role": None, "content": answer.text(begin, end)}, None, usage) if end > begin else b""
    last = _chat(answer, {}, answer.finish_reason, None) if answer.finish_reason is not None else b""
    return role + chunk + last


def chat_whole(answer: Answer, tokens: int) -> dict[str, Any]:
    """The whole answer of /v1/chat/completions."""
    message = {"role": "assistant", "content": answer.text(0, tokens), "reasoning_content": None, "tool_calls": None}
    choice = {"index": 0, "message": message, "logprobs": None, **_finish(answer)}
    return {**_envelope(answer, "chat.completion", [choice], tokens)}


def usage_chunk(answers: list[Answer], kind: str, tokens: list[int]) -> bytes:
    """The chunk after the last one that carries usage alone."""
    return sse({**_envelope(answers[0], kind, [], None), "usage": _usage_of_all(answers, tokens)})


def _usage_of_all(answers: list[Answer], tokens: list[int]) -> dict[str, Any]:
    usages = [answer.usage(count) for answer, count in zip(answers, tokens, strict=True)]
    sums = ("prompt_tokens", "total_tokens", "completion_tokens")
    return {**usages[0], **{name: sum(usage[name] for usage in usages) for name in sums}}


def _generate_json(answer: Answer, tokens: int) -> dict[str, Any]:
    ids = answer.words.ids(answer.place, tokens)
    index = {} if answer.index is None else {"index": answer.index}
    return {
        "text": answer.text(0, tokens),
        "output_ids": [int(token) for token in ids.split(b",")] if ids else [],
        **index,
        "meta_info": answer.meta_info(tokens),
    }


def _finish(answer: Answer) -> dict[str, Any]:
    reason = answer.finish_reason
    return {"finish_reason": reason["type"] if reason else None, "matched_stop": None}


def _chat(answer: Answer, delta: dict[str, Any], reason: dict[str, Any] | None, usage: int | None) -> bytes:
    finish = {"finish_reason": reason["type"] if reason else None, "matched_stop": None}
    choice = {"index": answer.index or 0, "delta": delta, "logprobs": None, **finish}
    return sse(_envelope(answer, "chat.completion.chunk", [choice], usage))


def _envelope(answer: Answer, kind: str, choices: list[dict[str, Any]], usage: int | None) -> dict[str, Any]:
    return {
        "id": answer.request.rid,
        "object": kind,
        "created": answer.created,
        "model": answer.model,
        "choices": choices,
        "usage": None if usage is None else answer.usage(usage),
    }


def sse(body: dict[str, Any]) -> bytes:
    """One event of a stream."""
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"
