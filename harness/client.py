"""One exchange, turned into one record: what the stream said, when, and whether it is a success.

Tokens are the server's own counts. Success is strict: status 200, no error event, a stream that ends with [DONE], a
finish reason of length or stop, and the planned numbers of prompt and output tokens. Everything else is an error with
a class of its own (ERRORS), kept with its real duration.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import msgspec

from harness.api import Api
from harness.records import TICK_S, PointKey, RequestRecord
from harness.sse import EventSplitter
from harness.transport import Exchange

ERRORS: dict[str, str] = {
    "connect_failed": "no connection to the server",
    "connect_timeout": "no connection within the connect timeout",
    "first_token_timeout": "no token within the first-token timeout",
    "chunk_timeout": "a pause between tokens longer than the timeout",
    "total_timeout": "not finished within the total timeout",
    "connection_lost": "the connection ended inside the response",
    "malformed": "not HTTP/1.1, or an event that is not the API's JSON",
    "http_status": "a status other than 200",
    "not_a_stream": "a body that is no event stream",
    "error_event": "an error inside the stream, after status 200",
    "unterminated": "the response ended without [DONE]",
    "aborted": "a finish reason other than length and stop",
    "no_finish_reason": "no finish reason at all",
    "output_tokens": "not the number of tokens that was asked for",
    "prompt_tokens": "not the number of prompt tokens that was sent",
    "cancelled": "given up by this client when the point ended",
}
CONNECTION_ERRORS = frozenset({"connect_failed", "connect_timeout", "connection_lost"})

_DETAIL_CHARS = 300
_DEGENERATE_SHARE = 0.1  # fewer distinct pairs of neighbours than this: the answer repeats itself
_DEGENERATE_MIN = 32  # shorter answers repeat by chance


class _Meta(msgspec.Struct):
    finish_reason: Any = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    spec_verify_ct: int | None = None


class _Native(msgspec.Struct):
    """What /generate streams: cumulative counts, or cumulative ids where the counts are missing."""

    meta_info: _Meta | None = None
    output_ids: msgspec.Raw = msgspec.Raw()
    error: Any = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _Delta(msgspec.Struct):
    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    tool_calls: Any = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _OpenAI(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None
    object: str | None = None
    message: Any = None


_native_decoder = msgspec.json.Decoder(_Native)
_openai_decoder = msgspec.json.Decoder(_OpenAI)
_ids_decoder = msgspec.json.Decoder(list[int])


class StreamReader:
    """Reads one stream's events; feed it reads in order, at any time after they arrived.

    Attributes:
        arrivals: (time, new tokens) of each event that brought tokens; new tokens is 0 where the API does not say.
        last_token_s: when the last such event arrived.
    """

    __slots__ = (
        "_api",
        "_events",
        "_ids",
        "_text",
        "_uncounted",
        "arrivals",
        "cached_tokens",
        "completion_tokens",
        "error",
        "finish_reason",
        "prompt_tokens",
        "terminated",
        "verify_steps",
    )

    def __init__(self, api: Api) -> None:
        self._api = api
        self._events = EventSplitter()
        self._ids: list[int] = []
        self._text: list[str] = []
        self._uncounted = False  # a chunk came without its number of tokens
        self.arrivals: list[tuple[float, int]] = []
        self.terminated = False
        self.finish_reason: str | None = None
        self.prompt_tokens: int | None = None
        self.completion_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.verify_steps: int | None = None
        self.error: tuple[str, str] | None = None

    @property
    def last_token_s(self) -> float | None:
        return self.arrivals[-1][0] if self.arrivals else None

    def feed(self, arrived_s: float, body: bytes) -> None:
        for name, data in self._events.feed(body):
            if not self.terminated:
                self._event(arrived_s, name, data)

    def degenerate(self) -> bool:
        """Whether the answer is long and repeats itself: acceptance on it says nothing about real text."""
        items: list[Any] = self._ids or re.findall(r"\w+|\S", "".join(self._text))
        if len(items) < _DEGENERATE_MIN:
            return False
        return len(set(pairwise(items))) < _DEGENERATE_SHARE * len(items)

    def _event(self, arrived_s: float, name: bytes, data: bytes) -> None:
        if data == b"[DONE]" or data.strip() == b"[DONE]":
            self.terminated = True
            return
        try:
            if self._api == "generate":
                self._native(arrived_s, _native_decoder.decode(data))
            else:
                self._openai(arrived_s, _openai_decoder.decode(data))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._fail("malformed", f"{error}: {data[:_DETAIL_CHARS]!r}")
        if name == b"error":
            self._fail("error_event", data.decode(errors="replace"))

    def _fail(self, error: str, detail: str) -> None:
        self.error = self.error or (error, detail[:_DETAIL_CHARS])

    def _native(self, arrived_s: float, event: _Native) -> None:
        if event.error is not None:
            self._fail("error_event", _words(event.error))
            return
        meta = event.meta_info
        if meta is None:
            self._fail("malformed", "an event of /generate without meta_info")
            return
        self._take_counts(meta.prompt_tokens, meta.cached_tokens, meta.spec_verify_ct)
        new = self._new_tokens(meta.completion_tokens)
        if new:
            self.arrivals.append((arrived_s, new))
        finish = meta.finish_reason
        if finish is not None:
            self.finish_reason = str(finish.get("type")) if isinstance(finish, dict) else str(finish)
            if self.finish_reason == "abort" and isinstance(finish, dict):
                self._fail("aborted", str(finish.get("message")))
        if event.output_ids and (new or finish is not None):
            self._take_ids(event.output_ids, new, finish is not None)

    def _take_ids(self, raw: msgspec.Raw, new: int, last: bool) -> None:
        """Keep the answer's ids; a server sends them cumulatively, or each event's own."""
        if not last and len(self.arrivals) != 2 and not self._ids:
            return  # decided on the second event: until then, and while cumulative, there is nothing to keep
        try:
            ids = _ids_decoder.decode(raw)
        except msgspec.DecodeError:
            return  # ids are for a remark only
        if len(ids) == self.completion_tokens:
            self._ids = ids if last else []
        elif len(ids) == new:
            self._ids += ids

    def _openai(self, arrived_s: float, event: _OpenAI) -> None:
        if event.error is not None or event.object == "error":
            self._fail("error_event", _words(event.error if event.error is not None else event.message))
            return
        usage = event.usage
        new = 0
        if usage is not None:
            details = usage.prompt_tokens_details
            self._take_counts(usage.prompt_tokens, details.cached_tokens if details else None, None)
            new = self._new_tokens(usage.completion_tokens)
            if self._uncounted:
                new = 0  # this total sums up what chunks before it brought, nobody knows which how much
        for choice in event.choices:
            if choice.finish_reason is not None:
                self.finish_reason = choice.finish_reason
            text = _choice_text(choice)
            if text:
                self._text.append(text)
            if new or (text and (usage is None or self._uncounted)):
                self._uncounted = self._uncounted or not new
                self.arrivals.append((arrived_s, new))
                new = 0

    def _take_counts(self, prompt: int | None, cached: int | None, verify: int | None) -> None:
        if prompt is not None:
            self.prompt_tokens = prompt
        if cached is not None:
            self.cached_tokens = cached
        if verify is not None:
            self.verify_steps = verify

    def _new_tokens(self, completion_tokens: int | None) -> int:
        if completion_tokens is None:
            return 0
        new = completion_tokens - (self.completion_tokens or 0)
        if new < 0:
            self._fail("malformed", f"completion_tokens fell by {-new}")
            return 0
        self.completion_tokens = completion_tokens
        return new


def read_on(exchange: Exchange, stream: StreamReader, count: int) -> bool:
    """Parse up to `count` of the reads that wait; True while more wait."""
    if exchange.status not in (0, 200):
        body = b"".join(body for _, body in exchange.take(len(exchange.reads)))
        exchange.detail = exchange.detail or body[:_DETAIL_CHARS].decode(errors="replace")
        return False
    for arrived_s, body in exchange.take(count):
        stream.feed(arrived_s, body)
    return bool(exchange.reads)


def make_record(
    exchange: Exchange, stream: StreamReader, key: PointKey, attempt: int, worker: int, zero_s: float
) -> RequestRecord:
    """The record of a finished exchange whose reads have all been fed to `stream`.

    Args:
        exchange: what travelled.
        stream: what it said.
        key: the point it belongs to.
        attempt: which measurement of the point.
        worker: number of this client process.
        zero_s: the point clock's zero, on the monotonic clock.
    """
    planned = exchange.planned
    error, detail = judge(exchange, stream)
    ticks, tokens, exact = _chunks(exchange.due_s, stream)
    sent_s = exchange.sent_s if exchange.sent_s is not None else exchange.end_s
    return RequestRecord(
        variant=key.variant,
        concurrency=key.concurrency,
        repeat=key.repeat,
        index=planned.index,
        attempt=attempt,
        worker=worker,
        start_s=round(exchange.due_s - zero_s, 6),
        end_s=round(exchange.end_s - zero_s, 6),
        send_delay_s=round(sent_s - exchange.due_s, 6),
        scheduled_s=planned.due_s,
        chunk_ticks=ticks,
        chunk_tokens=tokens,
        tokens_exact=exact,
        prompt_tokens=stream.prompt_tokens,
        planned_prompt_tokens=planned.prompt_tokens,
        output_tokens=stream.completion_tokens or len(ticks),
        planned_output_tokens=planned.output_tokens,
        cached_tokens=stream.cached_tokens,
        verify_steps=stream.verify_steps,
        finish_reason=stream.finish_reason,
        degenerate=stream.degenerate(),
        status_code=exchange.status or None,
        error=error,
        error_detail=detail,
    )


def judge(exchange: Exchange, stream: StreamReader) -> tuple[str | None, str | None]:
    """(error class, words) of a finished exchange; (None, None) is a success."""
    if exchange.error is not None:
        return exchange.error, exchange.detail
    if exchange.status != 200:
        return "http_status", f"status {exchange.status}: {exchange.detail or ''}".rstrip(": ")
    if stream.error is not None:
        return stream.error
    if not stream.terminated:
        plain = exchange.content_type.startswith(b"application/json")
        return ("not_a_stream", exchange.content_type.decode("latin-1")) if plain else ("unterminated", None)
    if stream.finish_reason is None:
        return "no_finish_reason", None
    if stream.finish_reason not in ("length", "stop"):
        return "aborted", f"finish reason {stream.finish_reason}"
    return _judge_counts(exchange, stream)


def _judge_counts(exchange: Exchange, stream: StreamReader) -> tuple[str | None, str | None]:
    planned = exchange.planned
    got = stream.completion_tokens if stream.completion_tokens is not None else len(stream.arrivals)
    if planned.output_tokens is not None and got != planned.output_tokens:
        return "output_tokens", f"{got} tokens instead of {planned.output_tokens}"
    if None not in (planned.prompt_tokens, stream.prompt_tokens) and planned.prompt_tokens != stream.prompt_tokens:
        return "prompt_tokens", f"{stream.prompt_tokens} prompt tokens instead of {planned.prompt_tokens}"
    return None, None


def _chunks(start_s: float, stream: StreamReader) -> tuple[tuple[int, ...], tuple[int, ...] | None, bool]:
    """(chunk_ticks, chunk_tokens, tokens_exact) of a record."""
    ticks: list[int] = []
    total = 0
    for arrived_s, _ in stream.arrivals:
        # Rounded from the start each time, so that rounding errors do not add up.
        tick = max(total, round((arrived_s - start_s) / TICK_S))
        ticks.append(tick - total)
        total = tick
    tokens = [new for _, new in stream.arrivals]
    exact = 0 not in tokens and sum(tokens) == (stream.completion_tokens or 0)
    if not exact:
        tokens = spread(stream.completion_tokens or len(tokens), len(tokens))
    return tuple(ticks), None if set(tokens) <= {1} else tuple(tokens), exact


def spread(total: int, parts: int) -> list[int]:
    """`total` split into `parts` whole numbers as equal as can be: [3, 3, 2] for 8 in 3."""
    return [total * (i + 1) // parts - total * i // parts for i in range(parts)]


def _choice_text(choice: _Choice) -> str:
    if choice.text:
        return choice.text
    delta = choice.delta
    if delta is None:
        return ""
    for part in (delta.content, delta.reasoning_content, delta.reasoning, delta.tool_calls):
        if part:
            return part if isinstance(part, str) else _words(part)
    return ""


def _words(value: Any) -> str:
    if isinstance(value, dict) and isinstance(value.get("message"), str):
        return str(value["message"])
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
