"""What comes in on many connections, read in one go.

A thousand streams do not fit a processor's cache, so what a read touches beside its bytes is most of what it costs. A
read that is one whole chunk of a streamed response, as most are, is therefore stamped and stored and no more; every
other one goes to its connection. The event loop is only asked to tell when there is something to read.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
from typing import Final, Protocol

from harness.http1 import COMMON_BYTES, WHOLE_CHUNK
from harness.transport import Backlog, monotonic

# By edge: each readiness is told once, which spares the kernel to look again whether it still holds.
_WATCHED: Final = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET
_REST_BYTES: Final = 1 << 18
_READS_IN_A_ROW: Final = 16

Stored = list[tuple[float, bytes]]


class Receiver(Protocol):
    """Takes what its connection brings."""

    def received(self, now: float, data: bytes, ended: bool) -> Stored | None:
        """Take a read.

        Args:
            now: when it was read.
            data: what had come; empty only where the stream ended.
            ended: nothing comes after it.

        Returns:
            Where to store the bodies of reads that are one whole chunk from here on, instead of calling this; None to
            be called next time, whatever comes.
        """

    def failed(self, error: OSError) -> None:
        """The connection can be read no more."""


class Reads:
    """Reads from all watched connections as soon as the event loop that runs then finds something on any.

    Args:
        backlog: of the exchanges that are read here.
    """

    def __init__(self, backlog: Backlog) -> None:
        self._backlog = backlog
        self._receivers: dict[int, Receiver] = {}
        self._streaming: dict[int, Stored] = {}
        self._epoll = select.epoll()
        self._loop: asyncio.AbstractEventLoop | None = None

    def watch(self, fd: int, receiver: Receiver) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._epoll.fileno(), self._read_ready)
        self._receivers[fd] = receiver
        self._epoll.register(fd, _WATCHED)

    def forget(self, fd: int, receiver: Receiver) -> None:
        """Read no more for a receiver, whose file descriptor may be another's already."""
        if self._receivers.get(fd) is receiver:
            del self._receivers[fd]
            self._streaming.pop(fd, None)
            with contextlib.suppress(OSError):  # closed
                self._epoll.unregister(fd)

    def close(self) -> None:
        if self._loop is not None:
            self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()

    def _read_ready(self) -> None:
        streaming = self._streaming
        reads = size = 0
        for fd, event in self._epoll.poll(0):
            try:
                data = os.read(fd, COMMON_BYTES)
            except OSError as error:
                self._failed(fd, error)
                continue
            now = monotonic()
            begins = WHOLE_CHUNK[len(data)]
            if data.startswith(begins) and fd in streaming and event == select.EPOLLIN:
                body = data[len(begins[0]) : -2]
                streaming[fd].append((now, body))
                reads += 1
                size += len(body)
            elif fd in self._receivers:
                self._read_on(fd, now, data, event)
        self._backlog.came(reads, size)

    def _read_on(self, fd: int, now: float, data: bytes, event: int) -> None:
        """Hand on a read, with what else there is where that may not have been all."""
        ended = not data
        if data and (len(data) == COMMON_BYTES or event != select.EPOLLIN):
            data, ended = self._rest(fd, data, event)
            now = monotonic()
        stored = self._receivers[fd].received(now, data, ended)
        if stored is None:
            self._streaming.pop(fd, None)
        else:
            self._streaming[fd] = stored

    def _rest(self, fd: int, data: bytes, event: int) -> tuple[bytes, bool]:
        """`data` and what comes after it, and whether the stream ended there."""
        pieces = [data]
        for _ in range(_READS_IN_A_ROW):
            try:
                pieces.append(os.read(fd, _REST_BYTES))
            except BlockingIOError:
                return b"".join(pieces), False
            except OSError:  # reset: an end as well
                return b"".join(pieces), True
            if not pieces[-1]:
                return b"".join(pieces), True
            if len(pieces[-1]) < _REST_BYTES and event == select.EPOLLIN:
                return b"".join(pieces), False  # what comes later is told of
        self._epoll.modify(fd, _WATCHED)  # more may be there: tell again, after the others' turn
        return b"".join(pieces), False

    def _failed(self, fd: int, error: OSError) -> None:
        if fd in self._receivers and not isinstance(error, BlockingIOError):
            self._receivers[fd].failed(error)
