"""What a host's CPUs did to a measured server in a point's window, from two readings at its edges.

A server that launches its kernels one by one from Python is as fast as the CPU that its threads get. Another virtual
machine, a neighbour or our own client may take it away for seconds, and neither the GPU's figures nor the requests say
so. What cannot be known is None.
"""

from __future__ import annotations

import msgspec

from harness.procfs import CpuTicks, Reading, Threads, ThreadTime, read
from harness.records import LevelRow

# A thread that launches each kernel when its turn has come is late by all that it waits, and its throughput falls by as
# much: beyond 2 % that passes for a difference between variants. With cores to spare, next to nothing is waited.
WAIT_LIMIT = 0.02  # of the window
STEAL_LIMIT = 0.02  # of all CPU time: a mean over CPUs, so a single one may have lost far more
SEEN = 0.5  # of the window, that two readings must lie apart to speak for it


class CpuFigures(msgspec.Struct, frozen=True):
    """Between two readings; what is named as a column of levels.csv is what docs/metrics.md says.

    Attributes:
        processes_changed: one of the server's processes ended, or one began.
    """

    host_cpu_steal: float | None = None
    host_cpu_busy: float | None = None
    server_cpu_wait: float | None = None
    server_cpu_used: float | None = None
    processes_changed: bool = False

    @property
    def contended(self) -> bool:
        """Whether CPU time was taken from the server, as far as these figures tell."""
        return (self.host_cpu_steal or 0.0) > STEAL_LIMIT or (self.server_cpu_wait or 0.0) > WAIT_LIMIT


class WindowCpu:
    """Takes the readings as a point's clock passes the edges of its window.

    Args:
        pid: the server's main process on this machine; None where it is not known, and then there are no figures.
        start_s, end_s: the window on the point's clock.
    """

    def __init__(self, pid: int | None, start_s: float, end_s: float) -> None:
        self._pid = pid
        self._edges_s = (start_s, end_s)
        self._readings: list[Reading] = []

    def at(self, point_s: float) -> None:
        """To be called several times a second with the time on the point's clock."""
        taken = len(self._readings)
        if self._pid is not None and taken < 2 and point_s >= self._edges_s[taken]:
            self._readings.append(read(self._pid))

    def figures(self) -> CpuFigures:
        """Of the window, or of what there was of it until now; none where that is too little."""
        if self._pid is None or not self._readings:
            return CpuFigures()
        if len(self._readings) < 2:  # stopped early, or ended between two calls
            self._readings.append(read(self._pid))
        before, after = self._readings
        start_s, end_s = self._edges_s
        return cpu_figures(before, after) if after.at_s - before.at_s >= SEEN * (end_s - start_s) else CpuFigures()


def cpu_figures(before: Reading, after: Reading) -> CpuFigures:
    """What happened between two readings of one server.

    A process or thread that began in between counts from its start, one that ended in between not at all. Of each
    process, the thread that ran most tells how long it waited, and the process that waited most tells for the server:
    the slowest of several ranks holds up the others.
    """
    span_ns = (after.at_s - before.at_s) * 1e9
    host = _host_shares(before.host, after.host)
    eldest = next(iter(before.processes), None)
    if span_ns <= 0 or eldest not in after.processes:
        return CpuFigures(*host)
    spent = [_spent(before.processes.get(process, {}), threads) for process, threads in after.processes.items()]
    waited_ns = max(max(threads, key=lambda thread: thread.ran_ns).waited_ns for threads in spent)
    used_ns = sum(thread.ran_ns for threads in spent for thread in threads)
    changed = before.processes.keys() != after.processes.keys()
    return CpuFigures(*host, min(1.0, waited_ns / span_ns), used_ns / span_ns, changed)


def with_cpu(row: LevelRow, figures: CpuFigures) -> LevelRow:
    """The row with what the host's CPUs did in its window."""
    columns = msgspec.structs.asdict(figures)
    warnings = {"cpu_contended": figures.contended, "server_processes_changed": columns.pop("processes_changed")}
    flags = [*row.flags.split(), *(flag for flag, warned in warnings.items() if warned)]
    return msgspec.structs.replace(row, flags=" ".join(flags), **columns)


def _host_shares(before: CpuTicks | None, after: CpuTicks | None) -> tuple[float | None, float | None]:
    """(stolen, not idle) of all CPU time. Some of the kernel's counters may fall (proc(5)); shares stay from 0 to 1."""
    if before is None or after is None or after.total <= before.total:
        return None, None
    total = after.total - before.total
    steal, busy = (after.stolen - before.stolen) / total, 1 - (after.idle - before.idle) / total
    return min(1.0, max(0.0, steal)), min(1.0, max(0.0, busy))


def _spent(before: Threads, after: Threads) -> list[ThreadTime]:
    spent = []
    for number, now in after.items():
        then = before.get(number, ThreadTime())
        if now.ran_ns < then.ran_ns or now.waited_ns < then.waited_ns:  # the number went to a new thread
            then = ThreadTime()
        spent.append(ThreadTime(now.ran_ns - then.ran_ns, now.waited_ns - then.waited_ns))
    return spent
