"""Runs one job's command and writes down how it ended: `python -m tuner.service.runner BASE COMMAND...`.

A job outlives the service that started it, so nobody may be left to wait for it. BASE.exit says how it ended, BASE.pid
(which the service writes) who runs it: the command begins when GO comes on standard input, and never where the service
was killed before, as the next service would not know of it. The runner leads the job's process group: a Ctrl-C for the
group reaches the command and leaves the runner waiting for its exit code. Standard library only, also beneath what it
imports of ours: there is one beside each job.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tuner.service.store import write

GO = b"g"
INTERRUPTED = 130


def mark_of(pid: int) -> str | None:
    """What tells a process from a later one of the same number: the boot and its start, in clock ticks since.

    None where there is no such process, or only a zombie of it.
    """
    try:
        # pid (name) state ppid ...: the name may hold anything, so count from its last bracket
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
    return None if fields[0] in "ZX" else f"{boot}:{fields[19]}"


def pid_file(base: Path) -> Path:
    """Who runs a job: number and mark."""
    return base.with_name(base.name + ".pid")


def exit_file(base: Path) -> Path:
    """How it ended: its exit code, negative for a signal."""
    return base.with_name(base.name + ".exit")


def main(arguments: list[str]) -> int:
    base, command = Path(arguments[0]), arguments[1:]
    stopped: list[int] = []  # by a handler, not SIG_IGN: the command must not inherit deafness
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: stopped.append(number))
    if sys.stdin.buffer.read(1) != GO:
        return 0
    code = INTERRUPTED if stopped else subprocess.call(command, stdin=subprocess.DEVNULL)
    write(exit_file(base), f"{code}\n".encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
