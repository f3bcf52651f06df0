"""Server-sent events out of bytes that may be cut anywhere.

Follows the WHATWG rules where servers differ: LF, CRLF and CR ends, `data:` with or without a space, several data
lines in one event, comments. Splits bytes, never text, so a cut inside a UTF-8 character does no harm.
"""

from __future__ import annotations

from collections.abc import Iterator

_BOM = b"\xef\xbb\xbf"


class EventSplitter:
    """Feed it the body's bytes in order; it yields (event name, data) as each event ends.

    Attributes:
        pending: what was fed has not ended with the end of an event; valid when all that `feed` yields was taken.
    """

    __slots__ = ("_after_return", "_data", "_first", "_name", "_pieces", "pending")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []  # of an unfinished line
        self._data: list[bytes] = []
        self._name = b""
        self._first = True
        self._after_return = False
        self.pending = False

    def feed(self, body: bytes) -> Iterator[tuple[bytes, bytes]]:
        for line in self._lines(body):
            if line:
                self._field(line)
                continue
            if self._data:
                yield self._name, b"\n".join(self._data)
            self._data, self._name = [], b""
        self.pending = bool(self._data or self._pieces or self._name)

    def _lines(self, body: bytes) -> list[bytes]:
        """The lines that `body` completes; the rest is kept."""
        if self._after_return and body:
            self._after_return = False
            body = body.removeprefix(b"\n")  # second half of a CRLF whose first half ended the line
        if b"\n" not in body and b"\r" not in body:
            if body:
                self._pieces.append(body)  # a long event in many reads: joined once, when its end has come
            return []
        self._after_return = body.endswith(b"\r")
        text = b"".join(self._pieces) + body
        if b"\r" in text:
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = text.split(b"\n")
        self._pieces = [rest] if rest else []
        if self._first:
            self._first = False
            lines[0] = lines[0].removeprefix(_BOM)
        return lines

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._name = value
