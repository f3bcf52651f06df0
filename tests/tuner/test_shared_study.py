"""Two tuners, each with its own servers, on one study: over Optuna's gRPC proxy and over a real PostgreSQL.

Everything is real but the servers, which are simulated and slow on purpose, so that two cores keep up with them.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from harness.sim.preset import DEFAULT_PRESET, PRESETS
from tuner.study import storage_of

ROOT = Path(__file__).parent.parent.parent
START_S = 60
TUNE_S = 240
POSTGRES = ("initdb", "postgres")

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


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(command: list[str], port: int) -> Iterator[None]:
    """A helper process that listens on a port of its own, ended afterwards."""
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
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
            process.terminate()
            process.wait(timeout=30)


def tune_twice(storage: str, folder: Path) -> list[dict[str, Any]]:
    """Two tuner processes side by side on one storage; their last lines."""
    preset = slow_preset(folder)
    flags = ["--sim", str(preset), "--time-scale", "20", "--concurrency", "1,4,16", "--input-tokens", "16"]
    flags += ["--output-tokens", "16", "--duration", "16", "--warmup", "4", "--budget", "60s", "--trials", "6"]
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


def check(storage: str, outcomes: list[dict[str, Any]]) -> None:
    """One study holds the trials of both, each measured once, none left running."""
    study = optuna.load_study(study_name="shared", storage=storage_of(storage))
    done = [trial for trial in study.trials if trial.state == TrialState.COMPLETE]
    assert len({trial.user_attrs["tuner"] for trial in done}) == 2
    assert 6 <= len(done) <= 7  # both may be measuring the last one
    assert not [trial for trial in study.trials if trial.state == TrialState.RUNNING]
    for outcome in outcomes:
        found = outcome["recommendation"]
        assert found["shape"] == "crossover"
        assert 4 <= found["threshold"] <= 9
        assert found["evidence"]["trials"] >= 5


def test_two_tuners_over_grpc(tmp_path: Path) -> None:
    """Optuna's storage proxy serves a journal to both."""
    pytest.importorskip("grpc")
    port = free_port()
    serve = (
        "import sys, optuna; from optuna.storages.journal import JournalFileBackend as B;"
        "storage = optuna.storages.JournalStorage(B(sys.argv[1]));"
        "optuna.storages.run_grpc_proxy_server(storage, host='127.0.0.1', port=int(sys.argv[2]))"
    )
    with running([sys.executable, "-W", "ignore", "-c", serve, str(tmp_path / "journal"), str(port)], port):
        outcomes = tune_twice(f"grpc://127.0.0.1:{port}", tmp_path)
        check(f"grpc://127.0.0.1:{port}", outcomes)
    assert JournalFileBackend(str(tmp_path / "journal"))
