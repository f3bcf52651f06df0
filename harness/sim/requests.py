"""The bodies that a client posts, in SGLang's three dialects, as requests of the engine.

There is no tokenizer: a text counts one token for every four bytes. There is no end-of-sequence token either, so every
answer runs to the length that was asked for.
"""

from __future__ import annotations

import uuid
from typing import Any

import msgspec

from harness.errors import UserError
from harness.sim.progress import Request

DEFAULT_OUTPUT_TOKENS = 128
BYTES_PER_TOKEN = 4


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class GenerateBody(msgspec.Struct):
    """POST /generate."""

    text: str | list[str] | None = None
    input_ids: list[Any] | None = None
    sampling_params: dict[str, Any] | None = None
    rid: str | list[str] | None = None
    stream: bool = False


class CompletionBody(msgspec.Struct):
    """POST /v1/completions."""

    prompt: str | list[Any]
    model: str = "default"
    max_tokens: int | None = 16
    n: int | None = 1
    rid: str | list[str] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None


class ChatBody(msgspec.Struct):
    """POST /v1/chat/completions."""

    messages: list[dict[str, Any]]
    model: str = "default"
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = 1
    rid: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None


Body = GenerateBody | CompletionBody | ChatBody


def requests_of(body: Body, now_s: float) -> tuple[list[Request], bool]:
    """The engine's requests for one body, and whether the body was a list of prompts.

    Raises:
        UserError: it lacks a prompt, or asks for what is not simulated.
    """
    lengths, many = _prompts(body)
    ids = body.rid if isinstance(body.rid, list) else [body.rid] * len(lengths)
    if len(ids) != len(lengths):
        raise UserError(f"{len(ids)} rids were given for {len(lengths)} prompts")
    output = _output_tokens(body)
    return [Request(rid or uuid.uuid4().hex, n, output, now_s) for rid, n in zip(ids, lengths, strict=True)], many


def _prompts(body: Body) -> tuple[list[int], bool]:
    """Prompt lengths in tokens."""
    if isinstance(body, ChatBody):
        if not body.messages:
            raise UserError("messages is empty; give at least one message")
        return [_text_tokens("".join(str(message.get("content", "")) for message in body.messages))], False
    prompt = body.prompt if isinstance(body, CompletionBody) else _generate_prompt(body)
    if isinstance(prompt, str):
        return [_text_tokens(prompt)], False
    if prompt and all(isinstance(item, int) for item in prompt):
        return [len(prompt)], False
    if prompt and all(isinstance(item, str) for item in prompt):
        return [_text_tokens(item) for item in prompt], True
    if prompt and all(isinstance(item, list) and item for item in prompt):
        return [len(item) for item in prompt], True
    raise UserError("a prompt is a text, a list of token ids, or a list of either; none may be empty")


def _generate_prompt(body: GenerateBody) -> str | list[Any]:
    if (body.text is None) == (body.input_ids is None):
        raise UserError("Either text or input_ids should be provided.")
    return body.text if body.text is not None else body.input_ids or []


def _output_tokens(body: Body) -> int:
    if isinstance(body, GenerateBody):
        params = body.sampling_params or {}
        wanted, copies = params.get("max_new_tokens", DEFAULT_OUTPUT_TOKENS), params.get("n", 1)
    elif isinstance(body, ChatBody):
        wanted, copies = body.max_completion_tokens or body.max_tokens, body.n
    else:
        wanted, copies = body.max_tokens, body.n
    if copies not in (None, 1):
        raise UserError(f"n is {copies}; the simulated server answers each prompt once")
    tokens = DEFAULT_OUTPUT_TOKENS if wanted is None else wanted
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1:
        raise UserError(f"max_new_tokens must be at least 1, got {tokens}")
    return tokens


def _text_tokens(text: str) -> int:
    return max(1, round(len(text.encode()) / BYTES_PER_TOKEN))
