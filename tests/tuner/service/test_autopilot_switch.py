"""The autopilot of a registered server: switched, read back, and every move written down once."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from patched_worker.autopilot import MAX_KEY, MIN_KEY, MODE_KEY
from tests.harness.faulty import talking
from tests.tuner.service.services import call, serving, until
from tuner.service.asked import SetAutopilot
from tuner.service.audit import Audit
from tuner.service.server_routes import MODES
from tuner.service.workerblock import Shown, ShownMove

WORDS = ["held", "auto", "dry_run"]


class Worker:
    """A patched server with an autopilot, as far as the service sees of it."""

    def __init__(self, able: bool = True) -> None:
        self.able = able
        self.autopilot: dict[str, Any] | None = None
        self.last_error: str | None = None
        self.asked: list[dict[str, int]] = []

    def info(self) -> dict[str, Any]:
        block = {"worker": "EAGLEWorkerV2", "threshold": 9, "resume_at": 7, "min_dwell": 16, "policy_id": "p"}
        block |= {"steps_on": 0, "steps_off": 0, "switches": 0, "by_batch": [], "last_error": self.last_error}
        if self.autopilot is not None:
            block["autopilot"] = self.autopilot
        return {"version": "0.5.16", "internal_states": [{"specpivot": block}]}

    def set(self, values: dict[str, int]) -> None:
        self.asked.append(values)
        if not self.able:
            self.last_error = f"refused {values}: unknown keys"
            return
        before = self.autopilot or {"bounds": [0, None], "steps": 0, "moves": [], "interval": [None, None]}
        low, high = values.get(MIN_KEY, before["bounds"][0]), values.get(MAX_KEY, before["bounds"][1])
        bounds = [low, None if high == -1 else high]
        self.autopilot = before | {"state": WORDS[values[MODE_KEY]], "bounds": bounds}

    def move(self, step: int, old: int, new: int) -> None:
        """Let it move its threshold."""
        assert self.autopilot is not None
        move = {"step": step, "old": old, "new": new, "reason": f"{old} to {new}", "dry_run": False, "at_s": 1.0}
        moves = [*self.autopilot["moves"], move]
        self.autopilot = {**self.autopilot, "steps": step, "moves": moves, "interval": [8.5, None]}


def _length(head: bytes) -> int:
    lines = [line.lower() for line in head.split(b"\r\n")]
    return next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)


@contextmanager
def working(worker: Worker) -> Iterator[str]:
    """The worker behind HTTP; yields its URL."""

    def talk(connection: socket.socket, over: threading.Event) -> None:
        head, body, more = b"", b"", b"x"
        while more and (not head or len(body) < _length(head)):
            more = connection.recv(65536)
            body += more
            if not head and b"\r\n\r\n" in body:
                head, _, body = body.partition(b"\r\n\r\n")
        if b"/set_internal_state" in head:
            worker.set(json.loads(body)["server_args"])
        answer = json.dumps(worker.info()).encode()
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(answer), answer))

    with talking(talk) as url:
        yield url


def asked(tmp_path: Path, worker: Worker, *bodies: dict[str, Any]) -> list[tuple[int, Any]]:
    """The answers to these switches."""

    async def scenario(url: str) -> list[tuple[int, Any]]:
        async with serving(tmp_path) as (_, client):
            await call(client, "POST", "/api/v1/servers", {"name": "box", "url": url})
            return [await call(client, "POST", "/api/v1/servers/box/autopilot", body) for body in bodies]

    with working(worker) as url:
        return asyncio.run(scenario(url))


def test_the_switch_says_what_the_server_reads_back(tmp_path: Path) -> None:
    """State and bounds, in the worker's own keys; bounds that are not given stay."""
    worker = Worker()
    bodies: list[dict[str, Any]] = [
        {"state": "dry_run", "bounds": [4, 64]},
        {"state": "on"},
        {"state": "on", "bounds": [0, None]},
        {"state": "off"},
    ]
    answers = asked(tmp_path, worker, *bodies)
    shown = [(status, answer["autopilot"]["state"], answer["autopilot"]["bounds"]) for status, answer in answers]
    assert shown == [(200, "dry_run", [4, 64]), (200, "on", [4, 64]), (200, "on", [0, None]), (200, "off", [0, None])]
    assert worker.asked[0] == {MODE_KEY: MODES["dry_run"], MIN_KEY: 4, MAX_KEY: 64}
    assert worker.asked[2] == {MODE_KEY: MODES["on"], MIN_KEY: 0, MAX_KEY: -1}


