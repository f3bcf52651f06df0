"""Registered servers: the only ones that are talked to, each watched by itself, and set with a read-back."""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.harness.faulty import TALKS, document, talking
from tests.tuner.runs import write_run
from tests.tuner.service.services import call, serving, simulating, until
from tuner.recommend import recommend, write
from tuner.service import look, watch
from tuner.service.job_records import Plan

BOX = {"name": "box", "url": "http://127.0.0.1:9/prefix/"}


async def register(client: Any, **changes: Any) -> tuple[int, Any]:
    """Register a server."""
    return await call(client, "POST", "/api/v1/servers", BOX | changes)


async def state(client: Any, name: str, wanted: str) -> Any:
    """The server once it is in a state."""

    async def asked() -> Any:
        found = (await call(client, "GET", f"/api/v1/servers/{name}"))[1]
        return found if found["state"] == wanted and found["problem"] != "it was not looked at yet" else None

    return await until(asked, f"{name} is {wanted}")


def test_a_server_is_registered_watched_and_forgotten(tmp_path: Path) -> None:
    """It is there for the next service too; what is forgotten is gone."""

    async def scenario() -> None:
        async with simulating() as url, serving(tmp_path) as (_, client):
            status, added = await register(client, url=url)
            assert (status, added["name"], added["url"]) == (201, "box", url)
            found = await state(client, "box", "up")
            assert (found["worker"], found["threshold"], found["job"]) == ("EAGLEWorkerV2", None, None)
            assert found["simulated"] is True
            assert found["autopilot"] == {"state": "off", "bounds": None, "last_move": None}
        async with serving(tmp_path) as (_, client):
            assert [one["name"] for one in (await call(client, "GET", "/api/v1/servers"))[1]["servers"]] == ["box"]
            assert await call(client, "DELETE", "/api/v1/servers/box") == (200, {"name": "box"})
            for method in ("GET", "DELETE"):
                assert (await call(client, method, "/api/v1/servers/box"))[0] == 404
        async with serving(tmp_path) as (_, client):
            assert (await call(client, "GET", "/api/v1/servers"))[1] == {"servers": []}

    asyncio.run(scenario())


def test_a_server_that_hangs_hurts_no_other(tmp_path: Path) -> None:
    """Every misbehaviour at once, beside a good server: each shows as what it is, and the good one is seen."""
    lies = {"internal_states": [{"specpivot": {"threshold": "many"}}]}

    async def scenario(urls: dict[str, str]) -> None:
        async with simulating() as url, serving(tmp_path, patience_s=0.3) as (_, client):
            for name, bad in urls.items():
                assert (await register(client, name=name, url=bad))[0] == 201
            await register(client, url=url)
            await state(client, "box", "up")
            await state(client, "liar", "lying")
            await state(client, "html", "lacking")
            for name in TALKS:
                assert (await state(client, name.replace("_", "-"), "down"))["problem"] == "it does not answer"

    with ExitStack() as stack:
        talks = {name.replace("_", "-"): talk for name, talk in TALKS.items()}
        talks |= {"html": document(b"<html>"), "liar": document(json.dumps(lies).encode())}
        asyncio.run(scenario({name: stack.enter_context(talking(talk)) for name, talk in talks.items()}))


