"""One exchange, turned into one record: what the stream said, when, and whether it is a success.

Tokens are the server's own counts. Success is strict: status 200, no error event, a stream that ends with [DONE], a
finish reason of length or stop, and the planned numbers of prompt and output tokens. Everything else is an error with
a class of its own (ERRORS), kept with its real duration.
"""

from __future__ import annotations

from itertools import pairwise

from harness.records import TICK_S, PointKey, RequestRecord
from harness.secrets import hide
from harness.stream import DETAIL_CHARS, StreamReader
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


def read_on(exchange: Exchange, stream: StreamReader, count: int) -> bool:
    """Parse up to `count` of the reads that wait; True while more wait."""
    if exchange.status not in (0, 200):
        body = b"".join(body for _, body in exchange.take(len(exchange.reads)))
        exchange.detail = exchange.detail or body[:DETAIL_CHARS].decode(errors="replace")
        return False
    stream.feed_all(exchange.take(count))
    return bool(exchange.reads)


def make_record(
    exchange: Exchange,
    stream: StreamReader,
    key: PointKey,
    attempt: int,
    worker: int,
    zero_s: float,
    secrets: tuple[str, ...] = (),
) -> RequestRecord:
    """The record of a finished exchange whose reads have all been fed to `stream`.

    Args:
        exchange: what travelled.
        stream: what it said.
        key: the point it belongs to.
        attempt: which measurement of the point.
        worker: number of this client process.
        zero_s: the point clock's zero, on the monotonic clock.
        secrets: what was sent and is not to be written, though the server may repeat it.
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
        finish_reason=None if stream.finish_reason is None else hide(stream.finish_reason, secrets),
        degenerate=stream.degenerate(),
        status_code=exchange.status or None,
        error=error,
        error_detail=None if detail is None else hide(detail, secrets),
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
    # Rounded from the start each time, so that rounding errors do not add up.
    moments = [round((arrived_s - start_s) / TICK_S) for arrived_s, _ in stream.arrivals]
    # A timer may be early by half a millisecond, and an answer faster than that.
    ticks = [later - earlier for earlier, later in pairwise([min([0, *moments[:1]]), *moments])]
    tokens = [new for _, new in stream.arrivals]
    exact = 0 not in tokens and sum(tokens) == (stream.completion_tokens or 0)
    if not exact:
        tokens = spread(stream.completion_tokens or len(tokens), len(tokens))
    return tuple(ticks), None if tokens.count(1) == len(tokens) else tuple(tokens), exact


def spread(total: int, parts: int) -> list[int]:
    """`total` split into `parts` whole numbers as equal as can be: [3, 3, 2] for 8 in 3."""
    return [total * (i + 1) // parts - total * i // parts for i in range(parts)]
