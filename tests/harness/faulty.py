"""A server that misbehaves on its control plane, byte by byte: what real servers, proxies and other programs do."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

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
