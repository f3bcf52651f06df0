"""The mock server's modes: streams that trip parsers though they are well-formed, and ways in which real servers break.

The faults are the ones that load generators are known to count as successes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from harness.mock_streams import (
    DONE,
    HEAD,
    LAST,
    Ask,
    Chunk,
    Step,
    Timing,
    chunks,
    event,
    events,
    framed,
    plain,
    sse,
    stream,
    usage,
)

# -- well-formed, in ways that trip parsers ------------------------------------------------------------------------


def _mapped(change: Callable[[bytes], bytes]) -> Callable[[Ask, Timing], Iterator[Step]]:
    def play(ask: Ask, timing: Timing) -> Iterator[Step]:
        return stream(ask, timing, (change(body) for body in events(ask, timing)))

    return play


def _split(ask: Ask, timing: Timing) -> Iterator[Step]:
    """Every event in three pieces, cut inside a four-byte character, each in a read of its own."""
    head = HEAD
    for chunk in chunks(ask, timing):
        body = sse(event(ask, chunk).replace("w", "\U0001f600w"))
        cut = body.index("\U0001f600".encode()) + 2
        whole = head + framed(body)
        middle = whole.index(body) + cut
        yield timing.gap_s, whole[:middle]
        yield 0.002, whole[middle:-3]
        yield 0.002, whole[-3:]
        head = b""
    yield 0.0, framed(DONE) + LAST


def _empty_first(ask: Ask, timing: Timing) -> Iterator[Step]:
    """The first token is half a character: counted, but without text."""
    bodies = events(ask, timing)
    first = next(bodies).replace(b"w1 ", b"")
    return stream(ask, timing, _then(first, bodies))


def _role(ask: Ask, timing: Timing) -> Iterator[Step]:
    """A role chunk at once, which is no token, and usage in a chunk of its own at the end."""
    yield 0.0, HEAD + framed(sse('{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}],"usage":null}'))
    for number, chunk in enumerate(chunks(ask, timing)):
        body = event(ask, chunk)
        body = body[: body.index(',"usage"')] + "}"
        yield (timing.gap_s if number else timing.ttft_s), framed(sse(body))
    final = sse(f'{{"choices":[],"usage":{usage(ask, ask.output_tokens)}}}')
    yield 0.0, framed(final) + framed(DONE) + LAST


def _no_token(ask: Ask, timing: Timing) -> Iterator[Step]:
    """The model stops at once."""
    return stream(ask, timing, iter([sse(event(ask, Chunk(0, 0, "stop")).replace("w0 ", ""))]))


def _reasoning(ask: Ask, timing: Timing) -> Iterator[Step]:
    return stream(ask, timing, (body.replace(b'"content"', b'"reasoning_content"') for body in events(ask, timing)))


def _counted_body(ask: Ask, timing: Timing) -> Iterator[Step]:
    body = b"".join(events(ask, timing)) + DONE
    yield timing.ttft_s, HEAD.replace(b"transfer-encoding: chunked", b"content-length: %d" % len(body)) + body[:99]
    yield timing.gap_s, body[99:]


def _close_ends(ask: Ask, timing: Timing) -> Iterator[Step]:
    yield timing.ttft_s, HEAD.replace(b"transfer-encoding: chunked", b"connection: close")
    for body in events(ask, timing):
        yield timing.gap_s, body
    yield 0.0, DONE
    yield 0.0, None


def _stall(ask: Ask, timing: Timing) -> Iterator[Step]:
    """A pause of half a second in the middle."""
    for number, step in enumerate(plain(ask, timing)):
        wait_s, data = step
        yield (wait_s + 0.5 if number == ask.output_tokens // 2 else wait_s), data


def _big(ask: Ask, timing: Timing) -> Iterator[Step]:
    return plain(ask, replace(timing, padding_bytes=400_000))


def _verify(ask: Ask, timing: Timing) -> Iterator[Step]:
    """As a server that speculates with accept length 2 says it."""
    return stream(ask, timing, events(ask, timing, spec_verify_ct=ask.output_tokens // 2))


def _cached(ask: Ask, timing: Timing) -> Iterator[Step]:
    return _mapped(lambda body: body.replace(b'"cached_tokens":0', b'"cached_tokens":%d' % ask.prompt_tokens))(
        ask, timing
    )


def _degenerate(ask: Ask, timing: Timing) -> Iterator[Step]:
    repeated = (sse(event(ask, chunk).replace(f"w{chunk.total} ", "la ")) for chunk in chunks(ask, timing))
    return stream(ask, timing, (_with_ids(body, b"[5]") for body in repeated))


# -- failures ------------------------------------------------------------------------------------------------------


def _error_event(ask: Ask, timing: Timing) -> Iterator[Step]:
    return stream(ask, timing, _then_after(3, events(ask, timing), sse('{"error":{"message":"out of memory"}}')))


def _abort(ask: Ask, timing: Timing) -> Iterator[Step]:
    last = sse(event(ask, Chunk(3, 1, "abort")))
    return stream(ask, timing, _then_after(2, events(ask, timing), last))


def _early_stop(ask: Ask, timing: Timing) -> Iterator[Step]:
    return stream(ask, timing, _then_after(2, events(ask, timing), sse(event(ask, Chunk(3, 1, "stop")))))


def _clean_close(ask: Ask, timing: Timing) -> Iterator[Step]:
    """Ends as HTTP, but not as a stream: no finish reason, no [DONE]."""
    head = HEAD
    for body in _then_after(3, events(ask, timing), b""):
        yield timing.gap_s, head + (framed(body) if body else b"")
        head = b""
    yield 0.0, LAST


def _drop(ask: Ask, timing: Timing) -> Iterator[Step]:
    for number, step in enumerate(plain(ask, timing)):
        if number == 3:
            yield 0.0, None
            return
        yield step


def _hang(ask: Ask, timing: Timing) -> Iterator[Step]:
    yield 0.0, HEAD
    while True:
        yield 0.1, framed(b": ping\n\n")  # keeps the connection, brings nothing


def _hang_inside(ask: Ask, timing: Timing) -> Iterator[Step]:
    for number, step in enumerate(plain(ask, timing)):
        if number == 3:
            break
        yield step
    while True:
        yield 0.1, framed(b": ping\n\n")


def _whole(status: str, body: bytes) -> Callable[[Ask, Timing], Iterator[Step]]:
    def play(ask: Ask, timing: Timing) -> Iterator[Step]:
        head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        yield timing.ttft_s, head.encode() + body

    return play


def _no_http(ask: Ask, timing: Timing) -> Iterator[Step]:
    yield 0.0, b"SSH-2.0-OpenSSH_9.6\r\n\r\n"


def _then(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


def _then_after(count: int, bodies: Iterator[bytes], last: bytes) -> Iterator[bytes]:
    for _, body in zip(range(count), bodies, strict=False):
        yield body
    yield last


def _with_ids(body: bytes, ids: bytes) -> bytes:
    start = body.find(b'"output_ids":[')
    return body if start < 0 else body[:start] + b'"output_ids":' + ids + body[body.index(b"]", start) + 1 :]


MODES: dict[str, Callable[[Ask, Timing], Iterator[Step]]] = {
    "plain": plain,
    "crlf": _mapped(lambda body: body.replace(b"\n", b"\r\n")),
    "cr": _mapped(lambda body: body.replace(b"\n", b"\r")),
    "no_space": _mapped(lambda body: body.replace(b"data: ", b"data:")),
    "ping": _mapped(lambda body: b": ping\n\nid: 7\n" + body),
    "split": _split,
    "empty_first": _empty_first,
    "role": _role,
    "no_token": _no_token,
    "reasoning": _reasoning,
    "counted_body": _counted_body,
    "close_ends": _close_ends,
    "stall": _stall,
    "big": _big,
    "verify": _verify,
    "cached": _cached,
    "degenerate": _degenerate,
    "error_event": _error_event,
    "abort": _abort,
    "early_stop": _early_stop,
    "clean_close": _clean_close,
    "drop": _drop,
    "hang": _hang,
    "hang_inside": _hang_inside,
    "http_503": _whole("503 Service Unavailable", b'{"error":"queue is full"}'),
    "not_a_stream": _whole("200 OK", b'{"text":"all at once"}'),
    "no_http": _no_http,
    "no_json": _mapped(lambda body: body.replace(b"{", b"<", 1)),
    "other_prompt": lambda ask, timing: plain(replace(ask, prompt_tokens=ask.prompt_tokens + 1), timing),
}
