"""Requests over plain TCP by asyncio's own protocols: the least that can stand between the socket and the stamp.

Each connection is kept alive and carries one exchange at a time. Reads are stamped first and framed at once (see
harness.http1); the callback of a finished exchange runs inside the read, so the next request leaves without waiting
for a turn of the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import cast
from urllib.parse import urlsplit

from harness.errors import UserError
from harness.http1 import MalformedResponse, ResponseFramer
from harness.transport import Done, Exchange, monotonic

_OPEN_AT_ONCE = 64  # a listen queue is often 128 long


class RawTransport:
    """HTTP/1.1 over TCP; see harness.transport.Transport.

    Args:
        url: full request URL.
        headers: sent with every request.

    Raises:
        UserError: an https URL.
    """

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http":
            raise UserError(f"the raw transport speaks http only, not {url!r}; use the aiohttp transport")
        self.host = parts.hostname or ""
        self.port = parts.port or 80
        self.free: list[_Connection] = []
        self._all: set[_Connection] = set()
        self._by_exchange: dict[Exchange, _Connection] = {}
        self._opening: dict[Exchange, tuple[asyncio.Task[None], Done]] = {}
        self._head = _head(parts.netloc.rpartition("@")[2], parts.path or "/", headers)

    async def open(self, connections: int) -> None:
        for start in range(0, connections, _OPEN_AT_ONCE):
            count = min(_OPEN_AT_ONCE, connections - start)
            self.free += await asyncio.gather(*(self._connect() for _ in range(count)))

    def submit(self, exchange: Exchange, done: Done) -> None:
        while self.free:
            connection = self.free.pop()
            if connection.usable:
                self._send(connection, exchange, done)
                return
        task = asyncio.get_running_loop().create_task(self._open_and_send(exchange, done))
        self._opening[exchange] = (task, done)

    def fail(self, exchange: Exchange, error: str, detail: str) -> None:
        exchange.error, exchange.detail = error, detail
        exchange.end_s = monotonic()
        if exchange in self._opening:
            task, done = self._opening.pop(exchange)
            task.cancel()
            done(exchange)
        elif exchange in self._by_exchange:
            self._by_exchange[exchange].give_up()

    async def close(self) -> None:
        for task, _ in self._opening.values():
            task.cancel()
        for connection in tuple(self._all):
            connection.drop()
        await asyncio.sleep(0)

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: _Connection(self), self.host, self.port)
        self._all.add(connection)
        return connection

    async def _open_and_send(self, exchange: Exchange, done: Done) -> None:
        try:
            connection = await self._connect()
        except OSError as error:
            self._opening.pop(exchange, None)
            exchange.error, exchange.detail, exchange.end_s = "connect_failed", str(error), monotonic()
            done(exchange)
            return
        self._opening.pop(exchange, None)
        self._send(connection, exchange, done)

    def _send(self, connection: _Connection, exchange: Exchange, done: Done) -> None:
        self._by_exchange[exchange] = connection
        body = exchange.planned.body
        connection.start(exchange, done, self._head + b"%d\r\n\r\n%b" % (len(body), body))

    def release(self, connection: _Connection, exchange: Exchange, reusable: bool) -> None:
        """Called by a connection whose exchange is over, before the exchange is handed on."""
        del self._by_exchange[exchange]
        if reusable:
            self.free.append(connection)
        else:
            connection.drop()

    def forget(self, connection: _Connection) -> None:
        self._all.discard(connection)


class _Connection(asyncio.Protocol):
    """One keep-alive connection."""

    def __init__(self, owner: RawTransport) -> None:
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._done: Done | None = None
        self._framer = ResponseFramer()

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's own class is none by inheritance
        # A high-water mark of 0 makes uvloop write at once instead of at the end of the loop's turn, and calls
        # resume_writing exactly when the last byte has left.
        transport.set_write_buffer_limits(high=0)
        self._transport = transport

    def start(self, exchange: Exchange, done: Done, message: bytes) -> None:
        assert self._transport is not None
        self._exchange, self._done = exchange, done
        self._framer = ResponseFramer()
        exchange.connected_s = monotonic()
        self._transport.write(message)
        if exchange.sent_s is None and not self._transport.get_write_buffer_size():
            exchange.sent_s = monotonic()

    def resume_writing(self) -> None:
        if self._exchange is not None and self._exchange.sent_s is None:
            self._exchange.sent_s = monotonic()

    def data_received(self, data: bytes) -> None:
        now = monotonic()
        exchange = self._exchange
        if exchange is None:
            self.drop()  # bytes that nobody asked for
            return
        framer = self._framer
        try:
            body = framer.feed(data)
        except MalformedResponse as error:
            self._finish(now, "malformed", str(error))
            return
        if body:
            exchange.add(now, body)
        if framer.done:
            self._finish(now)

    def eof_received(self) -> bool:
        if self._exchange is not None:
            if self._framer.end_of_stream():
                self._finish(monotonic())
            else:
                self._finish(monotonic(), "connection_lost", "the server closed the connection inside the response")
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._owner.forget(self)
        if self._exchange is not None:
            self._finish(monotonic(), "connection_lost", str(error or "the connection was closed"))

    def give_up(self) -> None:
        """End the exchange, whose error is already set."""
        self._finish(monotonic())

    def drop(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _finish(self, now: float, error: str | None = None, detail: str | None = None) -> None:
        exchange, done = self._exchange, self._done
        assert exchange is not None
        assert done is not None
        self._exchange = self._done = None
        exchange.end_s = now
        exchange.status = self._framer.status
        exchange.content_type = self._framer.headers.get(b"content-type", b"")
        if error is not None:
            exchange.error, exchange.detail = error, detail
        reusable = exchange.error is None and self._framer.keep_alive and self.usable
        self._owner.release(self, exchange, reusable)
        done(exchange)


def _head(host: str, path: str, headers: Mapping[str, str]) -> bytes:
    lines = [f"POST {path} HTTP/1.1", f"Host: {host}"]
    fields = {"Accept": "text/event-stream", "Content-Type": "application/json"} | dict(headers)
    lines += [f"{name}: {value}" for name, value in fields.items()]
    if any("\r" in line or "\n" in line for line in lines):
        raise UserError("a header or the URL holds a line break; take it out")
    return "\r\n".join([*lines, "Content-Length: "]).encode("latin-1")
