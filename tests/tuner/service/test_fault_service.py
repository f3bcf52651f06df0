"""The real service under faults: SIGKILL at random moments under load, and requests that mean it harm.

Nothing may be lost or doubled: every job is found once with the right state, every run is whole, every listener knows
in the end what the service knows, and nothing is left: no process, no port, no lock.
"""

from __future__ import annotations

import fcntl
import random
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from harness.servers import reserved_ports
from tests.harness.commands import PATIENCE_S, wait_until
from tests.harness.leftovers import nothing_left
from tests.harness.test_fault_client import assert_whole
from tests.harness.test_sweep_faults import simulated
from tests.tuner.service.restarts import JOBS, POINTS, Load, Service
from tests.tuner.service.services import TOKEN
from tuner.service.routes import MAX_BODY_BYTES


def live_and_die(service: Service, load: Load, moments: random.Random) -> None:
    """One life of the service, which SIGKILL ends: while it starts, while it serves, or as a job begins or ends."""
    way = moments.random()
    if way < 0.2:
        time.sleep(moments.uniform(0.0, 0.5))
    else:
        service.up()
        load.asking.clear()
        if way < 0.7:
            load.asking.wait(2.0)
            time.sleep(moments.uniform(0.0, 0.05))
        else:
            time.sleep(moments.uniform(0.0, 2.0))
    assert service.process.poll() is None
    service.end(signal.SIGKILL)
    service.start()


def finished(load: Load) -> list[dict[str, Any]]:
    """Every job once all of them have ended by themselves, resumed for as long as something is left to measure."""

    def settle() -> bool:
        jobs = load.jobs()
        for job in jobs:
            if job["state"] in ("interrupted", "cancelled") or (job["state"] == "failed" and job["exit_code"] != 4):
                load.ask(f"/jobs/{job['id']}/resume", {})
        return {job["run"] for job in jobs} == set(JOBS) and all(job["state"] in ("done", "failed") for job in jobs)

    wait_until(settle)
    return load.jobs()


def lockable(file: Path) -> bool:
    """Whether nobody holds the lock of a folder."""
    with file.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True


@pytest.mark.parametrize(("kills", "seed"), [(6, 1), pytest.param(60, 2, marks=pytest.mark.soak)])
@pytest.mark.timeout(1800)
def test_killed_and_restarted_under_load(tmp_path: Path, kills: int, seed: int) -> None:
    """Every job is there once, done and whole, and listeners know it; SIGTERM then ends the service, all of it."""
    results, moments = tmp_path / "results", random.Random(seed)
    results.mkdir()
    with nothing_left(results), reserved_ports(2) as (port, box), simulated(box, 1, "--variant", "dynamic"):
        service, load = Service(results, port), Load(port, seed)
        try:
            registered = {"name": "box", "url": f"http://127.0.0.1:{box}"}
            assert load.insist("/servers", registered)[0] == 201
            with load.running(pollers=3, listeners=3):
                for _ in range(kills):
                    live_and_die(service, load, moments)
                service.up()
                load.calm()
                jobs = finished(load)
                states = {job["id"]: job["state"] for job in jobs}
                wait_until(lambda: all(listener.states == states for listener in load.listeners))
                runs = load.insist("/runs")[1]["runs"]
                load.over()
                assert service.end(signal.SIGTERM) == 0  # streams are open still
            assert load.problems == []
            assert not service.listens()
        finally:
            service.process.kill()
            service.process.wait()
    assert sorted(job["run"] for job in jobs) == sorted(JOBS)
    assert {run["name"]: (run["job"], run["points_done"]) for run in runs} == {
        j["run"]: (j["id"], POINTS) for j in jobs
    }
    for run in JOBS:
        assert_whole(results / run, POINTS)
    assert all(map(lockable, [results / ".service" / "lock", *[results / run / ".lock" for run in JOBS]]))
    assert list(results.rglob(".*.new")) == []


def exchanged(port: int, text: bytes) -> bytes:
    """Everything that comes back until the service hangs up."""
    found = b""
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as connection, suppress(ConnectionError):
        connection.sendall(text)
        while more := connection.recv(65536):
            found += more
    return found


def asked(path: str = "/api/v1/jobs", method: str = "GET", body: bytes = b"", **headers: str) -> bytes:
    """A request with the token, unless a header is given in its place."""
    given = {"Host": "127.0.0.1", "Authorization": f"Bearer {TOKEN}", "Connection": "close"}
    if method == "POST":
        given |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"{method} {path} HTTP/1.1", *[f"{name}: {value}" for name, value in given.items()]]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


HOSTILE = {
    "no token": (asked(Authorization=""), 401),
    "a wrong token": (asked(Authorization="Bearer nonsense"), 401),
    "a foreign name": (asked(Host="evil.example"), 403),
    "another site": (asked(method="POST", body=b"{}", Origin="http://evil.example"), 403),
    "a path out of the folder": (asked("/api/v1/runs/..%2f..%2fetc%2fpasswd/levels"), 400),
    "a file out of the folder": (asked("/static/..%2f..%2fjobs.py"), 404),
    "a body that never comes": (asked(method="POST", Content_Length=str(10**12)), 400),
    "a body that is too long": (asked(method="POST", body=b" " * (MAX_BODY_BYTES + 1)), 413),
    "a head that is too long": (asked(X="x" * 20_000), 400),
    "no HTTP": (b"\x16\x03\x01\x02\x00" + bytes(600), 400),
    "a head that never ends": (b"GET /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ", 0),  # hung up on
}


def test_hostile_requests_to_the_real_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is refused, who never ends a request is hung up on; the service goes on, and its token is told to nobody."""
    monkeypatch.setenv("SPECPIVOT_TOKEN", TOKEN)
    results = tmp_path / "results"
    results.mkdir()
    with nothing_left(results), reserved_ports(1) as (port,):
        service = Service(results, port)
        try:
            service.up()
            with ThreadPoolExecutor(len(HOSTILE)) as pool:
                answers = dict(zip(HOSTILE, pool.map(lambda h: exchanged(port, h[0]), HOSTILE.values()), strict=True))
            assert b" 200 OK" in exchanged(port, asked())
            assert service.end(signal.SIGTERM) == 0
        finally:
            service.process.kill()
            service.process.wait()
    found = {name: int(answer.split()[1]) if answer else 0 for name, answer in answers.items()}
    assert found == {name: status for name, (_, status) in HOSTILE.items()}
    told = results.with_suffix(".log").read_bytes() + b"".join(answers.values())
    assert TOKEN.encode() not in told
    assert b"Traceback" not in told
