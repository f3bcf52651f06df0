"""Jobs: one per server, found again by a new service, judged by how they ended."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.config import SweepConfig, make_config
from harness.sim.preset import DEFAULT_PRESET, preset_names
from tests.tuner.runs import LEVELS, manifest, rows, write_run
from tests.tuner.service.services import call, serving, simulating
from tuner.history import note_history
from tuner.service import answers, asked, joblog
from tuner.service.desk import child_environment
from tuner.service.job_records import Plan, Record
from tuner.service.jobs import Jobs
from tuner.service.names import new_folder
from tuner.service.refusal import Refusal
from tuner.service.runner import GO, exit_file, mark_of, pid_file
from tuner.service.runs import Runs

PLAN = Plan("sweep", "box", ["--concurrency=1,2"], 6, 10.0)
PATIENT_S = 150.0
# A program in place of SpecPivot: it waits for a file called CODE, or a Ctrl-C, and ends with that code.
PROGRAM = """
import pathlib, signal, sys, time
stopped = []
signal.signal(signal.SIGINT, lambda *_: stopped.append(1))
print("arguments", *sys.argv[1:], flush=True)
while not pathlib.Path("CODE").exists():
    if stopped:
        sys.exit(130)
    time.sleep(0.01)
print('{"json": 1}')
sys.exit(int(pathlib.Path("CODE").read_text()))
"""


class Desk:
    """Jobs in a results folder, made of a program that does as it is told."""

    def __init__(self, results: Path) -> None:
        self.results = results.resolve()
        self.earlier: list[Jobs] = []  # alive, as their children are ours
        self.jobs = self.restarted()

    def restarted(self) -> Jobs:
        """What a new service finds."""
        program = (sys.executable, "-c", PROGRAM)
        self.earlier.append(Jobs(Runs(self.results), child_environment(), program))
        self.jobs = self.earlier[-1]
        return self.jobs

    @property
    def folder(self) -> Path:
        return self.results / ".service" / "jobs"

    def end(self, code: int) -> None:
        """Let the program end."""
        (self.folder / ".CODE.new").write_text(str(code))
        (self.folder / ".CODE.new").replace(self.folder / "CODE")

    def wait(self, job: str, holds: Callable[[answers.Job], bool]) -> answers.Job:
        """The job once something is so."""
        deadline = time.monotonic() + PATIENT_S
        while time.monotonic() < deadline:
            self.jobs.look()
            found = self.jobs.answer(self.jobs.get(job))
            if holds(found):
                return found
            time.sleep(0.01)
        raise AssertionError(found)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """A desk whose programs do not outlive the test."""
    made = Desk(tmp_path)
    yield made
    made.end(0)
    for record in made.jobs.running():
        made.wait(record.id, lambda job: job.state != "running")
    for jobs in made.earlier:
        for child in jobs._children.values():
            child.wait(PATIENT_S)


def started(desk: Desk, plan: Plan = PLAN, run: str = "run") -> answers.Job:
    """A job whose program has begun."""
    job = desk.jobs.start(plan, {}, run)
    return desk.wait(job.id, lambda job: job.message.startswith("arguments"))


def test_a_job_is_its_command_and_ends_as_it_ends(desk: Desk) -> None:
    """The flags reach the command; the log is kept; the JSON that ends it is no message."""
    job = started(desk)
    assert (job.state, job.points_done, job.points_planned, job.ended_s) == ("running", 0, 6, None)
    assert job.eta_s is not None
    assert 0 < job.eta_s <= 60
    assert job.message == f"arguments sweep --concurrency=1,2 --out={desk.results / 'run'}"
    desk.end(0)
    ended = desk.wait(job.id, lambda job: job.state != "running")
    assert (ended.state, ended.exit_code, ended.resumable, ended.eta_s) == ("done", 0, False, None)
    assert ended.message == job.message
    assert desk.jobs.log(job.id, 1).lines == ['{"json": 1}']


@pytest.mark.parametrize(
    ("code", "state", "resumable"),
    [(0, "done", False), (3, "done", True), (4, "failed", True), (2, "failed", True), (130, "interrupted", True)],
)
def test_exit_codes_become_states(desk: Desk, code: int, state: str, resumable: bool) -> None:
    """Those of the command line: 3 has points to measure anew, 4 nothing usable, 2 bad input, 130 interrupted."""
    job = started(desk)
    desk.end(code)
    ended = desk.wait(job.id, lambda job: job.state != "running")
    assert (ended.state, ended.exit_code, ended.resumable) == (state, code, resumable)


def test_cancel_is_a_ctrl_c_for_the_group(desk: Desk) -> None:
    """The command ends as it does on a Ctrl-C, and the runner lives to say how."""
    job = started(desk)
    desk.jobs.cancel(job.id)
    ended = desk.wait(job.id, lambda job: job.state != "running")
    assert (ended.state, ended.exit_code, ended.resumable) == ("cancelled", 130, True)
    with pytest.raises(Refusal, match="does not run"):
        desk.jobs.cancel(job.id)


def test_one_job_per_server_and_run(desk: Desk) -> None:
    """A second one is refused until the first has ended; another server is free; a run's name is taken once."""
    job = started(desk)
    with pytest.raises(Refusal, match=f"job {job.id} runs on box"):
        desk.jobs.start(PLAN, {}, "second")
    other = msgspec.structs.replace(PLAN, server="other")
    with pytest.raises(Refusal, match="makes run already"):
        desk.jobs.start(other, {}, "run")
    (desk.results / "there").mkdir()
    with pytest.raises(Refusal, match="there is there already"):
        desk.jobs.start(other, {}, "there")
    desk.jobs.start(other, {}, "second")
    assert (desk.jobs.on("box"), len(desk.jobs.running())) == (job.id, 2)


