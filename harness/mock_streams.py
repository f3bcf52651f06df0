"""What the mock server says: well-formed streams of the three APIs.

A stream is a generator of (seconds since the step before, bytes); bytes of None hang up.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from harness.api import Api

Step = tuple[float, bytes | None]


@dataclass(frozen=True, slots=True)
class Timing:
    """When a stream's chunks come, and how large they are.

    Attributes:
        ttft_s: from the request to the first chunk.
        gap_s: between chunks.
        tokens_per_chunk: all chunks' but the last's.
        padding_bytes: carried by every event beside its own JSON, as cumulative text would be.
    """

    ttft_s: float = 0.05
    gap_s: float = 0.01
    tokens_per_chunk: int = 1
    padding_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Ask:
    """What a request asked for."""

    api: Api
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """One event: `total` tokens generated so far, `new` of them in this event."""

    total: int
    new: int
    finish: str | None = None


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
DONE = b"data: [DONE]\n\n"
LAST = b"0\r\n\r\n"


def plain(ask: Ask, timing: Timing) -> Iterator[Step]:
    """The well-formed stream."""
    yield from stream(ask, timing, events(ask, timing))


def events(ask: Ask, timing: Timing, **meta: Any) -> Iterator[bytes]:
    for chunk in chunks(ask, timing):
        yield sse(event(ask, chunk, timing.padding_bytes, **meta))


def stream(ask: Ask, timing: Timing, bodies: Iterator[bytes]) -> Iterator[Step]:
    """HTTP around the events: head with the first, [DONE] and the last chunk with the last."""
    wait_s, head = timing.ttft_s, HEAD
    for body in bodies:
        yield wait_s, head + framed(body)
        wait_s, head = timing.gap_s, b""
    yield 0.0, head + framed(DONE) + LAST


def chunks(ask: Ask, timing: Timing) -> Iterator[Chunk]:
    total = 0
    while total < ask.output_tokens:
        new = min(timing.tokens_per_chunk, ask.output_tokens - total)
        total += new
        yield Chunk(total, new, "length" if total == ask.output_tokens else None)


def framed(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


def sse(data: str) -> bytes:
    return f"data: {data}\n\n".encode()


def event(ask: Ask, chunk: Chunk, padding: int = 0, **meta: Any) -> str:
    """The JSON of one event; written by hand, for a mock that encodes slowly measures itself."""
    text = f"w{chunk.total} " + "x" * padding
    if ask.api == "generate":
        finish = f'{{"type":"{chunk.finish}"}}' if chunk.finish else "null"
        ids = ",".join(str((i * 7919) % 30011) for i in range(chunk.total - chunk.new, chunk.total))
        more = "".join(f',"{name}":{json.dumps(value)}' for name, value in meta.items())
        return (
            f'{{"text":"{text}","output_ids":[{ids}],"meta_info":{{"id":"r","finish_reason":{finish},"prompt_tokens":'
            f'{ask.prompt_tokens},"completion_tokens":{chunk.total},"cached_tokens":0{more}}}}}'
        )
    finish = json.dumps(chunk.finish)
    if ask.api == "completions":
        kind, content = "text_completion", f'"text":"{text}"'
    else:
        kind, content = "chat.completion.chunk", f'"delta":{{"content":"{text}"}}'
    choice = f'{{"index":0,{content},"finish_reason":{finish}}}'
    return f'{{"id":"r","object":"{kind}","model":"mock","choices":[{choice}],"usage":{usage(ask, chunk.total)}}}'


def usage(ask: Ask, total: int) -> str:
    return f'{{"prompt_tokens":{ask.prompt_tokens},"completion_tokens":{total}}}'
