"""Servers that misbehave, byte by byte: what real servers, proxies and other programs do."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

OK = b"HTTP/1.1 200 OK\r\n"
Talk = Callable[[socket.socket, threading.Event], None]


@contextmanager
def talking(talk: Talk) -> Iterator[str]:
    """A server that says to each connection what `talk` says; yields its URL."""
    over = threading.Event()

    def serve(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            talk(connection, over)

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listening.accept()
                threads.append(threading.Thread(target=serve, args=(connection,)))
                threads[-1].start()

    threads: list[threading.Thread] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        acceptor = threading.Thread(target=accept)
        acceptor.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            over.set()
            listening.shutdown(socket.SHUT_RDWR)
            acceptor.join()
    for thread in threads:
        thread.join()


def saying(answer: bytes) -> Talk:
    """Reads a request, gives one answer and hangs up."""

    def talk(connection: socket.socket, over: threading.Event) -> None:
        connection.recv(65536)
        connection.sendall(answer)

    return talk


def dripping(head: bytes, drop: bytes) -> Talk:
    """Begins an answer and adds to it, a little at a time, without end."""

    def talk(connection: socket.socket, over: threading.Event) -> None:
        connection.recv(65536)
        connection.sendall(head)
        while not over.wait(0.02):
            connection.sendall(drop)

    return talk


def silent(connection: socket.socket, over: threading.Event) -> None:
    """Accepts and never answers."""
    over.wait()


TALKS: dict[str, Talk] = {
    "ssh": saying(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"),
    "nothing": saying(b""),
    "long_header": saying(OK + b"x: " + b"y" * 100_000 + b"\r\n\r\n"),
    "cut_body": saying(OK + b"content-length: 100\r\n\r\n{}"),
    "cut_chunk": saying(OK + b"transfer-encoding: chunked\r\n\r\n50\r\n{"),
    "no_chunk": saying(OK + b"transfer-encoding: chunked\r\n\r\nxyz\r\n"),
    "overloaded": saying(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 2\r\n\r\n{}"),
    "too_many": saying(b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\n\r\n"),
    "silent": silent,
    "dripping_head": dripping(OK + b"x: ", b"y"),
    "dripping_body": dripping(OK + b"transfer-encoding: chunked\r\n\r\n", b"1\r\n{\r\n"),
}


def document(body: bytes) -> Talk:
    """A well-formed answer with this body."""
    return saying(OK + b"content-length: %d\r\n\r\n" % len(body) + body)


def _events(*lines: bytes) -> bytes:
    body = b"".join(b"data: " + line + b"\n\n" for line in lines)
    return OK + b"content-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(body) + body


_BEGUN = (
    b'{"text": "", "output_ids": [1], "meta_info": {"finish_reason": %s, "prompt_tokens": 8, "completion_tokens": 1}}'
)
# By the error that a request's record then names: what servers answer to a request that they do not finish.
UNFINISHED = {
    "aborted": _events(_BEGUN % b'{"type": "abort", "message": "out of memory"}', b"[DONE]"),
    "error_event": _events(_BEGUN % b"null", b'{"error": {"message": "the scheduler has died", "code": 500}}'),
    "unterminated": _events(_BEGUN % b"null"),
    "malformed": _events(b"{{{ <html>"),
}

# ---- in front of a real server

BUSY = {
    503: b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 2\r\n\r\n{}",
    429: b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\ncontent-length: 2\r\n\r\n{}",
}
Instead = Callable[[bytes], bytes | None]


def before(url: Callable[[], str], instead: Instead = lambda request: None) -> Talk:
    """Hands requests on to the server that is at `url` just then, but for those that `instead` answers itself."""

    def talk(connection: socket.socket, over: threading.Event) -> None:
        parts = urlsplit(url())
        with socket.create_connection((str(parts.hostname), parts.port)) as server:
            back = threading.Thread(target=_pump, args=(server, connection))
            back.start()
            try:
                while request := _request(connection):
                    answer = instead(request)
                    (server if answer is None else connection).sendall(request if answer is None else answer)
            finally:
                with suppress(OSError):
                    server.shutdown(socket.SHUT_RDWR)
                back.join()

    return talk


def _pump(source: socket.socket, target: socket.socket) -> None:
    """What a server says, to its client, to the end."""
    with suppress(OSError):
        while data := source.recv(1 << 20):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)


def _request(connection: socket.socket) -> bytes:
    """The next request, head and body; b"" at the end."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(65536)
        if not more:
            return b""
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    lines = (line.partition(b":") for line in head.split(b"\r\n")[1:])
    length = next((int(value) for name, _, value in lines if name.strip().lower() == b"content-length"), 0)
    while len(body) < length:
        more = connection.recv(1 << 20)
        if not more:
            return b""
        body += more
    return head + b"\r\n\r\n" + body
