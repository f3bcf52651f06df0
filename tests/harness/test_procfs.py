"""Readings of /proc: what its files say, where they say nothing, and a real process that uses a CPU."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from harness.procfs import CpuTicks, Reading, ThreadTime, parse_schedstat, parse_stat, read

# The kernel of a virtual machine, shortened; the guest's 50 and 7 ticks are among the 1000 of user and 200 of nice.
STAT = "cpu  1000 200 300 8000 400 10 20 70 50 7\ncpu0 1 2 3 4 5 6 7 8 9 10\nintr 5 0\nctxt 9\n"


def test_the_hosts_time_is_added_up() -> None:
    """Waiting for a disk is idle, a guest's time counts once, and only the line of all CPUs counts."""
    assert parse_stat(STAT) == CpuTicks(idle=8400, stolen=70, total=10_000)
    assert parse_stat("cpu 1 2 3 4 5 6 7 8") == CpuTicks(idle=9, stolen=8, total=36)  # a kernel before 2.6.24


@pytest.mark.parametrize(
    "text",
    ["", "\n", "cpu0 1 2 3 4 5 6 7 8\n", "cpu 1 2 3 4 5 6 7\n", "cpu a b c d e f g h\n", "cpu 0 0 0 0 0 0 0 0 0 0\n"],
)
def test_a_host_that_counts_nothing_is_not_known(text: str) -> None:
    """Fewer fields, other words, or the zeros that gVisor shows."""
    assert parse_stat(text) is None


def test_a_threads_time_is_read() -> None:
    """In nanoseconds; a thread that waits for its first time slice has run for none."""
    assert parse_schedstat("102563 52168 2\n") == ThreadTime(102563, 52168)
    assert parse_schedstat("0 77 0\n") == ThreadTime(0, 77)


@pytest.mark.parametrize("text", ["", "0 0 0\n", "1 2\n", "1 2 3 4\n", "1 x 3\n", "-1 2 3\n"])
def test_a_thread_without_an_account_is_not_known(text: str) -> None:
    """A kernel without scheduler statistics shows three zeros, which is not a thread that never ran."""
    assert parse_schedstat(text) is None


def test_nothing_is_known_where_nothing_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that we may not open, or that are not there, and a process that is gone: no failure."""
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    assert read(gone.pid).processes == {}

    def refuse(file: Path) -> str:
        raise PermissionError(str(file))

    monkeypatch.setattr(Path, "read_text", refuse)
    got = read(os.getpid())
    assert (got.host, got.processes) == (None, {})
    monkeypatch.setattr(psutil, "Process", lambda pid: _raise(psutil.AccessDenied(pid)))
    assert read(os.getpid()).processes == {}


def _raise(error: Exception) -> None:
    raise error


# It uses a CPU, in one of two threads, until its standard input ends.
_BUSY = """
import sys, threading
threading.Thread(target=sys.stdin.read).start()
print(flush=True)
while threading.active_count() > 1:
    pass
"""
_PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"


@contextmanager
def family() -> Iterator[int]:
    """A process with a busy child, by its id; both end with the block."""
    command = [sys.executable, "-c", _PARENT, _BUSY]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.communicate()


def ran_ns(reading: Reading) -> int:
    return sum(spent.ran_ns for threads in reading.processes.values() for spent in threads.values())


@pytest.mark.skipif(not read(os.getpid()).processes, reason="this kernel keeps no account of threads")
def test_a_process_is_read_with_its_descendants() -> None:
    """The eldest first; what the busy child of a child uses is seen to grow, and others' processes are not there."""
    with family() as pid:
        children = {child.pid for child in psutil.Process(pid).children()}
        before = read(pid)
        assert [each for each, _ in before.processes] == [pid, *children]
        assert before.host is not None
        while ran_ns(after := read(pid)) < ran_ns(before) + 50_000_000:
            time.sleep(0.01)
        assert after.at_s > before.at_s
        assert [len(threads) for threads in after.processes.values()] == [1, 2]
    assert read(pid).processes == {}
