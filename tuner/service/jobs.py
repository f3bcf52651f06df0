"""Sweeps and tunings as child processes that outlive the service, and their state on disk.

RESULTS/.service/jobs/ID.json says what was asked, ID.pid and ID.exit (written by runner.py) who runs it and how it
ended, ID.log what it said. A service that starts anew finds all of it: what runs goes on, what ended is judged by its
exit code, and what was killed without one by its run folder.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import msgspec

from harness.ourselves import program
from tuner.service import answers, joblog
from tuner.service.job_records import Plan, Record, eta_s, number, resumable, stored, why_not
from tuner.service.names import STATE, holds_run, new_folder
from tuner.service.progress import Progress
from tuner.service.refusal import Refusal
from tuner.service.runner import GO, INTERRUPTED, exit_file, mark_of, pid_file
from tuner.service.runs import Runs
from tuner.service.store import discard_half_written, make_folder, write

PROGRAM = program("specpivot")
MAX_RUNNING = 16
ENDED_WELL = (0, 3)  # 3: finished, but some points are partial or invalid


class Jobs:
    """Starts, watches and stops jobs; used from the event loop's thread alone.

    Args:
        runs: the results folder.
        environment: of a job's process.
        program: the command line of SpecPivot.
    """

    def __init__(self, runs: Runs, environment: dict[str, str], program: Sequence[str] = PROGRAM) -> None:
        self._runs = runs
        self._environment = environment
        self._program = program
        self._folder = make_folder(runs.results / STATE / "jobs")
        discard_half_written(self._folder)
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._records = {record.id: record for record in stored(self._folder)}
        self.look()

    # ---- read

    def all(self) -> list[answers.Job]:
        """Every job, newest first."""
        newest_first = sorted(self._records.values(), key=lambda r: (r.created_s, r.id), reverse=True)
        return [self.answer(record) for record in newest_first]

    def get(self, job: str) -> Record:
        """A job by its id.

        Raises:
            Refusal: there is none.
        """
        record = self._records.get(job)
        if record is None:
            raise Refusal(404, f"there is no job {job[:100]}; GET /api/v1/jobs lists those there are")
        return record

    def on(self, server: str) -> str | None:
        """The id of the job that runs on a server."""
        return next((r.id for r in self._records.values() if r.state == "running" and r.server == server), None)

    def by_run(self) -> dict[str, str]:
        """The id of the job that made a run, by the run's name."""
        return {record.run: record.id for record in self._records.values()}

    def running(self) -> list[Record]:
        """Those that run."""
        return [record for record in self._records.values() if record.state == "running"]

    def log(self, job: str, lines: int) -> answers.Log:
        """The end of a job's log; errors are those of `get`."""
        return answers.Log(joblog.tail(self._base(self.get(job).id), lines))

    def answer(self, record: Record) -> answers.Job:
        """A job as people see it."""
        progress = self._runs.progress(record.run) or Progress(0, record.points_planned, None)
        done, running = progress.done, record.state == "running"
        return answers.Job(
            id=record.id,
            kind=record.kind,
            run=record.run,
            server=record.server,
            state=record.state,
            created_s=record.created_s,
            started_s=record.started_s,
            ended_s=record.ended_s,
            exit_code=record.exit_code,
            points_done=done,
            points_planned=done if record.kind == "tune" and record.state == "done" else progress.planned,
            eta_s=eta_s(record, progress, joblog.changed_s(self._runs.results / record.run)) if running else None,
            message=joblog.message(self._base(record.id)) if running else record.message,
            resumable=resumable(record),
        )

    # ---- change

    def start(self, plan: Plan, keys: dict[str, str], run: str | None = None) -> answers.Job:
        """Start a job.

        Args:
            plan: what it is to do.
            keys: variables of its environment that hold the server's keys; they are not stored.
            run: the run's name; one is found where none is given.

        Raises:
            Refusal: the server is occupied, too many jobs run, or the run is there already.
        """
        self._refuse_if_occupied(plan.server)
        now = time.time()
        name = run or f"local-{datetime.fromtimestamp(now):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
        folder = new_folder(self._runs.results, name)
        if any(record.run == name for record in self.running()):
            raise Refusal(409, f"a job that runs makes {name} already; give the run another name")
        record = Record(
            id=f"{datetime.fromtimestamp(now):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}",
            kind=plan.kind,
            run=name,
            server=plan.server,
            arguments=self._arguments(plan, folder),
            points_planned=plan.points,
            point_s=plan.point_s,
            created_s=now,
            started_s=now,
        )
        return self._run(record, record.arguments, keys)

    def resume(self, job: str, keys: dict[str, str]) -> answers.Job:
        """Go on with a job that ended before it was finished.

        Raises:
            Refusal: there is none, it runs or is finished, or its server is occupied.
        """
        record = self.get(job)
        if not resumable(record):
            raise Refusal(409, f"job {job} {why_not(record)}")
        self._refuse_if_occupied(record.server)
        folder = self._runs.results / record.run
        again = [record.kind, "--resume", f"--out={folder}"] if holds_run(folder) else record.arguments
        fresh = msgspec.structs.replace(
            record,
            started_s=time.time(),
            cancels=0,
            state="running",
            ended_s=None,
            exit_code=None,
        )
        return self._run(fresh, again, keys)

    def cancel(self, job: str) -> answers.Job:
        """Interrupt a job as Ctrl-C would; a second time ends it at once.

        Raises:
            Refusal: there is none, or it does not run.
        """
        record = self.get(job)
        pid = self._pid(record)
        if record.state != "running" or pid is None:
            raise Refusal(409, f"job {job} does not run: it is {record.state}")
        record = self._put(msgspec.structs.replace(record, cancels=record.cancels + 1))
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGINT)
        return self.answer(record)

    def look(self) -> list[answers.Job]:
        """Find out which of the running jobs have ended; all jobs that ran until now."""
        before = self.running()
        for record in before:
            child = self._children.get(record.id)
            if child is not None and child.poll() is not None:  # reaped: a zombie would look like a process
                del self._children[record.id]
            if self._pid(record) is None and record.id not in self._children:
                self._put(self._ended(record))
        return [self.answer(self._records[record.id]) for record in before]

    # ---- parts

    def _run(self, record: Record, arguments: Sequence[str], keys: dict[str, str]) -> answers.Job:
        base = self._base(record.id)
        for stale in (pid_file(base), exit_file(base)):
            stale.unlink(missing_ok=True)
        self._put(record)
        command = [*self._program, *arguments]
        with open(os.open(joblog.file(base), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as out:  # noqa: PTH123 - Path cannot set the mode
            child = self._children[record.id] = subprocess.Popen(
                [*program("tuner.service.runner"), str(base), *command],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**self._environment, **keys},
                cwd=self._folder,
                start_new_session=True,
            )
        assert child.stdin is not None
        with suppress(BrokenPipeError), child.stdin:  # killed here, nothing has begun that nobody would find
            write(pid_file(base), f"{child.pid} {mark_of(child.pid)}\n".encode())
            child.stdin.write(GO)
        return self.answer(record)

    def _arguments(self, plan: Plan, folder: Path) -> list[str]:
        return [plan.kind, *plan.flags, f"--out={folder}"]

    def _refuse_if_occupied(self, server: str) -> None:
        if (job := self.on(server)) is not None:
            raise Refusal(409, f"job {job} runs on {server}; wait for it, or cancel it")
        if len(self.running()) >= MAX_RUNNING:
            raise Refusal(409, f"{MAX_RUNNING} jobs run already; wait for one, or cancel it")

    def _ended(self, record: Record) -> Record:
        """A job whose process is gone."""
        code = number(exit_file(self._base(record.id)))
        state: answers.JobState
        if code in ENDED_WELL or (code is None and self._nothing_is_left(record)):
            state = "done"
        elif record.cancels:
            state = "cancelled"
        else:
            state = "interrupted" if code is None or code < 0 or code == INTERRUPTED else "failed"
        message = joblog.message(self._base(record.id))
        return msgspec.structs.replace(record, state=state, exit_code=code, ended_s=time.time(), message=message)

    def _nothing_is_left(self, record: Record) -> bool:
        """Whether a sweep's run has all its points, and good ones."""
        summary = self._runs.summary(record.run)
        return record.kind == "sweep" and summary is not None and 0 < summary.points_planned <= summary.usable

    def _pid(self, record: Record) -> int | None:
        """The process group of a job that runs; None where it does not, or has not said so yet."""
        child = self._children.get(record.id)
        if child is not None:
            return child.pid
        try:
            pid, mark = pid_file(self._base(record.id)).read_text().split()
        except (OSError, ValueError):
            return None
        return int(pid) if mark_of(int(pid)) == mark else None

    def _put(self, record: Record) -> Record:
        write(self._base(record.id).with_suffix(".json"), msgspec.json.encode(record))
        self._records[record.id] = record
        return record

    def _base(self, job: str) -> Path:
        return self._folder / job
