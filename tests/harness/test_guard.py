"""No server outlives the SpecPivot process that started it, however that one ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.guard import group_alive, stop_groups

ROOT = Path(__file__).parent.parent.parent
# Starts a server that has a child of its own, and tells its group; with a second argument it is killed before the
# guard hears of the server.
STARTER = """
import os, signal, sys, threading
from pathlib import Path
from harness import guard, servers
from harness.variants import ServerPlan
wait = "import time; time.sleep(300)"
code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', '{wait}']); print('up', flush=True); {wait}"
watch = guard.Guard.watch
def watched(self, group):
    print(group, flush=True)
    if sys.argv[2:]:
        os.kill(os.getpid(), signal.SIGKILL)
    watch(self, group)
guard.Guard.watch = watched
plan = ServerPlan("baseline", ("baseline",), (sys.executable, "-c", code))
with servers.running([plan], Path(sys.argv[1]), 300.0, threading.Event(), print):
    pass
"""


def started(*arguments: str) -> tuple[subprocess.Popen[str], int]:
    """The process that starts a server, and the server's group."""
    command = [sys.executable, "-c", STARTER, *arguments]
    # Where the tests run under nohup, children would ignore SIGHUP.
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env={**os.environ})
    signal.signal(signal.SIGHUP, before)
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def assert_ends(group: int) -> None:
    deadline = time.monotonic() + 200
    while group_alive(group):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_a_killed_parent_leaves_no_server(tmp_path: Path, number: signal.Signals) -> None:
    """SIGKILL leaves no chance to clean up: the guard does, down to the server's own children."""
    process, group = started(str(tmp_path))
    with process:
        while "up" not in (tmp_path / "baseline.log").read_text():
            time.sleep(0.05)
        assert group_alive(group)
        process.send_signal(number)
    assert_ends(group)


def test_a_parent_killed_before_the_guard_knows_has_started_nothing(tmp_path: Path) -> None:
    """A server begins when the guard has heard of it, not before."""
    process, group = started(str(tmp_path), "early")
    with process:
        assert process.wait(timeout=200) == -signal.SIGKILL
    assert_ends(group)
    assert (tmp_path / "baseline.log").read_text() == ""


def test_what_does_not_heed_sigterm_is_killed() -> None:
    """The politeness has an end."""
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(300)"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        stop_groups([process.pid], grace_s=0.3)
        assert process.wait(timeout=200) == -signal.SIGKILL


def test_a_dismissed_guard_stops_nothing() -> None:
    """After a proper end a number may belong to somebody else."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True) as bystander:
        guard = [sys.executable, "-m", "harness.guard"]
        subprocess.run(guard, input=f"{bystander.pid}\ndone\n", text=True, cwd=ROOT, timeout=200, check=True)
        assert bystander.poll() is None
        bystander.kill()