def test_a_worker_without_an_autopilot_refuses_and_is_off(tmp_path: Path) -> None:
    """409 with its own reason; to switch it off asks nothing of it."""
    worker = Worker(able=False)
    off, on = asked(tmp_path, worker, {"state": "off"}, {"state": "on"})
    assert (off[0], off[1]["autopilot"]["state"]) == (200, "off")
    assert (on[0], "unknown keys" in on[1]["error"]) == (409, True)
    assert len(worker.asked) == 1


@pytest.mark.parametrize(
    "body",
    [{"state": "full"}, {"state": "on", "bounds": [64, 4]}, {"state": "on", "bounds": [None, 4]}, {"bounds": [1, 2]}],
)
def test_what_makes_no_sense_is_not_sent(tmp_path: Path, body: dict[str, Any]) -> None:
    """400, and the worker hears nothing."""
    worker = Worker()
    ((status, _),) = asked(tmp_path, worker, body)
    assert (status, worker.asked) == (400, [])


def test_every_move_is_written_down_once(tmp_path: Path) -> None:
    """With the time it was seen at; the next service knows them, and what a page shows is the last."""
    worker = Worker()

    async def last(client: Any, to: int) -> Any:
        async def moved() -> Any:
            found = (await call(client, "GET", "/api/v1/servers/box"))[1]["autopilot"]["last_move"]
            return found if found is not None and found["to"] == to else None

        return await until(moved, f"a move to {to} is seen")

    async def scenario(url: str) -> None:
        async with serving(tmp_path) as (_, client):
            await call(client, "POST", "/api/v1/servers", {"name": "box", "url": url})
            await call(client, "POST", "/api/v1/servers/box/autopilot", {"state": "on"})
            worker.move(256, 9, 12)
            worker.move(512, 12, 16)
            seen = await last(client, 16)
            assert (seen["from"], seen["reason"]) == (12, "12 to 16")
            first = (await call(client, "GET", "/api/v1/servers/box/audit"))[1]["moves"]
            assert [(move["from"], move["to"], move["interval"], move["dry_run"]) for move in first] == [
                (9, 12, [8, None], False),
                (12, 16, [8, None], False),
            ]
        async with serving(tmp_path) as (_, client):
            assert (await last(client, 16))["at_s"] == seen["at_s"]
            worker.move(768, 16, 9)
            await last(client, 9)
            moves = (await call(client, "GET", "/api/v1/servers/box/audit"))[1]["moves"]
            assert [move["to"] for move in moves] == [12, 16, 9]
            assert moves[:2] == first

    with working(worker) as url:
        asyncio.run(scenario(url))


def test_a_restarted_worker_begins_anew_and_a_cut_line_is_left_out(tmp_path: Path) -> None:
    """Steps that ran backwards are another process, whatever it calls itself; so is another name."""
    audit = Audit(tmp_path)

    def moved(step: int, new: int) -> Shown:
        return Shown("auto", (0, None), step, [ShownMove(step, 1, new, "why", False)])

    audit.note("box", "a", moved(500, 2), 1.0)
    audit.note("box", "a", moved(500, 2), 2.0)
    audit.note("box", "a", moved(100, 3), 3.0)
    audit.note("box", "b", moved(100, 4), 4.0)
    with (tmp_path / ".service" / "audit" / "box.jsonl").open("a") as log:
        log.write('{"life": "b", "st')
    assert [(move.at_s, move.to) for move in audit.moves("box")] == [(1.0, 2), (3.0, 3), (4.0, 4)]
    last = Audit(tmp_path).note("box", "b", moved(100, 4), 5.0)
    assert last is not None
    assert (last.at_s, last.to) == (4.0, 4)


def test_a_server_that_is_not_there_has_no_switch(tmp_path: Path) -> None:
    """404 for both routes; one that never moved has an empty log."""

    async def scenario() -> list[tuple[int, Any]]:
        async with serving(tmp_path) as (_, client):
            body = {"state": SetAutopilot("on").state}
            found = [await call(client, "POST", "/api/v1/servers/box/autopilot", body)]
            found.append(await call(client, "GET", "/api/v1/servers/box/audit"))
            await call(client, "POST", "/api/v1/servers", {"name": "box", "url": "http://127.0.0.1:9"})
            return [*found, await call(client, "GET", "/api/v1/servers/box/audit")]

    first, second, third = asyncio.run(scenario())
    assert (first[0], second[0], third) == (404, 404, (200, {"moves": []}))
