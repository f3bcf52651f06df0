"""What a request for a job may say, and the plan that is made of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.config import SweepConfig
from harness.sim.preset import DEFAULT_PRESET, preset_names
from tests.tuner.service.services import call, serving, simulating
from tuner.service import answers, asked
from tuner.service.job_records import Plan, Record
from tuner.service.jobs import Jobs
from tuner.service.names import new_folder


def test_options_are_the_keys_of_a_sweep_and_nothing_that_names_a_file(tmp_path: Path) -> None:
    """Each option is a key of sweep.toml or a flag of tune; no model, path, argument or URL is among them."""
    known = {field.encode_name for field in msgspec.structs.fields(SweepConfig)}
    given = {*asked.SweepOptions.__struct_fields__, *asked.TuneOptions.__struct_fields__}
    assert given - known == {"budget", "trials", "latency_slack", "objective", "context_lengths"}
    refused = {"model", "draft", "server_args", "server_env", "dataset", "tokenizer", "attach", "sim", "tp", "resident"}
    assert not given & refused

    async def statuses() -> list[int]:
        async with serving(tmp_path) as (_, client):
            body = {"kind": "sweep", "sim": DEFAULT_PRESET}
            asks = [{**body, "options": {key: "x"}} for key in sorted(refused | {"out", "config", "--out"})]
            asks += [
                {**body, "run": "../x"},
                {**body, "server": "x"},
                {"kind": "sweep"},
                {"kind": "tune", "sim": "/etc"},
            ]
            asks += [
                {**body, "options": {"concurrency": [1, 1]}},
                {**body, "options": {"resume_at": 2, "threshold": 1}},
                {**body, "options": {"context_lengths": [64, 512]}},
            ]
            return [(await call(client, "POST", "/api/v1/jobs", ask))[0] for ask in asks]

    assert set(asyncio.run(statuses())) == {400}


def test_flags_say_what_was_asked() -> None:
    """Lists with commas, names with dashes, and nothing that was not given."""
    options = msgspec.convert({"concurrency": [1, 8], "min_dwell": 4, "duration": 2.5}, asked.SweepOptions)
    assert asked.flags(options) == ["--concurrency=1,8", "--duration=2.5", "--min-dwell=4"]


@contextmanager
def caught_plans(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Plan, dict[str, str]]]]:
    """Plans that handlers made, which are not carried out."""
    plans: list[tuple[Plan, dict[str, str]]] = []

    def start(self: Jobs, plan: Plan, keys: dict[str, str], run: str | None = None) -> answers.Job:
        plans.append((plan, keys))
        new_folder(self._runs.results, run or "run")
        record = Record(
            id="x",
            kind=plan.kind,
            run=run or "run",
            server=plan.server,
            arguments=plan.flags,
            points_planned=plan.points,
            point_s=plan.point_s,
            created_s=0,
            started_s=0,
        )
        return self.answer(record)

    monkeypatch.setattr(Jobs, "start", start)
    yield plans


def test_a_registered_server_is_attached_to_as_what_it_plays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its URL comes from the registry; dynamic is measured where there is a threshold; its keys go along."""
    monkeypatch.setenv("SPECPIVOT_ADMIN_API_KEY_BOX", "hush-hush")
    asks: list[dict[str, Any]] = [
        {"kind": "sweep", "server": "box"},
        {"kind": "sweep", "server": "box", "options": {"threshold": 4, "repeats": 1}},
        {"kind": "sweep", "server": "box", "options": {"variants": ["eagle3"], "concurrency": [1]}},
        {"kind": "tune", "server": "box", "options": {"budget": "10m", "duration": 8, "warmup": 0}},
        {"kind": "tune", "server": "box", "options": {"budget": "10m", "duration": 8, "context_lengths": [64, 512]}},
        {"kind": "tune", "server": "box", "options": {"context_lengths": [64, 64]}},
        {"kind": "tune", "server": "box", "options": {"context_lengths": [64]}},
        {"kind": "sweep", "server": "box", "options": {"variants": ["baseline"]}},
        {"kind": "tune", "server": "plain"},
        {"kind": "sweep", "server": "nobody"},
    ]

    async def ask(url: str) -> list[int]:
        async with serving(tmp_path) as (_, client):
            box = {"name": "box", "url": url, "admin_api_key_env": "SPECPIVOT_ADMIN_API_KEY_BOX"}
            assert (await call(client, "POST", "/api/v1/servers", box))[0] == 201
            plain = {"name": "plain", "url": "http://127.0.0.1:9", "variants": ["baseline"]}
            assert (await call(client, "POST", "/api/v1/servers", plain))[0] == 201
            return [(await call(client, "POST", "/api/v1/jobs", one))[0] for one in asks]

    async def run() -> tuple[str, list[int]]:
        async with simulating() as url:
            return url, await ask(url)

    with caught_plans(monkeypatch) as plans:
        url, statuses = asyncio.run(run())
    assert statuses == [201, 201, 201, 201, 201, 400, 400, 400, 400, 404]
    attached = [[flag.partition("=")[2] for flag in plan.flags if flag.startswith("--attach")] for plan, _ in plans]
    both = [f"eagle3={url}", f"forced_off={url}"]
    assert attached == [both, [f"eagle3={url}", f"dynamic={url}", f"forced_off={url}"], [f"eagle3={url}"], both, both]
    assert plans[-1][0].flags[-1] == "--context-lengths=64,512"
    assert [plan.points for plan, _ in plans][:4] == [2 * 7 * 3, 3 * 7, 3, 54]  # 8 s of load take 11 s
    assert all(keys == {"SPECPIVOT_ADMIN_API_KEY": "hush-hush"} for _, keys in plans)
    assert "hush" not in json.dumps([plan.flags for plan, _ in plans])


