"""CPU figures of a window: by readings made up, by real processes, and in the row of a real point."""

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from harness import hostcpu
from harness.bench import Bench
from harness.config import make_config
from harness.hostcpu import STEAL_LIMIT, WAIT_LIMIT, CpuFigures, WindowCpu, cpu_figures, with_cpu
from harness.levelsfile import COLUMNS, csv_of, row_of
from harness.manifest import new_manifest, workload_of
from harness.procfs import CpuTicks, Processes, Reading, ThreadTime, read
from harness.records import LevelRow, PointKey, Variant
from harness.runfolder import RunFolder, RunWriter
from harness.servers import Server, running
from harness.variants import ServerPlan

S = 1_000_000_000  # nanoseconds
MAIN, RANK = (10, 1.0), (11, 2.0)
ROW = LevelRow("baseline", 1, 1, "done", "ok", flags="few_requests")


kept = pytest.mark.skipif(not read(os.getpid()).processes, reason="this kernel keeps no account of threads")


def reading(at_s: float, processes: Processes | None = None, host: CpuTicks | None = None) -> Reading:
    return Reading(at_s, host, processes or {})


def test_the_hosts_shares_are_of_all_its_cpu_time() -> None:
    """Stolen time is not idle; the time since the host's start does not count."""
    before, after = CpuTicks(5000, 100, 9000), CpuTicks(5600, 150, 10_000)
    got = cpu_figures(reading(0.0, host=before), reading(10.0, host=after))
    assert (got.host_cpu_steal, got.host_cpu_busy) == pytest.approx((0.05, 0.4))
    assert (got.server_cpu_wait, got.server_cpu_used) == (None, None)


def test_counters_that_fall_or_stand_give_no_impossible_share() -> None:
    """Shares stay from 0 to 1, and without any time in between there are none."""
    fallen = cpu_figures(reading(0.0, host=CpuTicks(100, 50, 200)), reading(1.0, host=CpuTicks(90, 40, 300)))
    assert (fallen.host_cpu_steal, fallen.host_cpu_busy) == (0.0, 1.0)
    jumped = cpu_figures(reading(0.0, host=CpuTicks(100, 50, 200)), reading(1.0, host=CpuTicks(400, 350, 300)))
    assert (jumped.host_cpu_steal, jumped.host_cpu_busy) == (1.0, 0.0)
    same = CpuTicks(1, 1, 3)
    assert cpu_figures(reading(0.0, host=same), reading(1.0, host=same)) == CpuFigures()
    assert cpu_figures(reading(0.0, host=same), reading(1.0)) == CpuFigures()


def test_the_busiest_thread_of_the_process_that_waited_most_counts() -> None:
    """An idle thread's wait is nobody's loss, a rank that lags is everyone's; what all of them used is added up."""
    before = {
        MAIN: {10: ThreadTime(5 * S, 9 * S), 20: ThreadTime(0, 0)},
        RANK: {11: ThreadTime(100 * S, 40 * S)},
    }
    after = {
        MAIN: {10: ThreadTime(7 * S, 9 * S), 20: ThreadTime(1 * S, 6 * S)},
        RANK: {11: ThreadTime(107 * S, 43 * S)},
    }
    got = cpu_figures(reading(50.0, before), reading(60.0, after))
    assert (got.server_cpu_wait, got.server_cpu_used) == pytest.approx((0.3, 1.0))


def test_who_comes_and_goes_breaks_nothing() -> None:
    """What began in between counts from its start, under an old number too; what ended is gone with its time."""
    before = {MAIN: {10: ThreadTime(2 * S, 0), 20: ThreadTime(8 * S, S)}, RANK: {11: ThreadTime(3 * S, 0)}}
    after = {MAIN: {10: ThreadTime(3 * S, 0), 20: ThreadTime(2 * S, S)}, (12, 3.0): {12: ThreadTime(4 * S, 2 * S)}}
    got = cpu_figures(reading(0.0, before), reading(10.0, after))
    assert (got.server_cpu_wait, got.server_cpu_used) == pytest.approx((0.2, 0.7))
    assert got.processes_changed
    assert not cpu_figures(
        reading(0.0, before), reading(10.0, {**before, MAIN: {30: ThreadTime(S, 0)}})
    ).processes_changed
    another = {(10, 9.0): {10: ThreadTime(5 * S, 5 * S)}}  # another process has the server's number
    for lost in ({}, another):
        assert cpu_figures(reading(0.0, before), reading(10.0, lost)) == CpuFigures()
    assert cpu_figures(reading(0.0, {}), reading(10.0, after)) == CpuFigures()
    assert cpu_figures(reading(0.0, before), reading(0.0, after)) == CpuFigures()


