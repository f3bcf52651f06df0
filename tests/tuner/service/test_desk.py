"""The process that knows numpy: one at most, gone when idle, replaced when it dies, and never trusted with a secret."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec
import pytest

from tests.tuner.runs import rows, write_run
from tests.tuner.service.services import until
from tuner.service import desk as module
from tuner.service.desk import Desk, child_environment
from tuner.service.heavy import answer
from tuner.service.refusal import Refusal

# In place of heavy.py: answers with its own number and what it was asked, dies or hangs when it is told to.
STAND_IN = """
import json, os, sys, time
for line in sys.stdin:
    asked = json.loads(line)
    if asked["what"] == "die":
        os._exit(1)
    if asked["what"] == "hang":
        time.sleep(600)
    if asked["what"] == "babble":
        print("no JSON", flush=True)
    print(json.dumps({"ok": [os.getpid(), asked]}), flush=True)
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A light program in place of heavy.py."""
    file = tmp_path / "stand_in.py"
    file.write_text(STAND_IN)
    monkeypatch.setattr(module, "PROGRAM", (sys.executable, str(file)))


async def pid_of(desk: Desk, what: str = "x", *folders: Path, keep: bool = False) -> int:
    """The process that answered."""
    return int(msgspec.json.decode(await desk.ask(what, folders, keep=keep))[0])


@pytest.mark.usefixtures("stand_in")
def test_one_process_answers_all_and_a_dead_one_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions at once are asked in turn; one that dies, hangs or babbles fails alone."""

    async def scenario() -> None:
        desk = Desk(child_environment())
        first = await asyncio.gather(*(pid_of(desk, f"q{n}") for n in range(5)))
        assert len(set(first)) == 1
        seen = set(first)
        for fault in ("die", "babble", "hang"):
            monkeypatch.setattr(module, "LIMIT_S", 0.1 if fault == "hang" else 60.0)
            with pytest.raises(Refusal, match="could not be worked on") as caught:
                await desk.ask(fault, [])
            assert caught.value.status == 500
            monkeypatch.setattr(module, "LIMIT_S", 60.0)
            seen.add(await pid_of(desk))
        assert len(seen) == 4
        await desk.close()

    asyncio.run(scenario())


@pytest.mark.usefixtures("stand_in")
def test_it_ends_when_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """And is there again for the next question."""
    monkeypatch.setattr(module, "IDLE_S", 0.05)

    async def scenario() -> None:
        desk = Desk(child_environment())
        before = await pid_of(desk)

        async def gone() -> bool:
            return desk._process is None

        await until(gone, "the process is let go")
        assert await pid_of(desk) != before
        await desk.close()

    asyncio.run(scenario())


@pytest.mark.usefixtures("stand_in")
def test_answers_are_kept_while_their_files_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same files, the same answer; a changed file, another question; and only so much is kept."""
    run = write_run(tmp_path / "run", rows(repeats=1)[:3]).path

    async def scenario() -> None:
        desk = Desk(child_environment())
        first = await desk.ask("x", [run])
        assert await desk.ask("x", [run]) is first
        assert await desk.ask("x", [run], keep=False) is not first
        (run / "levels.csv").write_text((run / "levels.csv").read_text() + "\n")
        assert await desk.ask("x", [run]) is not first
        monkeypatch.setattr(module, "MAX_KEPT_BYTES", 10)
        await desk.ask("y", [run])
        assert not desk._kept
        await desk.close()

    asyncio.run(scenario())


@pytest.mark.usefixtures("stand_in")
def test_who_goes_away_leaves_no_answer_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """A question that nobody waits for any more ends with its process."""

    async def scenario() -> None:
        desk = Desk(child_environment())
        await pid_of(desk)
        asking = asyncio.create_task(desk.ask("hang", []))
        await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert msgspec.json.decode(await desk.ask("next", []))[1]["what"] == "next"
        await desk.close()

    asyncio.run(scenario())


def test_children_know_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the token nor any key, however its variable is called."""
    names = ("SPECPIVOT_TOKEN", "SPECPIVOT_API_KEY", "SPECPIVOT_API_KEY_A", "SPECPIVOT_ADMIN_API_KEY_B")
    for name in names:
        monkeypatch.setenv(name, "hush")
    found = child_environment()
    assert not found.keys() & set(names)
    assert "PATH" in found


def test_a_run_that_cannot_be_worked_on_is_refused_in_one_line(tmp_path: Path) -> None:
    """As an answer: the process goes on."""
    question = msgspec.json.encode({"what": "curves", "arguments": [str(tmp_path)]})
    assert "is not a run folder" in answer(question)["refused"]
