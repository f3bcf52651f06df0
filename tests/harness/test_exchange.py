"""An answer that does not come whole in time is late, and nobody is said to have hung up but us."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from harness.exchange import exchange

PATIENCE_S = 60.0
OK = b"HTTP/1.1 200 OK\r\n"


def answered(answer: bytes, timeout_s: float, ends: bool, drips: bool = False) -> bytes:
    """What an exchange makes of a server that says so much, and then hangs up, is silent or drips on."""
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as client:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        server.settimeout(PATIENCE_S)
        found = client.submit(exchange, url, "/x", "GET", None, {}, timeout_s, 1 << 20)
        with server.accept()[0] as peer:
            peer.settimeout(PATIENCE_S)
            with suppress(OSError):  # on a machine that stands still we may have been given up before we began
                heard = b""
                while not heard.endswith(b"\r\n\r\n") and (piece := peer.recv(1000)):
                    heard += piece
                peer.sendall(answer)
                if ends:
                    peer.shutdown(socket.SHUT_WR)
            deadline = time.monotonic() + PATIENCE_S
            while drips and not found.done() and time.monotonic() < deadline:
                with suppress(OSError):
                    peer.send(b"a")
                time.sleep(0.01)
            return found.result(PATIENCE_S)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        OK + b"X-Slow",
        OK + b"Content-Length: 5\r\n\r\nab",
        OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n",
        OK + b"\r\nab",
    ],
)
def test_silence_in_any_place_is_late(answer: bytes) -> None:
    """Before the answer, in its head, and in a body of each kind."""
    with pytest.raises(TimeoutError):
        answered(answer, 0.3, ends=False)


@pytest.mark.parametrize("answer", [OK, OK + b"X: ", OK + b"Content-Length: 100000\r\n\r\n", OK + b"\r\n"])
def test_a_byte_now_and_then_does_not_hold_us(answer: bytes) -> None:
    """Each begins a socket's own timeout anew; the last of these ends where the server closes, which it never does."""
    with pytest.raises(TimeoutError):
        answered(answer, 0.3, ends=False, drips=True)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", "no HTTP: RemoteDisconnected"),
        (OK + b"Content-Length: 5\r\n\r\nab", "/x ended 3 bytes early"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n", "no HTTP: IncompleteRead"),
        (b"HTTP/1.1 401 No\r\n\r\n", "HTTP 401; is --admin-api-key right"),
    ],
)
def test_a_server_that_hangs_up_is_not_late(answer: bytes, words: str) -> None:
    """Its own end is told as such."""
    with pytest.raises(OSError, match=words) as caught:
        answered(answer, PATIENCE_S, ends=True)
    assert not isinstance(caught.value, TimeoutError)


def test_a_whole_answer() -> None:
    """The body, however it ends."""
    assert answered(OK + b"Content-Length: 2\r\n\r\nab", PATIENCE_S, ends=False) == b"ab"
    assert answered(OK + b"\r\nab", PATIENCE_S, ends=True) == b"ab"
