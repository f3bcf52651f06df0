"""The parts of a running service and what they tell each other: jobs and runs are looked at, changes become events."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from pathlib import Path

import msgspec

from tuner.service import answers, run_answers
from tuner.service.audit import Audit
from tuner.service.desk import Desk, child_environment
from tuner.service.events import Hub, Kind
from tuner.service.figures import Figures
from tuner.service.jobs import Jobs
from tuner.service.registry import Registry
from tuner.service.runs import Runs
from tuner.service.safety import Door
from tuner.service.watch import EVERY_S, Watch

logger = logging.getLogger(__name__)

JOBS_EVERY_S = 1.0
RUNS_EVERY_S = 5.0


class Service:
    """Everything that handlers use. Make it inside the event loop.

    Args:
        results: the results folder.
        door: who is let in.
        look_every_s: pause between two looks at a server.
    """

    def __init__(self, results: Path, door: Door, look_every_s: float = EVERY_S) -> None:
        self.door = door
        self.hub = Hub()
        self.figures = Figures()
        self.runs = Runs(results.resolve())
        self.registry = Registry(self.runs.results)
        environment = child_environment()
        self.jobs = Jobs(self.runs, environment)
        self.desk = Desk(environment)
        self.audit = Audit(self.runs.results)
        self.watch = Watch(self.registry, self.jobs.on, self._server_changed, self.audit, look_every_s)
        self.figures.watch(self.jobs.all, self.watch.all)
        self._told: dict[str, msgspec.Struct] = {}
        self._tasks = [
            asyncio.get_running_loop().create_task(task) for task in (self._follow_jobs(), self._follow_runs())
        ]

    async def close(self) -> None:
        """Stop everything but the jobs."""
        await self.stop()
        await self.desk.close()

    async def stop(self) -> None:
        """Let streams of events end, and look at nothing any more; what is being asked can still be answered."""
        self.hub.close()
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task
        await self.watch.close()

    async def all_runs(self) -> list[run_answers.RunSummary]:
        """Every run, newest first."""
        found = await asyncio.to_thread(self.runs.all)
        made_by = self.jobs.by_run()
        return [msgspec.structs.replace(run, job=made_by.get(run.name)) for run in found]

    def job_changed(self, job: answers.Job) -> None:
        """Tell of a job that was started, resumed or asked to stop."""
        self._tell("job", job.id, job)
        self.watch.job_changed(job.server)

    def run_changed(self, name: str) -> None:
        """Tell of a run, if it is not as it was told last."""
        run = self.runs.summary(name)
        if run is not None:
            self._tell("run", name, msgspec.structs.replace(run, job=self.jobs.by_run().get(name)))

    def server_gone(self, name: str) -> None:
        """Tell that a server is registered no more."""
        self._told.pop(f"server {name}", None)
        self.hub.reset()

    def _server_changed(self, server: answers.Server) -> None:
        self._tell("server", server.name, server)

    def _tell(self, kind: Kind, key: str, document: msgspec.Struct) -> None:
        if self._told.get(f"{kind} {key}") != document:
            self._told[f"{kind} {key}"] = document
            self.figures.events.labels(kind).inc()
            self.hub.publish(kind, document)

    async def _follow_jobs(self) -> None:
        while True:
            try:
                for job in self.jobs.look():
                    self._tell("job", job.id, job)
                    if job.state != "running":
                        self.watch.job_changed(job.server)
                    self.run_changed(job.run)
            except OSError as error:  # a full disk, say: the next look may succeed
                logger.warning("jobs could not be looked at: %s", error)
            await asyncio.sleep(JOBS_EVERY_S)

    async def _follow_runs(self) -> None:
        """Runs that somebody else makes in the same folder."""
        known = False  # those that are there at first are no news
        while True:
            try:
                for run in reversed(await self.all_runs()):
                    if known:
                        self._tell("run", run.name, run)
                    else:
                        self._told[f"run {run.name}"] = run
                known = True
            except OSError as error:  # as with jobs
                logger.warning("runs could not be looked at: %s", error)
            await asyncio.sleep(RUNS_EVERY_S)
