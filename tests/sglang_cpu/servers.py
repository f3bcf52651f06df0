"""Starts an SGLang server on this machine, talks to it, and stops its whole process group.

A server that has logged a traceback, a failed assertion or a leak is a failed test, whatever its answers were:
`Server.faults` lists such lines, and the fixtures look after every test.
"""

from __future__ import annotations

import atexit
import itertools
import json
import os
import random
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from harness.guard import group_alive
from tests.sglang_cpu.machines import Machine

Worker = Literal["v1", "v2"]
Json = dict[str, Any]

REQUEST_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 60.0
NUM_STEPS = 3
MAX_RUNNING_REQUESTS = 16
_BLOCKS = itertools.cycle(range(20_000, 32_000, 1_200))

_FAULT = re.compile(
    "Traceback|AssertionError|[Ll]eak [Dd]etected|memory leak|hit an exception|Segmentation fault"
    "|specpivot: (gated step|a step of|a decode forward|tensor-parallel)"
)


@dataclass(frozen=True, slots=True)
class Arrangement:
    """A release and the worker class that serves EAGLE in it."""

    release: str
    worker: Worker

    @property
    def name(self) -> str:
        return f"{self.release}-{self.worker}"

    def arguments(self) -> tuple[str, ...]:
        """The arguments that select this worker."""
        newer_v1 = self.worker == "v1" and self.release != "0.5.9"
        return ("--disable-overlap-schedule",) if newer_v1 else ()

    def environment(self) -> Mapping[str, str]:
        """The variables that select this worker; 0.5.9 runs v1 unless told otherwise."""
        return {"SGLANG_ENABLE_SPEC_V2": "1"} if (self.release, self.worker) == ("0.5.9", "v2") else {}


ARRANGEMENTS = (
    Arrangement("0.5.9", "v1"),
    Arrangement("0.5.9", "v2"),
    Arrangement("0.5.12.post1", "v1"),
    Arrangement("0.5.12.post1", "v2"),
    Arrangement("0.5.16", "v2"),
    Arrangement("0.5.23", "v2"),
)


