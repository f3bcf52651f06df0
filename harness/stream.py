"""What a stream says, event by event, on the three APIs.

Counts are the server's own: cumulative ones on /generate, the usage of each chunk on the OpenAI APIs where the server
gives it, the final usage where it does not. Events may be fed long after they arrived.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise, takewhile
from typing import Any

import msgspec

from harness.api import Api
from harness.sse import EventSplitter

DETAIL_CHARS = 300
_START, _NEXT, _END = b"data: {", b"\n\ndata: ", b"}\n\n"
_DEGENERATE_SHARE = 0.1  # fewer distinct pairs of neighbours than this: the answer repeats itself
_DEGENERATE_MIN = 32  # shorter answers repeat by chance


class _Meta(msgspec.Struct, gc=False):
    finish_reason: Any = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    spec_verify_ct: int | None = None


class _Native(msgspec.Struct, gc=False):
    """What /generate streams: cumulative counts, or cumulative ids where the counts are missing."""

    meta_info: _Meta | None = None
    output_ids: msgspec.Raw = msgspec.Raw()
    error: Any = None


class _PromptDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _Delta(msgspec.Struct, gc=False):
    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    tool_calls: Any = None


class _Choice(msgspec.Struct, gc=False):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _OpenAI(msgspec.Struct, gc=False):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None
    object: str | None = None
    message: Any = None


_native_decoder = msgspec.json.Decoder(_Native)
_openai_decoder = msgspec.json.Decoder(_OpenAI)
_natives: msgspec.json.Decoder[Any] = msgspec.json.Decoder(list[_Native])
_openais: msgspec.json.Decoder[Any] = msgspec.json.Decoder(list[_OpenAI])
_ids_decoder = msgspec.json.Decoder(list[int])
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


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

    def feed_all(self, reads: Sequence[tuple[float, bytes]]) -> None:
        """Feed several reads: those that hold nothing but whole, plain events at a fraction of the cost."""
        at = 0
        while at < len(reads):
            taken = self._feed_plain(reads[at:])
            if not taken:
                self.feed(*reads[at])
            at += taken or 1

    def _feed_plain(self, reads: Sequence[tuple[float, bytes]]) -> int:
        """Take the plain reads at the beginning, decoded as one JSON array; returns how many that were."""
        if self._events.pending or self.terminated:
            return 0
        texts = [body[6:-2] for _, body in reads if body.startswith(_START) and body.endswith(_END)]
        if len(texts) < len(reads):
            return self._feed_plain(list(takewhile(_is_plain, reads)))
        times = [arrived_s for arrived_s, _ in reads]
        array = b",".join(texts)
        if _NEXT in array:  # reads that hold several events each
            times = [at_s for at_s, text in zip(times, texts, strict=True) for _ in range(text.count(_NEXT) + 1)]
            array = array.replace(_NEXT, b",")
        decoder, take = (_natives, self._native) if self._api == "generate" else (_openais, self._openai)
        try:
            events = decoder.decode(b"[%b]" % array)
        except _UNREADABLE:
            return 0
        if len(events) != len(times):
            return 0
        for arrived_s, event in zip(times, events, strict=True):
            take(arrived_s, event)
        return len(reads)

    def degenerate(self) -> bool:
        """Whether the answer is long and repeats itself: acceptance on it says nothing about real text."""
        items: list[Any] = self._ids or re.findall(r"\w+|\S", "".join(self._text))
        if len(items) < _DEGENERATE_MIN:
            return False
        return len(set(pairwise(items))) < _DEGENERATE_SHARE * len(items)

    def _event(self, arrived_s: float, name: bytes, data: bytes) -> None:
        if data.strip() == b"[DONE]":
            self.terminated = True
            return
        try:
            if self._api == "generate":
                self._native(arrived_s, _native_decoder.decode(data))
            else:
                self._openai(arrived_s, _openai_decoder.decode(data))
        except _UNREADABLE as error:
            self._fail("malformed", f"{error}: {data[:DETAIL_CHARS]!r}")
        if name == b"error":
            self._fail("error_event", data.decode(errors="replace"))

    def _fail(self, error: str, detail: str) -> None:
        self.error = self.error or (error, detail[:DETAIL_CHARS])

    def _native(self, arrived_s: float, event: _Native) -> None:
        if event.error is not None:
            self._fail("error_event", _words(event.error))
            return
        meta = event.meta_info
        if meta is not None and meta.finish_reason is None and len(self.arrivals) > 1:
            # Most events: one more step. Where ids are cumulative, the last event has them all.
            if new := self._new_tokens(meta.completion_tokens):
                self.arrivals.append((arrived_s, new))
                if self._ids:
                    self._take_ids(event.output_ids, new, False)
            return
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


def _is_plain(read: tuple[float, bytes]) -> bool:
    """Whether a read holds whole events, from the first byte to the last, and each is a JSON object."""
    return read[1].startswith(_START) and read[1].endswith(_END)


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
