"""What comes in is stored or handed on whole and in order, stamped after it came, and its end is never missed."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from harness import reads
from harness.reads import Reads, Stored
from harness.transport import READ_OVERHEAD_BYTES, Backlog, monotonic

CHUNK = b"5\r\nhello\r\n"
PATIENCE_S = 60.0


class Log:
    """A receiver that writes down what it gets, and lets whole chunks be stored after it got a read of `opens`."""

    def __init__(self, opens: bytes = b"head") -> None:
        self.opens = opens
        self.stored: Stored = []
        self.got: list[tuple[float, bytes, bool]] = []
        self.errors: list[OSError] = []

    def received(self, now: float, data: bytes, ended: bool) -> Stored | None:
        self.got.append((now, data, ended))
        return self.stored if data.endswith(self.opens) else None

    def failed(self, error: OSError) -> None:
        self.errors.append(error)

    @property
    def data(self) -> bytes:
        return b"".join(data for _, data, _ in self.got)


@asynccontextmanager
async def watched(
    log: Log, backlog: Backlog | None = None
) -> AsyncIterator[tuple[socket.socket, socket.socket, Reads]]:
    """(the server's end, the client's end, what reads it) of a connection."""
    reader = Reads(backlog or Backlog())
    server, client = socket.socketpair()
    client.setblocking(False)
    with server, client:
        reader.watch(client.fileno(), log)
        yield server, client, reader
        reader.close()


async def until(holds: Callable[[], bool]) -> None:
    deadline = monotonic() + PATIENCE_S
    while not holds():
        assert monotonic() < deadline
        await asyncio.sleep(0.001)


def test_whole_chunks_are_stored_and_all_else_is_handed_on() -> None:
    """Only after the receiver allowed it, and until it is handed something else."""

    async def scenario() -> None:
        log, backlog = Log(), Backlog()
        async with watched(log, backlog) as (server, _, _):
            for number, data in enumerate([CHUNK, b"head"]):
                server.send(data)
                await until(lambda number=number: len(log.got) == number + 1)
            for number in range(3):
                before_s = monotonic()
                server.send(CHUNK)
                await until(lambda number=number: len(log.stored) == number + 1)
                assert before_s <= log.stored[-1][0] <= monotonic()
            for number, data in enumerate([CHUNK + CHUNK, CHUNK]):
                server.send(data)
                await until(lambda number=number: len(log.got) == number + 3)
        assert [body for _, body in log.stored] == [b"hello"] * 3
        assert [(data, ended) for _, data, ended in log.got] == [
            (data, False) for data in (CHUNK, b"head", CHUNK + CHUNK, CHUNK)
        ]
        assert (backlog.reads, backlog.unparsed_bytes) == (3, 15 + 3 * READ_OVERHEAD_BYTES)

    asyncio.run(scenario())


def test_an_end_right_behind_a_chunk_is_seen() -> None:
    """The kernel tells of both at once, and only once."""

    async def scenario() -> None:
        log = Log()
        async with watched(log) as (server, _, _):
            server.send(b"head")
            await until(lambda: len(log.got) == 1)
            server.send(CHUNK)
            server.close()
            await until(lambda: len(log.got) == 2)
        assert log.got[1][1:] == (CHUNK, True)
        assert log.stored == []

    asyncio.run(scenario())


def test_an_end_alone() -> None:
    """Nothing, and that nothing comes after it."""

    async def scenario() -> None:
        log = Log()
        async with watched(log) as (server, _, _):
            server.shutdown(socket.SHUT_WR)
            await until(lambda: bool(log.got))
        assert [each[1:] for each in log.got] == [(b"", True)]

    asyncio.run(scenario())


@pytest.mark.parametrize("in_a_row", [1, 3, 16])
def test_a_flood_comes_whole_and_lets_others_have_their_turn(monkeypatch: pytest.MonkeyPatch, in_a_row: int) -> None:
    """More than one turn may read is told of again, though nothing new came meanwhile."""
    monkeypatch.setattr(reads, "_REST_BYTES", 500)
    monkeypatch.setattr(reads, "_READS_IN_A_ROW", in_a_row)
    flood = bytes(range(256)) * 128  # 32 KB

    async def scenario() -> None:
        log = Log()
        async with watched(log) as (server, _, _):
            server.setblocking(False)
            assert server.send(flood) == len(flood)
            await until(lambda: len(log.data) == len(flood))
        assert log.data == flood
        assert len(log.got) >= len(flood) / (reads.COMMON_BYTES + 500 * in_a_row)

    asyncio.run(scenario())


def test_a_read_as_long_as_the_buffer_is_no_chunk() -> None:
    """Exactly as many bytes as are read at once, which might be cut off."""
    body = b"x" * (reads.COMMON_BYTES - 7)
    chunk = b"%x\r\n%b\r\n" % (len(body), body)
    assert len(chunk) == reads.COMMON_BYTES

    async def scenario() -> None:
        log = Log()
        async with watched(log) as (server, _, _):
            server.send(b"head")
            await until(lambda: len(log.got) == 1)
            server.send(chunk)
            await until(lambda: len(log.got) == 2)
        assert log.got[1][1:] == (chunk, False)

    asyncio.run(scenario())


def test_a_reset_is_a_failure() -> None:
    """The peer closed without having read what was sent."""

    async def scenario() -> None:
        log = Log()
        async with watched(log) as (server, client, _):
            client.send(b"unread")
            server.close()
            await until(lambda: bool(log.errors))
        assert isinstance(log.errors[0], ConnectionResetError)

    asyncio.run(scenario())


def test_who_is_forgotten_is_not_called() -> None:
    """And whoever has its file descriptor since stays watched."""

    async def scenario() -> None:
        old, new, other = Log(), Log(), Log()
        async with watched(old) as (server, client, reader):
            reader.forget(client.fileno(), old)
            server.send(b"a")
            reader.watch(client.fileno(), new)
            reader.forget(client.fileno(), other)
            await until(lambda: new.data == b"a")
            reader.forget(client.fileno(), new)
            reader.forget(client.fileno(), new)
            server.send(b"b")
            await asyncio.sleep(0)
        assert (old.got, new.data) == ([], b"a")

    asyncio.run(scenario())
