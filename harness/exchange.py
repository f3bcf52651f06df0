"""One blocking HTTP exchange of the control plane, bounded in time and length whatever the server does."""

from __future__ import annotations

import http.client
import socket
import threading
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress


class HttpStatus(OSError):
    """An answer other than success."""

    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(f"HTTP {code}; is --admin-api-key right?" if code in (401, 403) else f"HTTP {code}")


def exchange(
    url: str, path: str, method: str, body: bytes | None, headers: Mapping[str, str], timeout_s: float, max_bytes: int
) -> bytes:
    """The body of a success. Redirects are not followed and proxies not asked: neither may see a key.

    Args:
        url: base URL of the server; its path is kept.
        path: what follows it.
        method, body, headers: the request.
        timeout_s: for connecting, and again for all that follows.
        max_bytes: the longest answer that is read.

    Raises:
        HttpStatus: another answer.
        OSError: no answer in time, however slowly it drips.
        ValueError: it is too long.
    """
    parts = urllib.parse.urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(str(parts.hostname), parts.port, timeout=timeout_s)
    with _as_os_error(), closing(connection):
        connection.connect()
        # The connection forgets its socket where the end of the response is the server's to tell.
        with _cut_off(connection.sock, timeout_s):
            connection.request(method, parts.path.rstrip("/") + path, body, dict(headers))
            with connection.getresponse() as response:
                return _content(response, path, max_bytes)


def _content(response: http.client.HTTPResponse, path: str, max_bytes: int) -> bytes:
    if not 200 <= response.status < 300:
        raise HttpStatus(response.status)
    content = response.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"{path} answered more than {max_bytes} bytes")
    if response.length:
        raise OSError(f"{path} ended {response.length} bytes early")
    return content


@contextmanager
def _as_os_error() -> Iterator[None]:
    try:
        yield
    except http.client.HTTPException as error:
        raise OSError(f"no HTTP: {error!r}") from error


@contextmanager
def _cut_off(sock: socket.socket, timeout_s: float) -> Iterator[None]:
    """Hang up after `timeout_s`: a socket's own timeout starts anew with every byte."""

    def hang_up() -> None:
        late.set()
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)

    late = threading.Event()
    timer = threading.Timer(timeout_s, hang_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (OSError, http.client.HTTPException):
        if not late.is_set():  # else it tells of our own hanging up
            raise
    finally:
        timer.cancel()
    if late.is_set():
        raise TimeoutError(f"no whole answer within {timeout_s:g} s")
