"""Two tuners, each with its own servers, on one study: over Optuna's gRPC proxy and over a real PostgreSQL.

Everything is real but the servers, which are simulated and slow on purpose, so that two cores keep up with them.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from harness.servers import reserved_ports
from harness.sim.preset import DEFAULT_PRESET, PRESETS
from tests.needs import lacking
from tuner.study import storage_of

ROOT = Path(__file__).parent.parent.parent
START_S = 120
BUDGET_S = 300  # twice what it takes on two idle cores
TUNE_S = BUDGET_S + 180
TRIALS = 5
PROXY = """
import sys, optuna
from optuna.storages.journal import JournalFileBackend
storage = optuna.storages.JournalStorage(JournalFileBackend(sys.argv[1]))
optuna.storages.run_grpc_proxy_server(storage, host="127.0.0.1", port=int(sys.argv[2]))
"""
# The first live point of each waits for the other's: however unevenly a crowded machine runs them, both have a trial.
SEARCH = """
import sys, time
from pathlib import Path
from benchmarks.worlds import CONCURRENCY, Machine
from tests.tuner.test_search import world
from tuner.search import Aim, Task, search
from tuner.study import open_study, storage_of
machine = Machine(world(noise=0.02), seed=ord(sys.argv[3]))
study = open_study(storage_of(sys.argv[1]), "shared", seed=ord(sys.argv[3]))
aim = Aim(CONCURRENCY, trials=int(sys.argv[2]))
mine, other = (Path(sys.argv[4], name) for name in (sys.argv[3], {"a": "b", "b": "a"}[sys.argv[3]]))
def measure(variant, *point):
    if variant == "dynamic":
        mine.touch()
        while not other.exists():
            time.sleep(0.02)
    return machine.measure(variant, *point)
print("ready", flush=True)
sys.stdin.readline()
assert search(Task(measure, aim, [], lambda: 300 - machine.points, mine=sys.argv[3]), study)
"""

pytestmark = pytest.mark.timeout(600)


def slow_preset(folder: Path) -> Path:
    """A machine of 50 ms steps on which speculation stops paying at a batch of about 6."""
    preset: dict[str, Any] = json.loads((PRESETS / f"{DEFAULT_PRESET}.json").read_text())
    preset["baseline"] = {
        "decode": {"sizes": [1, 64], "seconds": [0.05, 0.05]},
        "prefill": {"sizes": [16, 4096], "seconds": [0.005, 0.05]},
    }
    preset["patched"] |= {
        "speculative": {"3": {"sizes": [1, 4, 16, 64], "seconds": [0.07, 0.1, 0.3, 1.2]}},
        "off_tax": {"sizes": [1, 64], "fraction": [0.05, 0.05]},
        "prefill": preset["baseline"]["prefill"],
        "switch_cost_s": 0.0,
    }
    file = folder / "slow.json"
    file.write_text(json.dumps(preset))
    return file


@contextmanager
def running(command: list[str], port: int, **how: Any) -> Iterator[None]:
    """A helper process that listens on a port of its own, ended afterwards."""
    how = {"cwd": ROOT} | how
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, **how) as process:
        try:
            deadline = time.monotonic() + START_S
            while True:
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                assert process.poll() is None, process.stderr.read().decode() if process.stderr else ""
                assert time.monotonic() < deadline, f"{command[0]} does not listen"
                time.sleep(0.1)
            yield
        finally:
            process.send_signal(signal.SIGINT)  # to PostgreSQL: do not wait for clients
            process.wait(timeout=200)


def tune_twice(storage: str, folder: Path) -> list[dict[str, Any]]:
    """Two tuner processes side by side on one storage; their last lines."""
    preset = slow_preset(folder)
    flags = ["--sim", str(preset), "--concurrency", "1,4,16", "--input-tokens", "16"]
    flags += [
        "--output-tokens",
        "16",
        "--duration",
        "2",
        "--warmup",
        "1",
        "--budget",
        f"{BUDGET_S}s",
        "--trials",
        str(TRIALS),
    ]
    flags += ["--storage", storage, "--study", "shared"]
    tuners = [
        subprocess.Popen(
            [sys.executable, "specpivot.py", "tune", *flags, "--out", str(folder / name)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in ("one", "two")
    ]
    ended = [tuner.communicate(timeout=TUNE_S) for tuner in tuners]
    for tuner, (_, told) in zip(tuners, ended, strict=True):
        assert tuner.returncode in (0, 3), told
    return [json.loads(out.splitlines()[-1]) for out, _ in ended]


def check(storage: Any, least: int = TRIALS) -> None:
    """One study holds the trials of both, each measured once, none left running."""
    study = optuna.load_study(study_name="shared", storage=storage)
    done = [trial for trial in study.trials if trial.state == TrialState.COMPLETE]
    assert len({trial.user_attrs["tuner"] for trial in done}) == 2
    assert least <= len(done) <= TRIALS + 1  # both may be measuring the last one
    assert not [trial for trial in study.trials if trial.state == TrialState.RUNNING]


def search_twice(storage: str, folder: Path) -> None:
    """Two processes that tune worlds of known truth at the same time, on one storage."""
    command = [sys.executable, "-c", SEARCH, storage, str(TRIALS)]
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    tuners = [subprocess.Popen([*command, name, str(folder)], cwd=ROOT, text=True, **pipes) for name in "ab"]
    try:
        for tuner in tuners:
            assert tuner.stdout is not None
            assert tuner.stdout.readline() == "ready\n"
        for tuner in tuners:
            assert tuner.stdin is not None
            tuner.stdin.write("go\n")
            tuner.stdin.flush()
        for tuner in tuners:
            _, told = tuner.communicate(timeout=TUNE_S)
            assert tuner.returncode == 0, told
    finally:
        for tuner in tuners:
            tuner.kill()
            tuner.communicate()


def test_two_searches_over_postgresql(tmp_path: Path) -> None:
    """A real PostgreSQL, whose tables both make at the same moment."""
    with postgresql() as storage:
        search_twice(storage, tmp_path)
        database = optuna.storages.RDBStorage(storage)
        check(database)
        database.engine.dispose()


def test_two_searches_over_grpc(tmp_path: Path) -> None:
    """Optuna's storage proxy in front of a journal."""
    with grpc_proxy(tmp_path) as storage:
        search_twice(storage, tmp_path)
        check(storage_of(storage))


