"""What /proc says of a host's CPUs and of a server's threads at one moment.

What the kernel, a container or hidepid does not show is None, or is not there: reading it never fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil

from harness.transport import monotonic


class CpuTicks(msgspec.Struct, frozen=True):
    """The CPU time of a host since its start, all CPUs together, in clock ticks."""

    idle: int
    stolen: int
    total: int


class ThreadTime(msgspec.Struct, frozen=True):
    """A thread's time since its start: on a CPU, and runnable without one."""

    ran_ns: int = 0
    waited_ns: int = 0


Threads = Mapping[int, ThreadTime]  # by thread id
Processes = Mapping[tuple[int, float], Threads]  # by pid and start time


class Reading(msgspec.Struct, frozen=True):
    """A host, and a process with all its descendants, at one moment.

    Attributes:
        at_s: on the monotonic clock.
        processes: the eldest first; those that cannot be read are not there.
    """

    at_s: float
    host: CpuTicks | None
    processes: Processes


def read(pid: int) -> Reading:
    """The host and the process as they are now."""
    return Reading(monotonic(), host_ticks(), _processes(pid))


def host_ticks() -> CpuTicks | None:
    """The host's CPU time; None where /proc/stat cannot be read."""
    with suppress(OSError):
        return parse_stat(Path("/proc/stat").read_text())
    return None


def parse_stat(text: str) -> CpuTicks | None:
    """/proc/stat's first line; None where it is not as proc(5) says, or counts nothing, as in gVisor.

    Its fields are user, nice, system, idle, iowait, irq, softirq, steal, guest and guest_nice. The last two are left
    out, because they are in user and nice already (account_guest_time in kernel/sched/cputime.c).
    """
    name, *words = text.partition("\n")[0].split() or [""]
    if name != "cpu" or len(words) < 8 or not all(word.isdecimal() for word in words[:8]):
        return None
    ticks = [int(word) for word in words[:8]]
    return CpuTicks(idle=ticks[3] + ticks[4], stolen=ticks[7], total=sum(ticks)) if any(ticks) else None


def parse_schedstat(text: str) -> ThreadTime | None:
    """/proc/PID/task/TID/schedstat; None where the kernel keeps no account, which it shows as three zeros.

    Its fields are the nanoseconds spent on a CPU, those spent waiting on a run queue, and the number of time slices
    (Documentation/scheduler/sched-stats.rst of the kernel). A wait is added when it ends.
    """
    words = text.split()
    if len(words) != 3 or not all(word.isdecimal() for word in words) or not any(int(word) for word in words):
        return None
    return ThreadTime(int(words[0]), int(words[1]))


def _processes(pid: int) -> Processes:
    found: dict[tuple[int, float], Threads] = {}
    with suppress(psutil.Error, OSError):
        eldest = psutil.Process(pid)
        for process in (eldest, *eldest.children(recursive=True)):
            with suppress(psutil.Error, OSError):  # it ended meanwhile, or is not ours to see
                if threads := _threads(process.pid):
                    found[process.pid, process.create_time()] = threads
    return found


def _threads(pid: int) -> Threads:
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # it ended meanwhile
            if (time := parse_schedstat((task / "schedstat").read_text())) is not None:
                found[int(task.name)] = time
    return found
