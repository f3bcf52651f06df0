"""The framer takes one response off a connection, however the bytes are cut."""

import pytest

from harness.http1 import MalformedResponse, ResponseFramer

CHUNKED_HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNKED = CHUNKED_HEAD + (b"5\r\nhello\r\nA;x=y\r\n0123\r\n\r\n89\r\n0\r\nTrailer: 1\r\n\r\n")


def play(response: bytes, step: int) -> tuple[ResponseFramer, bytes]:
    framer = ResponseFramer()
    body = b"".join(framer.feed(response[at : at + step]) for at in range(0, len(response), step))
    return framer, body


@pytest.mark.parametrize("step", range(1, 30))
def test_chunks_cut_anywhere(step: int) -> None:
    """A chunked body comes out whole for every size of read."""
    framer, body = play(CHUNKED, step)
    assert (framer.status, framer.done, framer.keep_alive) == (200, True, True)
    assert body == b"hello0123\r\n\r\n89"


def test_chunks_cut_in_three_at_every_two_bytes() -> None:
    """Three reads, of which the one between may be a whole chunk, a part of a line, or nothing but its end."""
    for first in range(1, len(CHUNKED) - 1):
        for second in range(first + 1, len(CHUNKED)):
            framer = ResponseFramer()
            pieces = (CHUNKED[:first], CHUNKED[first:second], CHUNKED[second:])
            body = b"".join(framer.feed(piece) for piece in pieces)
            assert (body, framer.done, framer.keep_alive) == (b"hello0123\r\n\r\n89", True, True), (first, second)


@pytest.mark.parametrize("line", [b"5", b"05", b"5 ", b"5;x=y", b"5 ; x"])
def test_sizes_may_be_padded_and_have_extensions(line: bytes) -> None:
    """As some servers write them."""
    framer, body = play(CHUNKED_HEAD + line + b"\r\nhello\r\n0\r\n\r\n", 100)
    assert (body, framer.done) == (b"hello", True)


def test_one_chunk_per_read_takes_the_fast_path() -> None:
    """A read that is exactly one chunk gives its body, and an end mark inside a chunk does not end the response."""
    framer = ResponseFramer()
    framer.feed(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    assert framer.feed(b"7\r\n0\r\n\r\nab\r\n") == b"0\r\n\r\nab"
    assert not framer.done
    assert framer.feed(b"0\r\n\r\n") == b""
    assert framer.done


@pytest.mark.parametrize("step", [1, 7, 100])
def test_counted_body(step: int) -> None:
    """Content-Length ends the response without a close."""
    framer, body = play(b"HTTP/1.1 503 No\r\nContent-Length: 4\r\n\r\nbusy", step)
    assert (framer.status, framer.done, body) == (503, True, b"busy")


def test_informational_head_is_skipped() -> None:
    """100 Continue is followed by the real head."""
    framer, body = play(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx", 9)
    assert (framer.status, body) == (200, b"x")


def test_body_until_close() -> None:
    """Without a length the close ends the body, and the connection is spent."""
    framer, body = play(b"HTTP/1.0 200 OK\r\n\r\nabc", 50)
    assert not framer.done
    assert framer.end_of_stream()
    assert (body, framer.keep_alive) == (b"abc", False)


def test_close_inside_a_chunk_is_no_end() -> None:
    """A close in the middle of a chunked body does not end the response properly."""
    framer, _ = play(CHUNKED[:70], 70)
    assert not framer.end_of_stream()


@pytest.mark.parametrize(
    ("response", "keep"),
    [
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nextra", False),
        (b"HTTP/1.1 204 No Content\r\n\r\n", True),
    ],
)
def test_keep_alive(response: bytes, keep: bool) -> None:
    """A connection is reused only if the server lets it and sent nothing beyond the response."""
    framer, _ = play(response, len(response))
    assert (framer.done, framer.keep_alive) == (True, keep)


@pytest.mark.parametrize(
    "response",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: two\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
        CHUNKED_HEAD + b"1_0\r\n0123456789abcdef\r\n",
        CHUNKED_HEAD + b"0x5\r\nhello\r\n",
        CHUNKED_HEAD + b"+5\r\nhello\r\n",
        CHUNKED_HEAD + b";x=y\r\n",
        CHUNKED_HEAD + b"xyz\r\n",
        CHUNKED_HEAD + b"-5\r\n",
        CHUNKED_HEAD + b"2\r\nabcd\r\n",
    ],
)
def test_broken_framing_raises(response: bytes) -> None:
    """Bytes that break HTTP are refused, not guessed at."""
    with pytest.raises(MalformedResponse):
        play(response, len(response))
