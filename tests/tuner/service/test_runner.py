"""The process beside a job: it begins when it is told to, loses no Ctrl-C, and is told from others of its number."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.tuner.service.test_jobs import PATIENT_S
from tuner.service.desk import child_environment
from tuner.service.runner import GO, exit_file, mark_of


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


def test_a_mark_tells_processes_apart() -> None:
    """Ours is there and stays the same; one that has ended, reaped or not, has none."""
    assert mark_of(os.getpid()) == mark_of(os.getpid()) is not None
    child = subprocess.Popen([sys.executable, "-c", ""])
    deadline = time.monotonic() + PATIENT_S
    while mark_of(child.pid) is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert mark_of(child.pid) is None
    child.wait()
