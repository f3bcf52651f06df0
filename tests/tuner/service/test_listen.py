"""Who holds a connection: not for long without asking anything, and not too many at once."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from harness.errors import UserError
from tests.tuner.service.services import until
from tuner.service.listen import Doorkeeper, bound

PATIENT_S = 150.0


@asynccontextmanager
async def guarded(head_s: float = 60.0, most: int = 10) -> AsyncIterator[tuple[int, Doorkeeper]]:
    """A server that says "here" at every path; yields its port and who keeps its door."""
    keeper: Doorkeeper | None = None

    @web.middleware
    async def spoke(request: web.Request, handler: object) -> web.StreamResponse:
        assert keeper is not None
        keeper.spoke(request)
        return web.Response(text="here")

    runner = web.AppRunner(web.Application(middlewares=[spoke]))
    await runner.setup()
    assert runner.server is not None
    keeper = Doorkeeper(runner.server, head_s, most)
    with bound("127.0.0.1", 0) as listener:
        server = await asyncio.get_running_loop().create_server(keeper, sock=listener)
        try:
            yield listener.getsockname()[1], keeper
        finally:
            server.close()
            await runner.cleanup()


async def answer(port: int, text: bytes) -> bytes:
    """Whatever comes until the other end hangs up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(text)
        async with asyncio.timeout(PATIENT_S):
            return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize("text", [b"", b"GET / HTTP/1.1\r\nHost: x\r\n"])
def test_who_does_not_finish_a_request_head_is_hung_up_on(text: bytes) -> None:
    """Nothing sent, or half of it: no answer, and the connection ends by itself."""

    async def scenario() -> bytes:
        async with guarded(head_s=0.1) as (port, _):
            return await answer(port, text)

    assert asyncio.run(scenario()) == b""


def test_who_asked_is_waited_for_no_more() -> None:
    """The first whole head ends the watch, and the connection may ask again."""

    async def scenario() -> tuple[list[bytes], int]:
        async with guarded() as (port, keeper):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)

            async def watched() -> bool:
                return len(keeper._silent) == 1

            await until(watched, "the connection is watched")
            found = []
            for _ in range(2):
                writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                found.append(await reader.readuntil(b"here"))
            writer.close()
            return found, len(keeper._silent)

    (first, second), silent = asyncio.run(scenario())
    assert first.startswith(b"HTTP/1.1 200")
    assert second.startswith(b"HTTP/1.1 200")
    assert silent == 0


def test_one_connection_too_many_is_closed() -> None:
    """Those before it stay; when one of them ends there is room again."""

    async def scenario() -> None:
        async with guarded(most=1) as (port, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await reader.readuntil(b"here")
            assert await answer(port, b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n") == b""
            writer.close()

            async def room() -> bytes:
                return await answer(port, b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")

            assert b"here" in await until(room, "room for another connection")

    asyncio.run(scenario())


def test_an_address_that_cannot_be_had_is_named() -> None:
    """One line with the remedy."""
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(UserError, match="give another --host or --port"),
    ):
        bound("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(UserError, match="--port 70000"):
        bound("127.0.0.1", 70000)