@pytest.mark.parametrize(
    ("figures", "flags"),
    [
        (CpuFigures(), "few_requests"),
        (CpuFigures(STEAL_LIMIT, 1.0, WAIT_LIMIT, 64.0), "few_requests"),
        (CpuFigures(STEAL_LIMIT + 0.001, 0.5, 0.0, 1.0), "few_requests cpu_contended"),
        (CpuFigures(None, None, WAIT_LIMIT + 0.001, 1.0), "few_requests cpu_contended"),
        (CpuFigures(0.0, 0.5, 0.0, 1.0, processes_changed=True), "few_requests server_processes_changed"),
    ],
)
def test_a_row_says_when_its_server_was_disturbed(figures: CpuFigures, flags: str) -> None:
    """Beyond either limit, or by a process that died; a busy host alone is none, and a remark is no verdict."""
    row = with_cpu(ROW, figures)
    assert (row.flags, row.usable, row.server_cpu_used) == (flags, True, figures.server_cpu_used)
    assert (row.host_cpu_steal, row.server_cpu_wait) == (figures.host_cpu_steal, figures.server_cpu_wait)


def test_a_row_of_before_is_read_as_it_was_written() -> None:
    """The columns stand last: an older run's file lacks them and nothing else, and a newer one's comes back whole."""
    added = ("host_cpu_steal", "host_cpu_busy", "server_cpu_wait", "server_cpu_used")
    assert COLUMNS[-4:] == added
    row = with_cpu(ROW, CpuFigures(0.25, 0.5, 0.125, 1.5))
    heading, line = (text.split(",") for text in csv_of([row]).decode().splitlines())
    assert row_of(Path("levels.csv"), 2, dict(zip(heading, line, strict=True))) == row
    older = row_of(Path("levels.csv"), 2, dict(zip(heading[:-4], line[:-4], strict=True)))
    assert older == with_cpu(row, CpuFigures())


