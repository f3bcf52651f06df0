"""Jobs: one per server, found again by a new service, judged by how they ended."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from harness.config import make_config
from tests.tuner.runs import LEVELS, manifest, rows, write_run
from tuner.history import note_history
from tuner.service import answers
from tuner.service.desk import child_environment
from tuner.service.job_records import Plan
from tuner.service.jobs import Jobs
from tuner.service.refusal import Refusal
from tuner.service.runner import exit_file, pid_file
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
