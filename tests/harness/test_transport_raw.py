"""Connections of the raw transport: kept while the server keeps them, and never trusted beyond that."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from harness.api import PlannedRequest
from harness.transport import Backlog, Exchange
from harness.transport_raw import RawTransport, _Connection

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"
PATIENCE_S = 60.0

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


def talking_to(serve: Serve, scenario: Callable[[RawTransport, Backlog], Awaitable[None]]) -> None:
    """Run a scenario with a transport to a server that does `serve` for each connection, and then closes it."""
    served: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.add(asyncio.create_task(serve_and_close(reader, writer)))

    async def serve_and_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await serve(reader, writer)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    async def talk() -> None:
        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        backlog = Backlog()
        transport = RawTransport(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/x", {})
        async with server:
            await scenario(transport, backlog)
            await transport.close()
            await asyncio.gather(*served)

    uvloop.run(asyncio.wait_for(talk(), PATIENCE_S))


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - what is waited for tells nobody
        await asyncio.sleep(0.001)


async def exchanged(transport: RawTransport, backlog: Backlog) -> Exchange:
    """One exchange, from the sending to its end."""
    over = asyncio.Event()
    exchange = Exchange(PlannedRequest(0, b"{}", None, None), 0.0, backlog)
    transport.submit(exchange, lambda _: over.set())
    await over.wait()
    return exchange


async def asked(reader: asyncio.StreamReader) -> bool:
    """Whether another request came."""
    try:
        await reader.readuntil(b"\r\n\r\n{}")
    except (asyncio.IncompleteReadError, ConnectionError):
        return False
    return True


def test_a_connection_carries_one_exchange_after_the_other() -> None:
    """The chunks of each come whole and in order, and no second connection is opened."""
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while await asked(reader):
            for data in (HEAD + chunk(b"a"), chunk(b"bc"), chunk(b"d" * 5000), chunk(b"e") + chunk(b"f"), LAST):
                writer.write(data)
                await asyncio.sleep(0.002)  # mostly a read each; the outcome is the same where it is not

    async def scenario(transport: RawTransport, backlog: Backlog) -> None:
        for _ in range(3):
            exchange = await exchanged(transport, backlog)
            assert (exchange.error, exchange.status) == (None, 200)
            assert b"".join(body for _, body in exchange.reads) == b"abc" + b"d" * 5000 + b"ef"
            stamps = [exchange.sent_s, *(now for now, _ in exchange.reads), exchange.end_s]
            assert stamps == sorted(stamps)
            assert backlog.unparsed_bytes > 5003
            exchange.take(len(exchange.reads))
            assert backlog.unparsed_bytes == 0

    talking_to(serve, scenario)
    assert connections == 1


def test_an_answer_may_be_cut_at_any_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two reads each, byte by byte, and pieces of a size and of a body that look like a whole chunk by themselves."""
    before, sly = HEAD + chunk(b"a") + b"3;x=y\r\nbcd\r\n" + chunk(b"0\r\n\r\n"), b"x\r\n1\r\nx\r\n" + b"e" * 8
    answer = before + chunk(sly) + b"0\r\nT: 1\r\n\r\n"
    assert chunk(sly).count(b"1\r\nx\r\n") == 2
    cuts = [(cut,) for cut in range(1, len(answer))] + [tuple(range(1, len(answer)))]
    cuts += [(cut, cut + len(b"1\r\nx\r\n")) for cut in range(len(before), len(before) + 10)]
    written = taken = connections = 0

    receive = _Connection.data_received

    def counting(connection: _Connection, data: bytes) -> None:
        nonlocal taken
        taken += len(data)
        receive(connection, data)

    def all_is_read() -> bool:
        return taken == written

    monkeypatch.setattr(_Connection, "data_received", counting)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections, written
        connections += 1
        for places in cuts:
            assert await asked(reader)
            for first, last in zip((0, *places), (*places, len(answer)), strict=True):
                writer.write(answer[first:last])
                written += last - first
                await until(all_is_read)
        await asked(reader)

    async def scenario(transport: RawTransport, backlog: Backlog) -> None:
        for places in cuts:
            exchange = await exchanged(transport, backlog)
            body = b"".join(body for _, body in exchange.take(len(exchange.reads)))
            assert (exchange.error, body) == (None, b"abcd0\r\n\r\n" + sly), places
        assert backlog.unparsed_bytes == 0

    talking_to(serve, scenario)
    assert connections == 1


def test_reads_go_on_after_some_were_taken() -> None:
    """A stream that is parsed while it lasts loses nothing."""
    go_on = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asked(reader)
        writer.write(HEAD + chunk(b"a"))
        await go_on.wait()
        writer.write(chunk(b"b"))
        await asyncio.sleep(0.01)
        writer.write(LAST)

    async def scenario(transport: RawTransport, backlog: Backlog) -> None:
        over = asyncio.Event()
        exchange = Exchange(PlannedRequest(0, b"{}", None, None), 0.0, backlog)
        transport.submit(exchange, lambda _: over.set())
        await until(lambda: bool(exchange.reads))
        taken = exchange.take(1)
        assert backlog.unparsed_bytes == 0
        go_on.set()
        await over.wait()
        assert [body for _, body in taken + exchange.reads] == [b"a", b"b"]

    talking_to(serve, scenario)


def test_a_server_that_closes_behind_its_answer_costs_no_request() -> None:
    """Whether the close comes with the answer or later, the next request has a connection of its own."""
    served = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal served
        assert await asked(reader)
        served += 1
        writer.write(HEAD + chunk(b"a") + LAST)

    async def scenario(transport: RawTransport, backlog: Backlog) -> None:
        for _ in range(3):
            assert (await exchanged(transport, backlog)).error is None
            await until(lambda: not any(connection.usable for connection in transport.free))

    talking_to(serve, scenario)
    assert served == 3


def test_a_server_that_hangs_up_at_once_is_an_error_of_its_own() -> None:
    """Before, at or after the request: the exchange ends, as one that lost its connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pass

    async def scenario(transport: RawTransport, backlog: Backlog) -> None:
        for _ in range(20):
            assert (await exchanged(transport, backlog)).error in ("connect_failed", "connection_lost")

    talking_to(serve, scenario)


def test_bytes_that_nobody_asked_for_end_a_connection() -> None:
    """What they belong to is unknown, so nothing else is read from it."""
    speak = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await speak.wait()
        writer.write(HEAD)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""

    async def scenario(transport: RawTransport, backlog: Backlog) -> None:
        await transport.open(1)
        (connection,) = transport.free
        assert connection.usable
        speak.set()
        await until(lambda: not connection.usable)

    talking_to(serve, scenario)