def test_a_look_that_fails_unforeseen_is_not_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever goes wrong in one look, the next one is made."""
    real, failures = look.look, iter([RuntimeError("unforeseen")] * 3)

    def failing(*arguments: Any) -> look.Seen:
        for error in failures:
            raise error
        return real(*arguments)

    monkeypatch.setattr(watch, "look", failing)

    async def scenario() -> None:
        async with simulating() as url, serving(tmp_path) as (_, client):
            await register(client, url=url)
            await state(client, "box", "up")

    asyncio.run(scenario())
    assert next(failures, None) is None


def test_apply_sets_and_reads_back(tmp_path: Path) -> None:
    """By number, never disabling, or what a run recommends, a ladder too; a refusal changes nothing."""
    run = write_run(tmp_path / "run")
    made = recommend(run)
    write_run(tmp_path / "none")
    ladder = (
        {"threshold": 4, "resume_at": 3, "num_steps": None},
        {"threshold": 16, "resume_at": 12, "num_steps": None},
    )
    laddered = msgspec.structs.replace(made, threshold=16, resume_at=12, ladder=ladder[1:])
    write_run(tmp_path / "ladder")
    write(laddered, tmp_path / "ladder" / "recommendation.json")

    async def scenario() -> dict[str, tuple[int, Any]]:
        async with simulating() as url, serving(tmp_path) as (_, client):
            await register(client, url=url)
            found = {}
            for name, body in {
                "number": {"threshold": 5},
                "all": {"threshold": 8, "resume_at": 2, "min_dwell_steps": 3},
                "never": {"threshold": None},
                "off": {"threshold": 0},
                "run": {"run": "run"},
                "ladder": {"run": "ladder"},
                "odd": {"threshold": 5, "resume_at": 6},
                "none": {"run": "none"},
                "both": {"run": "run", "threshold": 5},
                "nothing": {},
            }.items():
                found[name] = await call(client, "POST", "/api/v1/servers/box/apply", body)
            found["state"] = await call(client, "GET", "/api/v1/servers/box")
            return found

    found = asyncio.run(scenario())
    assert {name: status for name, (status, _) in found.items() if status != 200} == {
        "odd": 400,
        "none": 404,
        "both": 400,
        "nothing": 400,
    }
    for name in ("number", "all", "never", "off", "run", "ladder"):
        answer = found[name][1]
        read = answer["read_back"]
        assert answer["agrees"] is True, name
        assert answer["asked"] == {
            "threshold": read["threshold"],
            "resume_at": read["resume_at"],
            "min_dwell_steps": read["min_dwell"],
        }
    assert found["all"][1]["asked"] == {"threshold": 8, "resume_at": 2, "min_dwell_steps": 3}
    assert found["never"][1]["asked"]["threshold"] is None
    assert found["run"][1]["asked"]["threshold"] == made.threshold


def test_a_server_that_does_not_do_as_it_is_told_disagrees(tmp_path: Path) -> None:
    """It takes the request and reports another threshold: that is an answer, not an error."""
    block = {"worker": "w", "threshold": 9, "resume_at": 7, "min_dwell": 16, "policy_id": "p", "by_batch": []}
    stubborn = {"specpivot": block | {"steps_on": 0, "steps_off": 0, "switches": 0, "last_error": "no"}}

    async def scenario(stubborn: str, plain: str) -> list[tuple[int, Any]]:
        async with serving(tmp_path) as (_, client):
            for name, url in {"stubborn": stubborn, "plain": plain, "gone": "http://127.0.0.1:9"}.items():
                await register(client, name=name, url=url)
            names = ("stubborn", "plain", "gone")
            return [await call(client, "POST", f"/api/v1/servers/{n}/apply", {"threshold": 5}) for n in names]

    with (
        talking(document(json.dumps({"internal_states": [stubborn]}).encode())) as url,
        talking(document(b'{"version": "0.5.16"}')) as plain,
    ):
        told, unpatched, gone = asyncio.run(scenario(url, plain))
    assert told[0] == 200
    assert (told[1]["agrees"], told[1]["asked"]["threshold"]) == (False, 5)
    assert (told[1]["read_back"]["threshold"], told[1]["read_back"]["last_error"]) == (9, "no")
    assert (unpatched[0], "no patched server" in unpatched[1]["error"]) == (409, True)
    assert gone[0] == 409


def test_a_server_that_is_measured_is_neither_set_nor_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its job would measure something else than it was asked to; and it is looked at without a disturbance."""
    quiet: list[bool] = []
    real = look.look

    def noted(where: Any, quietly: bool) -> look.Seen:
        quiet.append(quietly)
        return real(where, quietly)

    monkeypatch.setattr(watch, "look", noted)

    async def scenario() -> None:
        async with simulating() as url, serving(tmp_path) as (service, client):
            await register(client, url=url)
            await state(client, "box", "up")
            # What it runs does not matter here, only that it runs until it is told to stop.
            service.jobs._program = ("sleep",)
            monkeypatch.setattr(service.jobs, "_arguments", lambda plan, folder: ["600"])
            job = service.jobs.start(Plan("sweep", "box", [], 1, 1.0), {})
            service.job_changed(job)
            assert (await call(client, "GET", "/api/v1/servers/box"))[1]["job"] == job.id
            looks = len(quiet)

            async def looked_again() -> bool:
                return quiet[looks + 1 :] != []

            await until(looked_again, "another look")
            assert quiet[-1] is True
            for method, path, body in (("POST", "/apply", {"threshold": 5}), ("DELETE", "", None)):
                status, answer = await call(client, method, f"/api/v1/servers/box{path}", body)
                assert (status, f"job {job.id} measures box" in answer["error"]) == (409, True)
            service.jobs.cancel(job.id)

            async def free() -> bool:
                return (await call(client, "GET", "/api/v1/servers/box"))[1]["job"] is None

            await until(free, "the job is gone from the server")
            assert (await call(client, "POST", "/api/v1/servers/box/apply", {"threshold": 5}))[0] == 200

    asyncio.run(scenario())