def test_a_new_service_finds_what_runs_and_what_ended_meanwhile(desk: Desk) -> None:
    """By number and start of its process; and by the code that it left behind."""
    job = started(desk)
    desk.restarted()
    assert desk.jobs.answer(desk.jobs.get(job.id)).state == "running"
    with pytest.raises(Refusal, match="runs on box"):
        desk.jobs.start(PLAN, {}, "second")
    desk.end(3)
    assert desk.wait(job.id, lambda job: job.state != "running").exit_code == 3
    assert desk.restarted().answer(desk.jobs.get(job.id)).state == "done"


@pytest.mark.parametrize(("points", "state"), [(None, "interrupted"), (3, "interrupted"), (81, "done")])
def test_a_job_that_was_killed_is_judged_by_its_run(desk: Desk, points: int | None, state: str) -> None:
    """No exit code, because everything was killed: all points there is done, anything less can be resumed."""
    job = started(desk)
    os.killpg(desk.jobs._pid(desk.jobs.get(job.id)) or 0, signal.SIGKILL)
    if points is not None:
        write_run(desk.results / "run", rows()[:points])
    ended = desk.wait(job.id, lambda job: job.state != "running")
    assert (ended.state, ended.exit_code, ended.resumable) == (state, None, state == "interrupted")
    assert ended.points_done == (points or 0)


def test_points_that_were_spoilt_are_left_to_measure(desk: Desk) -> None:
    """Everything was killed while they were measured anew: nobody may call that done."""
    job = started(desk)
    os.killpg(desk.jobs._pid(desk.jobs.get(job.id)) or 0, signal.SIGKILL)
    good = rows()
    write_run(desk.results / "run", [msgspec.structs.replace(good[0], verdict="errors"), *good[1:]])
    ended = desk.wait(job.id, lambda job: job.state != "running")
    assert (ended.state, ended.resumable, ended.points_done) == ("interrupted", True, 81)


def test_a_new_service_finds_a_job_that_is_about_to_begin(desk: Desk) -> None:
    """Its process is known from the moment on in which it may begin."""
    job = desk.jobs.start(PLAN, {}, "run")
    found = desk.restarted()
    assert found.answer(desk.jobs.get(job.id)).state == "running"
    desk.wait(job.id, lambda job: job.message.startswith("arguments"))


@pytest.mark.parametrize("go", [b"", GO])
def test_nothing_begins_that_the_next_service_would_not_find(tmp_path: Path, go: bytes) -> None:
    """A service that is killed before it has written down who runs a job lets go of a pipe: that is not the word."""
    base, trace = tmp_path / "job", tmp_path / "begun"
    command = [sys.executable, "-m", "tuner.service.runner", str(base), "touch", str(trace)]
    subprocess.run(command, input=go, env=child_environment(), check=True, timeout=PATIENT_S)
    assert (trace.exists(), exit_file(base).exists()) == (go == GO, go == GO)


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for a signal."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt"))
    return bool(int(line.split()[1], 16) >> (number - 1) & 1)