class Server:
    """A running server: its address, its log, and the few calls that the tests make."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.name = name
        self.process = process
        self.url = f"http://127.0.0.1:{port}"
        self.log = log
        self._started_at: int | None = None  # length of the log when it became healthy

    def get(self, path: str) -> Any:
        return self._call(path, None)

    def post(self, path: str, body: Json) -> Any:
        return self._call(path, body)

    def _call(self, path: str, body: Json | None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_S) as response:
            text = response.read()
        return json.loads(text) if text[:1] in (b"{", b"[") else text.decode()

    def generate(self, **request: Any) -> Any:
        """One native request, without streaming: an answer, or a list of them for n > 1 or several prompts."""
        return self.post("/generate", request)

    def generate_all(self, requests: Sequence[Json], at_once: int = MAX_RUNNING_REQUESTS) -> list[Any]:
        """Many requests, at most `at_once` in flight; answers in the order of the requests."""
        with ThreadPoolExecutor(at_once) as pool:
            return list(pool.map(lambda request: self.generate(**request), requests))

    def internal_state(self) -> Json:
        state: Json = self.get("/server_info")["internal_states"][0]
        return state

    def flush(self) -> None:
        """Empty the radix cache, once the scheduler is idle."""
        deadline = time.monotonic() + 20
        while True:
            try:
                self.post("/flush_cache", {})
                return
            except urllib.error.HTTPError:  # 400 while a request still runs
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def faults(self) -> list[str]:
        """Lines that no healthy server writes, since the start: a start that fails ends the process instead."""
        return [line for line in self.log_since_start().splitlines() if _FAULT.search(line)]

    def log_since_start(self) -> str:
        """What the server has logged since it became healthy."""
        return "" if self._started_at is None else self.log_text()[self._started_at :]

    def mark_started(self) -> None:
        """From here on the log must be clean; while it starts, 0.5.23 logs a traceback for a call of its own."""
        self._started_at = len(self.log_text())

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")

    def healthy(self) -> bool:
        return self.process.poll() is None and not self.faults()

    def assert_healthy(self) -> None:
        assert self.process.poll() is None, f"{self.name} ended; its log: {self.log}\n{self._tail()}"
        faults = self.faults()
        assert not faults, f"{self.name} logged {len(faults)} fault(s), the first: {faults[0]}\nits log: {self.log}"

    def _tail(self, lines: int = 30) -> str:
        return "\n".join(self.log_text().splitlines()[-lines:])


def eagle_arguments(models: Path, draft: str = "draft", topk: int = 1) -> list[str]:
    """EAGLE-3 with three draft steps: a chain for topk 1, else a tree of eight tokens."""
    return [
        *("--attention-backend", "triton", "--speculative-algorithm", "EAGLE3"),
        *("--speculative-draft-model-path", str(models / draft), "--speculative-num-steps", str(NUM_STEPS)),
        *("--speculative-eagle-topk", str(topk)),
        *("--speculative-num-draft-tokens", str(NUM_STEPS + 1 if topk == 1 else 8)),
    ]


def command(machine: Machine, release: str, models: Path, port: int, module: str) -> list[str]:
    """The command line of any of the test servers, up to what is special to one."""
    return [
        *(str(machine.environment(release).python), "-m", module, "--model-path", str(models / "target")),
        *("--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--random-seed", "1"),
        *("--max-total-tokens", "8192", "--max-running-requests", str(MAX_RUNNING_REQUESTS)),
        *("--context-length", "1024", "--mem-fraction-static", "0.5", "--skip-server-warmup"),
        *machine.arguments,
    ]


def variables(machine: Machine, release: str) -> dict[str, str]:
    """This process's environment, with what the machine's servers need and nothing that was meant for others."""
    root = Path(__file__).parents[2]
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("SGLANG_", "SPECPIVOT_"))}
    kept.pop("PYTHONDONTWRITEBYTECODE", None)  # compiled files in the cached environment halve every later start
    return kept | {
        "PYTHONPATH": os.pathsep.join(map(str, (*machine.environment(release).path, root))),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        **dict(machine.variables),
    }


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to start; equal ones share a server.

    Attributes:
        module: what `python -m` runs; `patched_worker` for a patched server.
    """

    name: str
    release: str
    arguments: tuple[str, ...]
    variables: tuple[tuple[str, str], ...] = ()
    module: str = "sglang.launch_server"


def start(machine: Machine, wanted: Wanted, models: Path, log: Path) -> Server:
    """Start a server and wait until it is healthy.

    Raises:
        AssertionError: it ended or was not healthy in time; the end of its log is in the message.
    """
    server = launch(machine, wanted, models, log)
    try:
        _wait_until_healthy(server, machine.start_timeout_s)
    except BaseException:
        stop(server)
        raise
    return server


def launch(machine: Machine, wanted: Wanted, models: Path, log: Path) -> Server:
    """Start a server in a process group of its own and do not wait.

    It ends with this process at the latest: Ctrl-C while it starts beside others is raised where nobody knows it yet.
    """
    port = free_port()
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*command(machine, wanted.release, models, port, wanted.module), *wanted.arguments],
            env=variables(machine, wanted.release) | dict(wanted.variables),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    atexit.register(_end, process)
    return Server(wanted.name, process, port, log)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def free_port() -> int:
    """A port that nothing listens on, low enough for those that SGLang derives from it (10,000 above).

    SGLang looks for further ones up to 1,000 above its own, and takes them later: those who ask one after another get
    ports further apart.
    """
    while True:
        port = next(_BLOCKS) + random.randrange(100)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def _wait_until_healthy(server: Server, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        server.assert_healthy()
        try:
            server.get("/health")
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.5)
        else:
            server.mark_started()
            return
    raise AssertionError(f"{server.name} was not healthy after {timeout_s:.0f} s; its log: {server.log}")


def stop(server: Server) -> None:
    """End the process group at once: what a server had to show it has shown, and a polite end takes SGLang 6 to 8 s.

    Raises:
        AssertionError: the scheduler or the detokenizer, which may outlive the launcher, is still there.
    """
    with suppress(ProcessLookupError):
        os.killpg(server.process.pid, signal.SIGKILL)
    server.process.wait(STOP_TIMEOUT_S)
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while group_alive(server.process.pid):
        assert time.monotonic() < deadline, f"{server.name} does not end"
        time.sleep(0.05)
