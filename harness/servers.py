"""Servers of a sweep: attached to, or started in a process group of their own, waited for, proven and stopped."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import psutil

from harness.endpoint import Endpoint, specpivot_block
from harness.environment import server_environment
from harness.errors import UserError
from harness.gpus import machine_gpus, server_gpus
from harness.guard import STOP_GRACE_S, Guard, group_alive, guarding, signal_group
from harness.nearby import attached_to, environment_of, is_here, listeners
from harness.proof import identity, reported_arguments, simulation_of, worker_of
from harness.records import ServerGpus, ServerRecord
from harness.variants import ServerPlan

# SGLang takes further ports near its own for its ranks, so servers are kept well apart.
_PORTS = range(20_000, 31_000, 500)
HTTP_TITLE = "sglang::tokenizer_worker"


class ServerDied(UserError):
    """A server that was started ended before it was ready."""


class Server(msgspec.Struct, frozen=True):
    """A server that is up, and what it has shown of itself.

    Attributes:
        pid: its main process on this machine, also of an SGLang that was attached to; None where that cannot be seen.
    """

    plan: ServerPlan
    endpoint: Endpoint
    record: ServerRecord
    identity: str
    simulation: dict[str, Any] | None = None
    pid: int | None = None

    @property
    def patched(self) -> bool:
        return self.record.worker_proof.get("how") == "reported"


def attach(plan: ServerPlan, api_key: str | None, admin_api_key: str | None) -> Server:
    """Look at a server that runs already.

    Raises:
        UserError: nothing answers there.
    """
    endpoint = Endpoint(str(plan.url), api_key, admin_api_key)
    endpoint.require_healthy("--attach")
    return prove(plan, endpoint)


@contextmanager
def running(
    plans: Sequence[ServerPlan], logs: Path, timeout_s: float, stop: threading.Event, say: Callable[[str], None]
) -> Iterator[dict[str, Server | UserError]]:
    """Start servers side by side, wait for all, and stop them in the end, whatever happens.

    Args:
        plans: what to start.
        logs: folder for NAME.log of each.
        timeout_s: how long a server may take until it is healthy.
        stop: set to stop waiting.
        say: called with a line about each server that came up or did not.

    Yields:
        By plan name, the server or why it is not there.
    """
    processes: list[subprocess.Popen[bytes]] = []
    with reserved_ports(len(plans)) as ports, guarding() as guard:
        try:
            started = []
            for plan, port in zip(plans, ports, strict=True):
                process = _spawn(plan, port, logs / f"{plan.name}.log", guard)
                processes.append(process)
                started.append((plan, port, process))
            yield {
                plan.name: _ready(plan, port, process, logs, timeout_s, stop, say) for plan, port, process in started
            }
        finally:
            stop_all(processes)


@contextmanager
def reserved_ports(count: int) -> Iterator[list[int]]:
    """Different ports on which nothing listens, and which no other SpecPivot of this machine takes meanwhile.

    A port is free until a server binds it, a minute after it was chosen: hence a lock file for each.
    """
    ports: list[int] = []
    with ExitStack() as locks:
        for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
            if len(ports) == count:
                break
            lock = locks.enter_context(_port_lock(port).open("w"))
            with suppress(OSError), socket.socket() as probe:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                probe.bind(("127.0.0.1", port))
                ports.append(port)
        if len(ports) < count:
            raise UserError(f"only {len(ports)} of {count} ports are free between 20000 and 31000; stop some servers")
        yield ports


def _port_lock(port: int) -> Path:
    return Path(tempfile.gettempdir()) / f"specpivot-{os.getuid()}-port-{port}.lock"


def owns(process: subprocess.Popen[bytes], port: int) -> bool:
    """Whether the listener on a port of ours belongs to this process group: no other server may pass for it."""
    for pid in listeners(port):
        with suppress(ProcessLookupError):
            if os.getpgid(pid) == process.pid:
                return True
    return False


def prove(
    plan: ServerPlan, endpoint: Endpoint, process: subprocess.Popen[bytes] | None = None, log: str = ""
) -> Server:
    """Read what a server says of itself, and what it cannot say."""
    info = endpoint.server_info()
    worker, how = worker_of(info)
    lacking = tuple(
        name
        for name, there in (("/server_info", info is not None), ("/metrics", endpoint.metrics() is not None))
        if not there
    )
    mark, simulation = identity(info), simulation_of(info)
    started = psutil.Process(process.pid).create_time() if process else None
    env = _environment(plan) if process else None
    attached = None if process or simulation else attached_to(endpoint)
    record = ServerRecord(
        server_run=f"{process.pid}@{started:.0f}" if process else f"{endpoint.public_url}#{mark}",
        url=endpoint.public_url,
        pid=process.pid if process else None,
        start_time=started,
        arguments=plan.command,
        env=server_environment(env) if env else {},
        version=str((info or {}).get("version", "")),
        server_args=reported_arguments(info),
        worker=worker,
        worker_proof={"how": how, **_proof(specpivot_block(info))},
        lacking=lacking,
        log=log,
        gpus=ServerGpus() if simulation else _gpus(endpoint, env, info, attached),
    )
    pid = process.pid if process else attached.pid if attached else None
    return Server(plan, endpoint, record, mark, simulation, pid)


def _gpus(
    endpoint: Endpoint, env: Mapping[str, str] | None, info: dict[str, Any] | None, attached: psutil.Process | None
) -> ServerGpus:
    """The GPUs of this machine that a server runs on; of one that was attached to, as far as its process shows."""
    machine = machine_gpus()
    if not machine:
        return ServerGpus()
    if env is not None:
        return server_gpus(machine, env, info)
    if not is_here(endpoint):
        return ServerGpus(known_from="none of this machine: the server is on another one")
    env, contained = environment_of(attached)
    return server_gpus(machine, env, info, contained)


def _proof(block: dict[str, Any] | None) -> dict[str, Any]:
    keys = ("module", "version", "source_hash", "policy_id", "modified_source")
    return {key: block[key] for key in keys if key in block} if block else {}


# SGLang's words for: /health shall not answer by a request of its own, which takes a second, speculates and stands in
# the gauges for 30 s; and of several HTTP processes none shall be killed, time and again, that imports for over 10 s.
_QUIET = {"SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false", "SGLANG_UVICORN_WORKER_HEALTHCHECK_TIMEOUT": "120"}


def _environment(plan: ServerPlan) -> dict[str, str]:
    return {**_QUIET, **os.environ, **plan.env}


# A server waits for a line before it becomes itself. If we die before the guard knows of it, the line never comes.
_WAIT = ("/bin/sh", "-c", 'read -r _ && exec "$@" </dev/null', "sh")


def _spawn(plan: ServerPlan, port: int, log: Path, guard: Guard) -> subprocess.Popen[bytes]:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        process = subprocess.Popen(
            [*_WAIT, *plan.command, "--port", str(port)],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=_environment(plan),
            start_new_session=True,  # Ctrl-C must reach us first, and its whole group must be stoppable
        )
    guard.watch(process.pid)
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin:  # killed meanwhile, which the wait for it will tell
        process.stdin.write(b"go\n")
    return process


def _ready(
    plan: ServerPlan,
    port: int,
    process: subprocess.Popen[bytes],
    logs: Path,
    timeout_s: float,
    stop: threading.Event,
    say: Callable[[str], None],
) -> Server | UserError:
    log = logs / f"{plan.name}.log"
    endpoint = Endpoint(f"http://127.0.0.1:{port}")
    began = time.monotonic()
    while not (_all_listen(process.pid, endpoint) and endpoint.all_healthy(timeout_s=10)):
        if process.poll() is not None:
            return ServerDied(f"server {plan.name} ended with code {process.returncode}: {last_line(log)} (see {log})")
        if stop.is_set():
            return ServerDied(f"server {plan.name} was stopped before it was up")
        if time.monotonic() - began > timeout_s:
            return ServerDied(f"server {plan.name} was not healthy after {timeout_s:.0f} s; see {log}")
        time.sleep(0.2)
    if not owns(process, port):
        return ServerDied(f"another process answers on port {port}, not server {plan.name} (see {log}); stop it")
    try:
        server = prove(plan, endpoint, process, str(log.name))
    except psutil.NoSuchProcess:
        return ServerDied(f"server {plan.name} ended as soon as it was up: {last_line(log)} (see {log})")
    say(f"{plan.name} is up on port {port}, worker {server.record.worker or 'unknown'}")
    return server


def _all_listen(pid: int, endpoint: Endpoint) -> bool:
    """Whether all HTTP processes of a server have begun: one that still imports is not missed, for the others answer.

    SGLang gives each a title when it begins (managers/multi_tokenizer_mixin.py). Where titles are not seen, it passes.
    """
    wanted = endpoint.http_processes()
    if wanted == 1:
        return True
    with suppress(psutil.Error):
        begun = sum(_title(child).startswith(HTTP_TITLE) for child in psutil.Process(pid).children(recursive=True))
        return begun == 0 or begun >= wanted
    return False


def _title(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def last_line(log: Path) -> str:
    """The last line of a log that says something, cut to 200 characters; an exception line where there is one."""
    try:
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        return "no log"
    errors = [line for line in lines if "Error" in line or "error:" in line]
    return (errors or lines or ["nothing was logged"])[-1][:200]


def stop_all(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Stop every process group started, politely and then not (a second Ctrl-C skips the politeness)."""
    try:
        for process in processes:
            signal_group(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_GRACE_S
        while any(_alive(process) for process in processes) and time.monotonic() < deadline:
            time.sleep(0.1)
    finally:
        for process in processes:
            signal_group(process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)


def _alive(process: subprocess.Popen[bytes]) -> bool:
    process.poll()  # a zombie of ours would count as alive
    return group_alive(process.pid)