def test_a_ctrl_c_before_the_command_begins_is_not_lost(tmp_path: Path) -> None:
    """The runner has it, and begins nothing."""
    base, trace = tmp_path / "job", tmp_path / "begun"
    words = [sys.executable, "-m", "tuner.service.runner", str(base), "touch", str(trace)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, env=child_environment()) as runner:
        assert runner.stdin is not None
        deadline = time.monotonic() + PATIENT_S
        while not catches(runner.pid, signal.SIGHUP):  # the last that it learns to
            assert time.monotonic() < deadline
            time.sleep(0.01)
        runner.send_signal(signal.SIGINT)
        runner.stdin.write(GO)
        runner.stdin.close()
    assert (exit_file(base).read_text(), trace.exists()) == ("130\n", False)


@pytest.mark.parametrize("there", [True, False])
def test_resume_goes_on_with_the_run(desk: Desk, there: bool) -> None:
    """By --resume where the run was begun, and from the beginning where it was not."""
    job = started(desk)
    desk.jobs.cancel(job.id)
    desk.wait(job.id, lambda job: job.state == "cancelled")
    if there:
        write_run(desk.results / "run", rows()[:3])
    desk.jobs.resume(job.id, {})
    with pytest.raises(Refusal, match="runs already"):
        desk.jobs.resume(job.id, {})
    flags = "--resume" if there else "--concurrency=1,2"
    again = desk.wait(job.id, lambda job: flags in job.message and desk.jobs.log(job.id, 9).lines[-1] == job.message)
    assert (again.state, again.id) == ("running", job.id)
    desk.end(0)
    assert desk.wait(job.id, lambda job: job.state != "running").state == "done"
    with pytest.raises(Refusal, match="is finished"):
        desk.jobs.resume(job.id, {})


def test_the_pace_of_a_job_tells_its_end(desk: Desk) -> None:
    """Points that are left take what those of their concurrency took, from the last one on, however long ago it was."""
    job = started(desk)
    write_run(desk.results / "run", rows()[:9], manifest(config={"sim": "x", "concurrency": list(LEVELS)}))
    plain = desk.jobs.answer(desk.jobs.get(job.id))
    assert (plain.points_done, plain.points_planned) == (9, 81)
    (desk.results / "slow").mkdir()
    slow = [msgspec.structs.replace(row, e2e_p50_s=100.0) for row in rows()[:9]]
    write_run(desk.results / "slow" / "run", slow, manifest(config={"sim": "x", "concurrency": list(LEVELS)}))
    (desk.results / "slow" / "run" / "levels.csv").replace(desk.results / "run" / "levels.csv")
    found = desk.jobs.answer(desk.jobs.get(job.id))
    config = make_config({"sim": "x", "concurrency": list(LEVELS)})
    assert found.eta_s == pytest.approx(72 * config.point_s_with(100.0), rel=0.05)
    assert plain.eta_s == pytest.approx(72 * config.point_s, rel=0.05)
    for last_s in (time.time() - 1000, time.time() - 1e6):
        os.utime(desk.results / "run" / "levels.csv", (last_s, last_s))
        began = msgspec.structs.replace(desk.jobs.get(job.id), started_s=last_s - 900)
        left_s = max(0.0, found.eta_s - (time.time() - last_s))
        assert desk.jobs.answer(began).eta_s == pytest.approx(left_s, abs=PATIENT_S)


def test_the_budget_of_a_tuning_ends_it(desk: Desk) -> None:
    """However slow its points are, what is left of the budget is the most that it takes, its earlier lives counted."""
    job = started(desk, msgspec.structs.replace(PLAN, kind="tune", points=60, point_s=10.0))
    write_run(desk.results / "run", rows()[:2], manifest(config={"tune": {"budget_s": 6000}, "sim": "x"}))
    now_s = time.time()
    os.utime(desk.results / "run" / "levels.csv", (now_s - 400, now_s - 400))
    record = msgspec.structs.replace(desk.jobs.get(job.id), started_s=now_s - 400)
    assert desk.jobs.answer(record).eta_s == pytest.approx(5600, abs=PATIENT_S)
    note_history(desk.results / "run", "point", spent_s=3000.0)
    assert desk.jobs.answer(record).eta_s == pytest.approx(3000, abs=PATIENT_S)


