"""Events: in order, replayed to those who come back, and bounded whatever they do."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import msgspec
import pytest

from tests.tuner.runs import rows, write_run
from tests.tuner.service.services import TOKEN, call, serving, simulating, until
from tuner.service import events, service
from tuner.service.events import HISTORY, PENDING, Hub
from tuner.service.run_answers import RunSummary
from tuner.service.runs import Runs


class Thing(msgspec.Struct, frozen=True):
    """What is told of."""

    n: int


def told(hub: Hub, count: int) -> None:
    """Publish so many."""
    for n in range(count):
        hub.publish("run", Thing(n))


def identifiers(content: bytes) -> list[str]:
    """The id of each event."""
    return [line.removeprefix("id: ") for line in content.decode().splitlines() if line.startswith("id: ")]


async def first(stream: AsyncIterator[bytes]) -> bytes:
    """What a connection is told at once."""
    return await anext(stream)


def test_who_comes_back_gets_what_was_missed() -> None:
    """All after the id seen last, in order; nothing where nothing was missed, or nobody says what was seen."""

    async def scenario() -> None:
        hub = Hub()
        told(hub, 5)
        all_ids = identifiers(b"".join(hub.missed(f"{hub._life}-0")))
        assert [text.partition("-")[2] for text in all_ids] == ["1", "2", "3", "4", "5"]
        assert identifiers(await first(hub.stream(all_ids[2]))) == all_ids[3:]
        assert identifiers(await first(hub.stream(all_ids[4]))) == []
        assert identifiers(await first(hub.stream(None))) == []

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "last", ["another-3", "", "x", "-", "LIFE-6", "LIFE-x", "LIFE--1", "LIFE-" + "9" * 50, "LIFE-²"]
)
def test_who_saw_what_is_not_remembered_begins_anew(last: str) -> None:
    """Another life of the service, nonsense, or a number that was never given: reset, with an id to go on from."""

    async def scenario() -> None:
        hub = Hub()
        told(hub, 5)
        content = await first(hub.stream(last.replace("LIFE", hub._life)))
        assert b"event: reset\ndata: {}\n\n" in content
        assert identifiers(content) == [f"{hub._life}-5"]

    asyncio.run(scenario())


def test_the_memory_is_bounded() -> None:
    """What is older than it is a reset; what is not is replayed whole."""

    async def scenario() -> None:
        hub = Hub()
        told(hub, HISTORY + 10)
        assert len(hub.missed(f"{hub._life}-10")) == HISTORY
        (reset,) = hub.missed(f"{hub._life}-9")
        assert b"event: reset" in reset

    asyncio.run(scenario())


def test_who_reads_too_slowly_is_cut_off() -> None:
    """Neither waited for nor kept in memory; and everybody else goes on."""

    async def scenario() -> None:
        hub = Hub()
        slow, quick = hub.stream(None), hub.stream(None)
        await first(slow)
        await first(quick)
        told(hub, PENDING)
        for _ in range(PENDING):
            await anext(quick)
        told(hub, 1)
        assert b'{"n":0}' in await anext(quick)
        assert [event async for event in slow] == []
        assert len(hub.listeners) == 1
        hub.close()
        assert [event async for event in quick] == []
        assert len(hub.listeners) == 0

    asyncio.run(scenario())


def test_silence_is_broken_by_a_comment(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that proxies keep the connection, and a dead one is noticed."""
    monkeypatch.setattr(events, "BEAT_S", 0.01)

    async def scenario() -> bytes:
        stream = Hub().stream(None)
        await first(stream)
        return await anext(stream)

    assert asyncio.run(scenario()) == b": still here\n\n"


async def read_event(content: aiohttp.StreamReader, kind: str) -> dict[str, object]:
    """The next event of a kind."""
    async with asyncio.timeout(150):
        while True:
            block = (await content.readuntil(b"\n\n")).decode()
            if f"event: {kind}\n" in block:
                return msgspec.json.decode(block.partition("data: ")[2])


def test_changes_reach_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that was registered, a run that somebody else made in the folder, and that the server is gone."""
    monkeypatch.setattr(service, "RUNS_EVERY_S", 0.02)

    async def scenario() -> None:
        async with serving(tmp_path) as (made, client), simulating() as url:
            async with client.get("/api/v1/events") as response:
                assert response.content_type == "text/event-stream"
                assert (await response.content.readuntil(b"\n\n")) == b"retry: 2000\n\n"
                await call(client, "POST", "/api/v1/servers", {"name": "box", "url": url})
                server = await read_event(response.content, "server")
                assert (server["name"], server["state"]) == ("box", "up")
                await asyncio.to_thread(write_run, tmp_path / "elsewhere", rows(repeats=1)[:2])
                run = await read_event(response.content, "run")
                assert run["name"] == "elsewhere"
                await call(client, "DELETE", "/api/v1/servers/box")
                assert await read_event(response.content, "reset") == {}

            async def nobody() -> bool:
                return not made.hub.listeners

            await until(nobody, "the listener is forgotten when its connection ends")

    asyncio.run(scenario())


def test_a_look_at_the_runs_that_fails_is_not_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that was made after it becomes an event all the same."""
    monkeypatch.setattr(service, "RUNS_EVERY_S", 0.02)
    real, looks = Runs.all, [0]

    def failing(self: Runs) -> list[RunSummary]:
        looks[0] += 1
        if looks[0] <= 3:
            raise OSError(errno.EIO, "Input/output error")
        return real(self)

    monkeypatch.setattr(Runs, "all", failing)

    async def scenario() -> None:
        async with serving(tmp_path) as (_, client), client.get("/api/v1/events") as response:

            async def looked() -> bool:
                return looks[0] >= 5  # so the fourth, which says what is there at first, is over

            await until(looked, "a look that succeeds")
            await asyncio.to_thread(write_run, tmp_path / "elsewhere", rows(repeats=1)[:2])
            assert (await read_event(response.content, "run"))["name"] == "elsewhere"

    asyncio.run(scenario())


def test_too_many_listeners_are_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """503, and the token is asked before."""
    monkeypatch.setattr("tuner.service.job_routes.MAX_LISTENERS", 0)

    async def scenario() -> list[int]:
        async with serving(tmp_path, TOKEN) as (_, client):
            bearer = {"Authorization": f"Bearer {TOKEN}"}
            asked = [await call(client, "GET", "/api/v1/events", headers=headers) for headers in ({}, bearer)]
            return [status for status, _ in asked]

    assert asyncio.run(scenario()) == [401, 503]