@pytest.mark.soak
def test_two_tuners_with_servers_over_grpc(tmp_path: Path) -> None:
    """The whole command twice, each with its own simulated servers: both find the pivot and share their trials."""
    with grpc_proxy(tmp_path) as storage:
        outcomes = tune_twice(storage, tmp_path)
        # Where a crowded machine left no budget for all trials, both had theirs all the same, and say so.
        least = TRIALS if "trials" in {outcome["ended"] for outcome in outcomes} else 2
        check(storage_of(storage), least)
    for outcome in outcomes:
        found = outcome["recommendation"]
        assert found["shape"] == "crossover"
        assert 3 <= found["threshold"] <= 10
        assert found["evidence"]["trials"] >= least - 1


@contextmanager
def grpc_proxy(folder: Path) -> Iterator[str]:
    """Optuna's gRPC storage proxy in a process of its own; yields its address."""
    with reserved_ports(1) as (port,):
        command = [sys.executable, "-W", "ignore", "-c", PROXY, str(folder / "journal"), str(port)]
        with running(command, port):
            yield f"grpc://127.0.0.1:{port}"


@contextmanager
def postgresql() -> Iterator[str]:
    """A PostgreSQL server of our own; yields its URL for Optuna."""
    programs = postgres_programs()
    if programs is None:
        lacking("PostgreSQL: apt-get install postgresql, or its programs on PATH")
    # Not in pytest's folder: every pytest of this user that begins meanwhile closes that to others.
    with tempfile.TemporaryDirectory() as folder, reserved_ports(1) as (port,):
        yield from _postgresql(programs, Path(folder) / "data", port)


def _postgresql(programs: Path, data: Path, port: int) -> Iterator[str]:
    data.mkdir()
    user: dict[str, Any] = {}
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        user = {"user": "nobody", "group": "nogroup", "extra_groups": [], "cwd": "/"}
        shutil.chown(data, "nobody", "nogroup")
        data.parent.chmod(0o755)
    initdb = [str(programs / "initdb"), "-D", str(data), "-U", "tuner", "--auth=trust", "--no-sync"]
    made = subprocess.run(initdb, capture_output=True, text=True, **user)
    assert made.returncode == 0, made.stderr
    server = [str(programs / "postgres"), "-D", str(data), "-p", str(port), "-h", "127.0.0.1", "-k", str(data)]
    with running(server, port, **user):
        yield f"postgresql+psycopg://tuner@127.0.0.1:{port}/postgres"


def postgres_programs() -> Path | None:
    """The folder of initdb and postgres, newest first; None where PostgreSQL is not installed."""
    on_path = shutil.which("initdb")
    packaged = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    found = [*packaged, *([Path(on_path).resolve().parent] if on_path else [])]
    return next((folder for folder in found if (folder / "postgres").exists()), None)