class Times:
    """A stand-in for /proc: the time is set by hand, and the server is busy all of it."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.read_at: list[float] = []

    def read(self, pid: int) -> Reading:
        self.read_at.append(self.now_s)
        return reading(self.now_s, {(pid, 1.0): {pid: ThreadTime(round(self.now_s * S), 0)}})

    def passes(self, window: WindowCpu, point_s: float) -> None:
        self.now_s = point_s
        window.at(point_s)


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Times:
    """What windows read in place of /proc."""
    made = Times()
    monkeypatch.setattr(hostcpu, "read", made.read)
    return made


BUSY_ALL_THE_TIME = CpuFigures(server_cpu_wait=0.0, server_cpu_used=1.0)


def test_a_window_is_read_at_its_edges_alone(times: Times) -> None:
    """Not in the warm-up, not in between, not while the last requests end."""
    window = WindowCpu(10, 2.0, 6.0)
    for quarters in range(-1, 40):
        times.passes(window, quarters / 4)
    assert window.figures() == BUSY_ALL_THE_TIME
    assert times.read_at == [2.0, 6.0]


@pytest.mark.parametrize(("reached_s", "figures"), [(4.5, BUSY_ALL_THE_TIME), (3.5, CpuFigures()), (2.0, CpuFigures())])
def test_a_window_that_was_cut_short_is_read_when_it_ends(times: Times, reached_s: float, figures: CpuFigures) -> None:
    """It counts if half of it was there."""
    window = WindowCpu(10, 2.0, 6.0)
    times.passes(window, 2.0)
    times.passes(window, reached_s)
    assert window.figures() == figures
    assert times.read_at == [2.0, reached_s]


def test_a_window_that_never_began_and_a_server_that_is_not_known_have_no_figures(times: Times) -> None:
    """For neither is anything read."""
    for pid, reached_s in ((10, 1.0), (None, 7.0)):
        window = WindowCpu(pid, 2.0, 6.0)
        times.passes(window, reached_s)
        assert window.figures() == CpuFigures()
    assert times.read_at == []


_BUSY = "import sys; print(flush=True)\nwhile True: pass"


@contextmanager
def busy() -> Iterator[psutil.Process]:
    """A process that wants a CPU all the time."""
    with subprocess.Popen([sys.executable, "-c", _BUSY], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield psutil.Process(process.pid)
        finally:
            process.kill()


def used_s(process: psutil.Process) -> float:
    return sum(process.cpu_times()[:2])


@kept
def test_a_busy_process_uses_cpu_and_a_stopped_one_does_not() -> None:
    """Both in the same window, and both for real."""
    with busy() as one, busy() as other:
        other.suspend()
        while other.status() != psutil.STATUS_STOPPED:
            time.sleep(0.01)
        before, still = read(one.pid), read(other.pid)
        began_s = used_s(one)
        while used_s(one) < began_s + 0.3:
            time.sleep(0.01)
        runs = cpu_figures(before, read(one.pid)).server_cpu_used
        stands = cpu_figures(still, read(other.pid)).server_cpu_used
    assert runs is not None
    assert stands is not None
    assert runs > 0.0
    assert stands < runs / 10


@kept
def test_who_shares_a_cpu_is_seen_to_wait() -> None:
    """Two processes on one CPU: while one runs the other waits for it, and each must for about half of the time."""
    with busy() as one, busy() as other:
        cpu = min(os.sched_getaffinity(0))
        for each in (one, other):
            os.sched_setaffinity(each.pid, {cpu})
        before = read(one.pid)
        began_s = used_s(one), used_s(other)
        while used_s(one) < began_s[0] + 0.3 or used_s(other) < began_s[1] + 0.3:
            time.sleep(0.01)
        figures = cpu_figures(before, read(one.pid))
    assert figures.server_cpu_wait is not None
    assert figures.server_cpu_wait > 0.1
    assert "cpu_contended" in with_cpu(ROW, figures).flags


def test_a_point_says_what_its_server_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the process that was started to the row on disk; where no process is known, nothing is said."""
    asked: list[int] = []

    def made_up(pid: int) -> Reading:
        asked.append(pid)
        at = len(asked)
        ran = {(pid, 1.0): {pid: ThreadTime(at * 4 * S, at * S)}}
        return Reading(at * 10.0, CpuTicks(idle=at * 75, stolen=at * 5, total=at * 100), ran)

    monkeypatch.setattr(hostcpu, "read", made_up)
    command = (sys.executable, "-m", "harness.mock", "--ttft", "0.01", "--gap", "0.002")
    config = make_config(
        {"attach": {"baseline": "http://127.0.0.1:1"}, "variants": ["baseline"], "concurrency": [1], "repeats": 2}
        | {"duration": 0.5, "warmup": 0.1, "output_tokens": 8, "client_workers": 1}
    )
    plan = ServerPlan("baseline", ("baseline",), command, {})
    with running([plan], tmp_path, 200.0, threading.Event(), lambda line: None) as found:
        server = found["baseline"]
        assert isinstance(server, Server)
        with RunWriter.create(tmp_path / "run", new_manifest(config, ())) as writer:
            servers: dict[Variant, Server] = {"baseline": server}
            bench = Bench(config, writer, servers, workload_of(config), Counter(), threading.Event())
            bench.measure(PointKey("baseline", 1, 1), None)
            servers["baseline"] = replace(server, pid=None)
            bench.measure(PointKey("baseline", 1, 2), None)
        assert asked == [server.record.pid] * 2
    seen, unseen = RunFolder(tmp_path / "run").levels()
    assert (seen.host_cpu_steal, seen.host_cpu_busy) == (0.05, 0.25)
    assert (seen.server_cpu_wait, seen.server_cpu_used) == (0.1, 0.4)
    assert "cpu_contended" in seen.flags.split()
    assert (unseen.host_cpu_steal, unseen.host_cpu_busy) == (None, None)
    assert (unseen.server_cpu_wait, unseen.server_cpu_used) == (None, None)
    assert "cpu_contended" not in unseen.flags