def test_a_job_goes_on_at_the_url_it_was_started_for_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that was registered anew for another URL has another key, which the old URL must not get."""
    monkeypatch.setenv("SPECPIVOT_API_KEY_BOX", "hush-hush")
    given: list[dict[str, str]] = []

    def resume(self: Jobs, job: str, keys: dict[str, str]) -> answers.Job:
        given.append(keys)
        return self.answer(self.get(job))

    monkeypatch.setattr(Jobs, "resume", resume)

    async def scenario() -> list[tuple[int, Any]]:
        async with serving(tmp_path) as (service, client):
            box = {"name": "box", "url": "http://127.0.0.1:9", "api_key_env": "SPECPIVOT_API_KEY_BOX"}
            assert (await call(client, "POST", "/api/v1/servers", box))[0] == 201
            record = Record(
                id="x",
                kind="sweep",
                run="run",
                server="box",
                arguments=["sweep", "--attach=eagle3=http://127.0.0.1:9", "--attach=forced_off=http://127.0.0.1:9"],
                points_planned=2,
                point_s=1,
                created_s=0,
                started_s=0,
                state="interrupted",
            )
            service.jobs._put(record)
            found = [await call(client, "POST", "/api/v1/jobs/x/resume")]
            assert (await call(client, "DELETE", "/api/v1/servers/box"))[0] == 200
            assert (await call(client, "POST", "/api/v1/servers", box | {"url": "http://127.0.0.1:8"}))[0] == 201
            return [*found, await call(client, "POST", "/api/v1/jobs/x/resume")]

    first, second = asyncio.run(scenario())
    assert (first[0], second[0], "start a new job" in second[1]["error"]) == (200, 409, True)
    assert given == [{"SPECPIVOT_API_KEY": "hush-hush"}]


def test_presets_are_those_of_the_simulation(tmp_path: Path) -> None:
    """The service names them without loading what reads them."""

    async def ask() -> Any:
        async with serving(tmp_path) as (_, client):
            return await call(client, "GET", "/api/v1/presets")

    assert asyncio.run(ask()) == (200, {"presets": preset_names(), "default": DEFAULT_PRESET})


def test_jobs_that_are_not_there(tmp_path: Path) -> None:
    """404 for each way to ask, 400 for a tail that is no number."""

    async def ask() -> list[int]:
        async with serving(tmp_path) as (_, client):
            paths = ("GET ", "GET /log", "POST /cancel", "POST /resume", "GET /log?tail=0", "GET /log?tail=x")
            words = [path.split(" ") for path in paths]
            return [(await call(client, method, f"/api/v1/jobs/nobody{rest}"))[0] for method, rest in words]

    assert asyncio.run(ask()) == [404, 404, 404, 404, 400, 400]
