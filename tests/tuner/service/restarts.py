"""A service process that is killed and started again, and clients that poll it, change its jobs and hear its events."""

from __future__ import annotations

import http.client
import json
import random
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from harness.sim.preset import preset_names
from tests.harness.commands import PATIENCE_S, wait_until
from tests.tuner.service.test_serve import ROOT, SERVICE

OPTIONS = {"concurrency": [1, 2], "repeats": 2, "warmup": 0.2, "duration": 0.6, "input_tokens": 8, "output_tokens": 8}
POINTS = 4
JOBS: dict[str, dict[str, Any]] = {
    "box": {"server": "box", "options": {**OPTIONS, "variants": ["eagle3"]}},
    **{
        f"sim-{n}": {"sim": name, "options": {**OPTIONS, "variants": ["baseline"]}}
        for n, name in enumerate(preset_names())
    },
}
GONE = (OSError, http.client.HTTPException)  # the service was killed before it answered, or is not up yet
Answer = tuple[int, Any]


class Load:
    """Clients of a service that comes and goes, each in a thread of its own, and what they found wrong.

    Args:
        port: where the service listens while it is up.
        seed: of what is done when.
    """

    def __init__(self, port: int, seed: int) -> None:
        self.port = port
        self.problems: list[str] = []
        self.asking = threading.Event()  # a job is about to be started, stopped or resumed
        self.listeners: list[Listener] = []
        self._calm, self._over = threading.Event(), threading.Event()
        self._moments = random.Random(seed)

    @contextmanager
    def running(self, pollers: int, listeners: int) -> Iterator[None]:
        """Put the load on; it ends after the block."""
        self.listeners = [Listener() for _ in range(listeners)]
        changing: list[Callable[[], None]] = [self._start_all, self._meddle]
        reading = [*[self._poll] * pollers, *[partial(self._listen, listener) for listener in self.listeners]]
        threads = [threading.Thread(target=self._guarded, args=(one,)) for one in [*changing, *reading]]
        self._changing = threads[: len(changing)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._calm.set()
            self._over.set()
            for thread in threads:
                thread.join(PATIENCE_S)

    def calm(self) -> None:
        """No more changes of jobs: clients only read and listen from here on, and every job has been asked for."""
        self._calm.set()
        for thread in self._changing:
            thread.join(PATIENCE_S)

    def over(self) -> None:
        """No more questions."""
        self._over.set()

    def ask(self, path: str, body: Any = None) -> Answer:
        """Status and JSON of an answer; what is wrong with it is noted.

        Raises:
            OSError, HTTPException: there was none.
        """
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            data = None if body is None else json.dumps(body)
            headers = {"Content-Type": "application/json"} if data else {}
            connection.request("POST" if data else "GET", f"/api/v1{path}", data, headers)
            response = connection.getresponse()
            status, document = response.status, json.loads(response.read())
        finally:
            connection.close()
        if status not in (200, 201, 404, 409):
            self.problems.append(f"{path}: {status} {document}")
        return status, document

    def insist(self, path: str, body: Any = None) -> Answer:
        """The answer, whoever is killed meanwhile."""
        deadline = time.monotonic() + PATIENCE_S
        while not self._over.is_set():
            with suppress(*GONE):
                return self.ask(path, body)
            assert time.monotonic() < deadline, f"nobody answers {path}"
            time.sleep(0.02)
        raise ConnectionError("over")

    def jobs(self) -> list[dict[str, Any]]:
        """Every job."""
        found: list[dict[str, Any]] = self.insist("/jobs")[1]["jobs"]
        return found

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except GONE as error:
            if not self._over.is_set():
                self.problems.append(repr(error))
        except Exception as error:  # it would be lost in a thread
            self.problems.append(repr(error))

    def _change(self, path: str, body: Any) -> None:
        """Ask for a change once; whether it was done is seen later."""
        self.asking.set()
        with suppress(*GONE):
            self.ask(path, body)

    def _start_all(self) -> None:
        """Each job until it is there, whether or not somebody lived to say so."""
        for run, ask in JOBS.items():
            while run not in {job["run"] for job in self.jobs()}:
                self._change("/jobs", {"kind": "sweep", "run": run, **ask})
            self._calm.wait(self._moments.uniform(0, 1))

    def _meddle(self) -> None:
        """Stop jobs that run, go on with those that do not."""
        while not self._calm.wait(self._moments.uniform(0, 2)):
            jobs = self.jobs()
            if jobs:
                job = self._moments.choice(jobs)
                if job["state"] == "running":
                    self._change(f"/jobs/{job['id']}/cancel", {})
                elif job["resumable"]:
                    self._change(f"/jobs/{job['id']}/resume", {})

    def _poll(self) -> None:
        known: set[str] = set()
        while not self._over.wait(0.05):
            with suppress(*GONE):
                self._read(known)

    def _read(self, known: set[str]) -> None:
        """Read the jobs and one more thing: a job that was there once is there ever after."""
        jobs = self.ask("/jobs")[1]["jobs"]
        ids = [job["id"] for job in jobs]
        if len(set(ids)) < len(ids) or not known <= set(ids):
            self.problems.append(f"jobs {known} became {ids}")
        known |= set(ids)
        paths = ["/runs", "/servers", *[f"/jobs/{job}/log" for job in ids]]
        paths += [f"/runs/{job['run']}{rest}" for job in jobs for rest in ("", "/levels", "/curves")]
        self.ask(random.choice(paths))

    def _listen(self, listener: Listener) -> None:
        while not self._over.is_set():
            with suppress(*GONE):
                listener.follow(self)
            self._over.wait(0.05)


class Listener:
    """An event stream held as the page holds it: fetched anew after a reset, asked for the rest after a cut."""

    def __init__(self) -> None:
        self.states: dict[str, str] = {}  # by job, as far as this listener knows
        self.resets = 0
        self._last = ""

    def follow(self, load: Load) -> None:
        """One connection, to its end."""
        connection = http.client.HTTPConnection("127.0.0.1", load.port, timeout=PATIENCE_S)
        try:
            connection.request("GET", "/api/v1/events", headers={"Last-Event-ID": self._last} if self._last else {})
            response = connection.getresponse()
            if not self._last:
                self._fetch(load)
            event: dict[str, str] = {}
            while line := response.readline().decode():
                name, _, value = line.rstrip("\n").partition(": ")
                if name:
                    event[name] = value
                elif event:
                    self._hear(load, event)
                    event = {}
        finally:
            connection.close()

    def _hear(self, load: Load, event: dict[str, str]) -> None:
        if "event" not in event:
            return
        (life, count), (old, before) = (text.rpartition("-")[::2] for text in (event["id"], self._last or event["id"]))
        follows = event["event"] == "reset" or not self._last or (life == old and int(count) == int(before) + 1)
        if not follows:
            load.problems.append(f"{event['id']} came after {self._last}")
        self._last = event["id"]
        if event["event"] == "reset":
            self.resets += 1
            self._fetch(load)
        elif event["event"] == "job":
            job = json.loads(event["data"])
            self.states[job["id"]] = job["state"]

    def _fetch(self, load: Load) -> None:
        self.states = {job["id"]: job["state"] for job in load.jobs()}


class Service:
    """The command on one port and one folder, killed and started again."""

    def __init__(self, results: Path, port: int) -> None:
        self.results, self.port = results, port
        self._log = results.with_suffix(".log")
        self.process = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        """Start it; it is not up yet."""
        words = [*SERVICE, f"--port={self.port}", f"--results={self.results}"]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(words, cwd=ROOT, stderr=log)
        return self.process

    def up(self) -> None:
        """Wait until it listens."""
        wait_until(self.listens, lambda: self.process.poll() is None or self._log.read_text())

    def end(self, number: signal.Signals) -> int:
        """Send a signal and wait."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)

    def listens(self) -> bool:
        """Whether somebody takes connections on its port."""
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0