def test_the_points_of_all_context_lengths_are_a_tunings(desk: Desk) -> None:
    """They lie below its run folder until it ends; the budget has room for so many of every length."""
    job = started(desk, msgspec.structs.replace(PLAN, kind="tune"))
    told = {"budget_s": 6000, "context_lengths": [64, 512]}
    config = {"sim": "x", "concurrency": list(LEVELS)}
    write_run(desk.results / "run", [], manifest(config=config | {"tune": told}))
    each_s = [make_config(config | {"input_tokens": length}).point_s for length in (64, 512)]
    note_history(desk.results / "run", "stage", spent_s=10.0)
    for number in range(3):
        note_history(desk.results / "run", "point", spent_s=20.0 + number)
    found = desk.jobs.answer(desk.jobs.get(job.id))
    assert (found.points_done, found.points_planned) == (3, int(6000 / (sum(each_s) / 2)))


def test_a_message_says_something(tmp_path: Path) -> None:
    """Neither the heading of the table, nor JSON, nor colours."""
    base = tmp_path / "job"
    assert joblog.message(base) == ""
    heading = f"{'variant':<20}{'C':>5} {'rep':>3}"
    joblog.file(base).write_text(f"6 points to measure\n{heading}\n\x1b[1m\n{{}}\n")
    assert joblog.message(base) == "6 points to measure"
    joblog.file(base).write_text("x" * 5000 + "\nlast\n")
    assert joblog.message(base) == "last"


def test_another_process_of_the_same_number_is_not_the_job(desk: Desk) -> None:
    """Numbers are used again; the start of the process tells them apart."""
    job = started(desk)
    desk.end(0)
    desk.wait(job.id, lambda job: job.state == "done")
    base = desk.folder / job.id
    record = msgspec.structs.replace(desk.jobs.get(job.id), state="running")
    (desk.folder / f"{job.id}.json").write_bytes(msgspec.json.encode(record))
    exit_file(base).unlink()
    pid_file(base).write_text(f"{os.getpid()} another-boot:1\n")
    assert desk.restarted().answer(desk.jobs.get(job.id)).state == "interrupted"


def test_a_mark_tells_processes_apart() -> None:
    """Ours is there and stays the same; one that has ended, reaped or not, has none."""
    assert mark_of(os.getpid()) == mark_of(os.getpid()) is not None
    child = subprocess.Popen([sys.executable, "-c", ""])
    deadline = time.monotonic() + PATIENT_S
    while mark_of(child.pid) is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert mark_of(child.pid) is None
    child.wait()


def test_a_damaged_record_does_not_stop_the_service(desk: Desk) -> None:
    """It is left out; the others are there."""
    job = started(desk)
    (desk.folder / "half.json").write_text('{"id": ')
    (desk.folder / "other.json").write_bytes(msgspec.json.encode(desk.jobs.get(job.id)))
    assert [found.id for found in desk.restarted().all()] == [job.id]


def test_what_a_killed_service_had_half_written_is_removed(desk: Desk) -> None:
    """A new service makes room; what a job's runner is just writing stays."""
    started(desk)
    half = [desk.folder / name for name in (".x.json.new", ".x.pid.new", ".x.exit.new")]
    for file in half:
        file.write_text("{")
    desk.restarted()
    assert [file.exists() for file in half] == [False, False, True]


def test_keys_are_given_to_the_job_and_not_stored(desk: Desk) -> None:
    """They are in the environment of its process alone."""
    job = desk.jobs.start(PLAN, {"SPECPIVOT_API_KEY": "hush-hush"}, "run")
    desk.wait(job.id, lambda job: job.message.startswith("arguments"))
    pid = desk.jobs._pid(desk.jobs.get(job.id))
    assert b"hush-hush" in Path(f"/proc/{pid}/environ").read_bytes()
    assert b"hush" not in b"".join(file.read_bytes() for file in desk.folder.iterdir())


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
