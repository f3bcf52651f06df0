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
# Starts a server that has a child of its own and, like a busy SGLang, takes its time over SIGTERM; tells its group.
STARTER = """
import signal, sys, threading, time
from pathlib import Path
from harness import guard, servers
from harness.variants import ServerPlan
wait = "import time; time.sleep(300)"
code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', '{wait}']); {wait}"
watch = guard.Guard.watch
def watched(self, group):
    watch(self, group)
    time.sleep(1.0)
    print(group, flush=True)
guard.Guard.watch = watched
plan = ServerPlan("baseline", ("baseline",), (sys.executable, "-c", code))
with servers.running([plan], Path(sys.argv[1]), 100.0, threading.Event(), print):
    pass
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_a_killed_parent_leaves_no_server(tmp_path: Path, number: signal.Signals) -> None:
    """SIGKILL leaves no chance to clean up: the guard does, down to the server's own children."""
    command = [sys.executable, "-c", STARTER, str(tmp_path)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env={**os.environ})
    assert process.stdout is not None
    group = int(process.stdout.readline())
    assert group_alive(group)
    process.send_signal(number)
    process.wait()
    process.stdout.close()
    deadline = time.monotonic() + 20
    while group_alive(group) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not group_alive(group)


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
        assert process.wait(timeout=10) == -signal.SIGKILL


def test_a_dismissed_guard_stops_nothing() -> None:
    """After a proper end a number may belong to somebody else."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True) as bystander:
        guard = [sys.executable, "-m", "harness.guard"]
        subprocess.run(guard, input=f"{bystander.pid}\ndone\n", text=True, cwd=ROOT, timeout=30, check=True)
        assert bystander.poll() is None
        bystander.kill()
