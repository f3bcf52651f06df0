"""One HTTP/1.1 response taken off a connection's bytes, as they come.

Only framing is done here (status, headers, chunked or counted bodies), because only framing says where a response
ends and the connection is free again. What the body means is left for later, off the hot path.
"""

from __future__ import annotations

from typing import Final

MAX_HEAD_BYTES: Final = 1 << 18
MAX_LENGTH_DIGITS: Final = 18  # int() refuses thousands of them by an error of its own
_COMMON_BYTES: Final = 4096  # reads shorter than this may be recognised by their length
_HEAD, _COUNTED, _CHUNK_SIZE, _CHUNK, _CHUNK_END, _TRAILERS, _UNTIL_CLOSE, _DONE = range(8)


class MalformedResponse(Exception):
    """Bytes that are no HTTP/1.1 response."""


class ResponseFramer:
    """Follows one response; feed it bytes in order until `done`.

    Attributes:
        status: HTTP status, 0 before the head is complete.
        headers: lower-case names; of a repeated header the last.
        done: the response is complete.
        keep_alive: the connection may carry another request; valid when done.
    """

    __slots__ = ("_left", "_state", "_tail", "done", "headers", "keep_alive", "status")

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.done = False
        self.keep_alive = True
        self._state = _HEAD
        self._left = 0
        self._tail = b""

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes of the connection and return the body bytes among them.

        Raises:
            MalformedResponse: the bytes break HTTP's framing.
        """
        if self._state == _CHUNK_SIZE and len(data) < _COMMON_BYTES and not self._tail:
            # A server that streams writes one chunk per event, and a read mostly holds just that.
            lines = _SIZE_LINES[len(data)]
            if data.startswith(lines):
                return data[len(lines[0]) : -2]
        return self._feed_slowly(data)

    def end_of_stream(self) -> bool:
        """Tell the framer that the peer closed; True if that ends the response properly."""
        if self._state == _UNTIL_CLOSE:
            self._state, self.done = _DONE, True
        return self.done

    def _feed_slowly(self, data: bytes) -> bytes:
        data = self._tail + data if self._tail else data
        self._tail = b""
        at = 0
        body: list[bytes] = []
        while at < len(data) and self._state != _DONE:
            moved = self._step(data, at, body)
            if moved == at:
                self._tail = data[at:]
                return b"".join(body)
            at = moved
        if at < len(data):
            self.keep_alive = False  # bytes after the response: nobody asked for them
        return b"".join(body)

    def _step(self, data: bytes, at: int, body: list[bytes]) -> int:
        """Handle one element at `at`; returns where the next begins, or `at` where it is not complete yet."""
        if self._state == _HEAD:
            return self._step_head(data, at)
        if self._state == _UNTIL_CLOSE:
            body.append(data[at:])
            return len(data)
        if self._state in (_COUNTED, _CHUNK):
            return self._step_body(data, at, body)
        return self._step_line(data, at)

    def _step_head(self, data: bytes, at: int) -> int:
        end = data.find(b"\r\n\r\n", at)
        if end < 0:
            if len(data) - at > MAX_HEAD_BYTES:
                raise MalformedResponse("no end of the headers")
            return at
        self._read_head(data[at:end])
        return end + 4

    def _step_body(self, data: bytes, at: int, body: list[bytes]) -> int:
        piece = data[at : at + self._left]
        body.append(piece)
        self._left -= len(piece)
        if self._left == 0:
            if self._state == _COUNTED:
                self._finish()
            else:
                self._state = _CHUNK_END
        return at + len(piece)

    def _step_line(self, data: bytes, at: int) -> int:
        end = data.find(b"\r\n", at)
        if end < 0:
            if len(data) - at > MAX_HEAD_BYTES:
                raise MalformedResponse("no end of a chunk's line")
            return at
        line = data[at:end]
        if self._state == _CHUNK_SIZE:
            self._left = _chunk_size(line)
            self._state = _CHUNK if self._left else _TRAILERS
        elif self._state == _CHUNK_END:
            if line:
                raise MalformedResponse("a chunk is longer than it says")
            self._state = _CHUNK_SIZE
        elif not line:
            self._finish()
        return end + 2

    def _read_head(self, head: bytes) -> None:
        status_line, *lines = head.split(b"\r\n")
        version, _, rest = status_line.partition(b" ")
        status = rest[:3]
        if not version.startswith(b"HTTP/1.") or not status.isdigit():
            raise MalformedResponse(f"not an HTTP/1.1 status line: {status_line[:80]!r}")
        self.status = int(status)
        if 100 <= self.status < 200:
            return  # informational: the real head follows
        self.headers = {name.strip().lower(): value.strip() for name, _, value in (x.partition(b":") for x in lines)}
        connection = self.headers.get(b"connection", b"").lower()
        self.keep_alive = connection != b"close" and (version != b"HTTP/1.0" or connection == b"keep-alive")
        self._choose_body()

    def _choose_body(self) -> None:
        length = self.headers.get(b"content-length")
        if b"chunked" in self.headers.get(b"transfer-encoding", b"").lower():
            self._state = _CHUNK_SIZE
        elif self.status in (204, 304) or length == b"0":
            self._finish()
        elif length is None:
            self._state, self.keep_alive = _UNTIL_CLOSE, False
        elif length.isdigit() and len(length) <= MAX_LENGTH_DIGITS:
            self._state, self._left = _COUNTED, int(length)
        else:
            raise MalformedResponse(f"content-length is {length[:40]!r}")

    def _finish(self) -> None:
        self._state, self.done = _DONE, True


def _size_lines(length: int) -> tuple[bytes, ...]:
    """The lines that a read of `length` bytes may begin with where it is exactly one chunk, in either case."""
    for digits in range(1, 4):
        size = length - digits - 4
        if size > 0 and len(f"{size:x}") == digits:
            return b"%x\r\n" % size, b"%X\r\n" % size
    return ()  # no such read


_SIZE_LINES: Final = tuple(_size_lines(length) for length in range(_COMMON_BYTES))


def _chunk_size(line: bytes) -> int:
    digits = line.split(b";", 1)[0].strip()
    # int() takes more than HTTP does: signs, underscores and 0x.
    if not digits or digits.strip(b"0123456789abcdefABCDEF"):
        raise MalformedResponse(f"a chunk's size is {line[:40]!r}")
    return int(digits, 16)
