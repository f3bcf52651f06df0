"""The real command when its own machine fails it: killed, interrupted, no room, no permission, another clock."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from harness.runfolder import RunFolder
from harness.verify import verify_run
from tests.harness.commands import QUICK, SIM, Command, rows_of, run
from tests.harness.leftovers import nothing_left

SWEEP = ("--sim", SIM, "--variants", "baseline", *QUICK)
CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
static const volatile long *moved;  /* seconds, in a file that every process maps */
__attribute__((constructor)) static void start(void) {
    int file = open(getenv("CLOCK_MOVED_S"), O_RDONLY);
    moved = mmap(0, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
}
int clock_gettime(clockid_t which, struct timespec *at) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(which, at);
    if (moved && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) at->tv_sec += *moved;
    return result;
}
int gettimeofday(struct timeval *at, void *zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
"""


@pytest.fixture(autouse=True)
def _nothing_left(tmp_path: Path) -> Iterator[None]:
    with nothing_left(tmp_path):
        yield


def assert_whole(out: Path, points: int) -> None:
    """Every point is there once, every line is whole and there once, and the figures are those of the requests."""
    lines = (out / "requests.jsonl").read_bytes().split(b"\n")
    assert lines.pop() == b""
    assert all(isinstance(json.loads(line), dict) for line in lines)
    records = list(RunFolder(out).requests())
    assert max(Counter((r.key, r.attempt, r.index) for r in records).values()) == 1
    rows = (out / "levels.csv").read_text().splitlines()[1:]
    assert len(rows) == len({row.key for row in rows_of(out)}) == points
    assert {row.key for row in rows_of(out) if row.verdict != "no_requests"} <= {record.key for record in records}
    assert verify_run(out).problems == ()


@pytest.mark.parametrize(
    ("kills", "levels", "repeats"), [(8, "1,2,3", 2), pytest.param(50, "1,2,3,4,5,6", 5, marks=pytest.mark.soak)]
)
@pytest.mark.timeout(1800)
def test_killed_again_and_again(tmp_path: Path, kills: int, levels: str, repeats: int) -> None:
    """SIGKILL at random moments, each followed by --resume: in the end every point is there once, whole."""
    out, moments = tmp_path / "run", random.Random(kills)
    begin = ("sweep", "--out", str(out), *SWEEP, "--concurrency", levels, "--repeats", str(repeats))
    resume = ("sweep", "--out", str(out), "--resume")
    killed = 0
    for _ in range(kills):
        with Command(tmp_path, *(resume if (out / "manifest.json").exists() else begin)) as command:
            with suppress(subprocess.TimeoutExpired):
                command.process.wait(moments.uniform(0.5, 6.0))
            killed += command.process.poll() is None
    assert killed > kills / 4  # else it was over too soon to show anything
    run(tmp_path, *(resume if (out / "manifest.json").exists() else begin))
    assert_whole(out, len(levels.split(",")) * repeats)


def test_a_killed_client_process_on_the_real_command(tmp_path: Path) -> None:
    """Its point is invalid by name, the next one is measured, the command says what is missing."""
    out = tmp_path / "run"
    words = ("sweep", "--out", str(out), *SWEEP, "--concurrency", "1,2", "--repeats", "1", "--duration", "6")
    with Command(tmp_path, *words) as command:
        command.until(lambda: (out / "requests.jsonl").exists() and (out / "requests.jsonl").stat().st_size)
        for child in psutil.Process(command.process.pid).children():
            with suppress(psutil.Error):
                if "harness.load_worker" in child.cmdline():
                    child.kill()
        assert command.end() in (3, 4)
    (other,) = (row for row in rows_of(out) if row.verdict != "client_crashed")
    assert len(rows_of(out)) == 2
    assert other.requests > 0
    assert verify_run(out).problems == ()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_keeps_what_was_measured(tmp_path: Path, number: signal.Signals) -> None:
    """The point in progress is closed and marked, the answer says so, and --resume ends the run."""
    out = tmp_path / "run"
    words = ("sweep", "--out", str(out), *SWEEP, "--concurrency", "1", "--repeats", "1", "--duration", "6")
    with Command(tmp_path, *words) as command:
        command.until(lambda: (out / "requests.jsonl").exists() and (out / "requests.jsonl").stat().st_size)
        command.process.send_signal(number)
        assert (command.end(), command.answer["interrupted"]) == (130, True)
    (row,) = rows_of(out)
    assert (row.verdict, row.usable) == ("interrupted", False)
    assert run(tmp_path, "sweep", "--out", str(out), "--resume").process.returncode in (0, 3, 4)
    assert_whole(out, 1)


@pytest.mark.parametrize("seed", range(2))
def test_two_signals_at_any_moment(tmp_path: Path, seed: int) -> None:
    """Wherever the second one hits, the exit code is 130, nothing is left, and the folder reads."""
    out, moments = tmp_path / "run", random.Random(seed)
    numbers = moments.choices([signal.SIGINT, signal.SIGTERM], k=2)
    with Command(tmp_path, "sweep", "--out", str(out), *SWEEP, "--concurrency", "1", "--duration", "60") as command:
        command.says("run folder")  # from here on signals are handled
        command.until(lambda: (out / "manifest.json").exists())
        for number in numbers:
            with suppress(subprocess.TimeoutExpired):
                command.process.wait(moments.uniform(0.0, 4.0))
            command.process.send_signal(number)
        assert command.end() == 130
    assert len(rows_of(out)) <= 1


def test_two_commands_on_one_folder(tmp_path: Path) -> None:
    """The second is refused in one line, whatever it wants; the first goes on."""
    out = tmp_path / "run"
    words = ("sweep", "--out", str(out), *SWEEP, "--concurrency", "1", "--repeats", "1", "--duration", "600")
    with Command(tmp_path, *words) as command:
        command.until(lambda: (out / "manifest.json").exists())
        for more in (["--resume"], SWEEP):
            second = run(tmp_path, "sweep", "--out", str(out), *more)
            assert second.process.returncode == 2
            assert "another process is writing" in second.told
        command.until(lambda: (out / "requests.jsonl").stat().st_size)
        command.process.send_signal(signal.SIGINT)
        assert command.end() == 130
    assert_whole(out, 1)


def test_a_full_disk(tmp_path: Path) -> None:
    """Files grow no more in the middle of a sweep: one line, exit code 3 or 4; with room --resume ends the run."""
    out = tmp_path / "run"
    words = ("sweep", "--out", str(out), *SWEEP, "--concurrency", "1,2,3", "--repeats", "1", "--duration", "2")
    with Command(tmp_path, *words) as command:
        command.until(lambda: rows_of(out))
        size = (out / "requests.jsonl").stat().st_size
        resource.prlimit(command.process.pid, resource.RLIMIT_FSIZE, (size + 100, resource.RLIM_INFINITY))
        assert command.end() in (3, 4)
    assert "cannot write" in command.answer["failed"]
    assert command.told.count("cannot write") == 1
    assert len(rows_of(out)) in (1, 2)
    assert run(tmp_path, "sweep", "--out", str(out), "--resume").process.returncode in (0, 3, 4)
    assert_whole(out, 3)


def test_a_full_file_system(tmp_path: Path) -> None:
    """The same on a file system of 120 kilobytes, where that may be mounted: whatever could be written is whole."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=120k", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("file systems cannot be mounted here; test_a_full_disk is the same by a limit on files")
    try:
        out = disk / "run"
        words = ("sweep", "--out", str(out), *SWEEP, "--concurrency", "1,64", "--repeats", "1", "--duration", "4")
        done = run(tmp_path, *words)
        assert done.process.returncode in (3, 4)
        assert "No space left on device" in done.answer["failed"]
        assert list(RunFolder(out).requests())
        assert all(row.concurrency == 1 for row in rows_of(out))
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_run_that_is_carried_elsewhere(tmp_path: Path) -> None:
    """A copy is verified and resumed where it lies, without the folder that it was made in."""
    out, copy = tmp_path / "run", tmp_path / "elsewhere" / "copy"
    words = ("sweep", "--out", str(out), *SWEEP, "--concurrency", "1,2", "--repeats", "1")
    with Command(tmp_path, *words) as command:
        command.until(lambda: rows_of(out))
        command.process.send_signal(signal.SIGINT)
        command.end()
    shutil.copytree(out, copy)
    shutil.rmtree(out)
    assert run(tmp_path, "sweep", "--out", str(copy), "--resume").process.returncode in (0, 3, 4)
    assert_whole(copy, 2)
    assert run(tmp_path, "verify", str(copy)).process.returncode == 0
    assert not out.exists()


# Root may write anywhere, so it becomes somebody else, after the imports: where they lie is none of nobody's business.
AS_NOBODY = """
import os, scipy.stats, specpivot
import harness.sim.server, tuner.report, tuner.trial_plots  # and all that is loaded where it is used
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
specpivot.main()
"""


def test_a_folder_that_may_not_be_written() -> None:
    """One line and exit code 2, and nothing has changed; reading it goes on as ever."""
    # Not in pytest's folder: every pytest of this user that begins meanwhile closes that to others.
    with tempfile.TemporaryDirectory() as name, nothing_left(Path(name)):
        folder, locked = Path(name), Path(name) / "locked"
        run(folder, "sweep", "--out", str(locked / "run"), *SWEEP, "--concurrency", "1", "--repeats", "1")
        before = {file: file.read_bytes() for file in locked.rglob("*") if file.is_file()}
        folder.chmod(0o755)
        for path in (locked, *locked.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        for out, words in ((locked / "run", ["--resume"]), (locked / "other", SWEEP)):
            refused = run(folder, "sweep", "--out", str(out), *words, code=AS_NOBODY)
            assert refused.process.returncode == 2
            assert f"cannot write the run folder {out}: Permission denied" in refused.told
        assert {file: file.read_bytes() for file in locked.rglob("*") if file.is_file()} == before
        assert run(folder, "verify", str(locked / "run"), code=AS_NOBODY).process.returncode == 0
        for path in (locked, *locked.rglob("*")):
            path.chmod(0o755)


@pytest.mark.parametrize("moved_s", [-7200])
def test_a_clock_that_is_set(tmp_path: Path, moved_s: int) -> None:
    """Two hours back or on, in every process, in the middle of a point: no figure notices, and the run goes on."""
    (tmp_path / "clock.c").write_text(CLOCK)
    library, moved, out = tmp_path / "clock.so", tmp_path / "moved", tmp_path / "run"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "clock.c", "-ldl"], check=True)
    moved.write_bytes((0).to_bytes(8, "little", signed=True))
    env = {"LD_PRELOAD": str(library), "CLOCK_MOVED_S": str(moved)}
    words = ("sweep", "--out", str(out), *SWEEP, "--concurrency", "1,2", "--repeats", "1", "--duration", "2")
    with Command(tmp_path, *words, env=env) as command:
        command.until(lambda: (out / "requests.jsonl").exists() and (out / "requests.jsonl").stat().st_size)
        with moved.open("r+b") as clock:
            clock.write(moved_s.to_bytes(8, "little", signed=True))
        assert command.end() in (0, 3, 4)
    assert [row.duration_s for row in rows_of(out)] == [2.0, 2.0]
    assert all(0 <= record.start_s <= record.end_s < 60 for record in RunFolder(out).requests())
    assert not [row for row in rows_of(out) if row.errors or row.status == "partial"]
    assert_whole(out, 2)
    told = subprocess.run(["date", "+%s"], env={**os.environ, **env}, capture_output=True, text=True, check=True)
    assert abs(int(told.stdout) - time.time() - moved_s) < 60  # the negative control: the clock was set


def test_too_few_files(tmp_path: Path) -> None:
    """More streams than this process may open are refused before anything is made."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))

    words = ("sweep", "--out", str(tmp_path / "run"), *SWEEP, "--concurrency", "1,300", "--client-workers", "1")
    done = run(tmp_path, *words, preexec_fn=limit)
    assert done.process.returncode == 2
    assert "raise it with `ulimit -n`" in done.told
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_what_is_no_file_is_not_waited_for(tmp_path: Path, kind: str) -> None:
    """A FIFO would block a reader for ever, and a device feed it without end: each is refused in one line."""
    out = tmp_path / "run"
    run(tmp_path, "sweep", "--out", str(out), *SWEEP, "--concurrency", "1", "--repeats", "1")
    readers = {
        "manifest.json": ("verify", str(out)),
        "levels.csv": ("verify", str(out)),
        "requests.jsonl": ("verify", str(out)),
        ".lock": ("sweep", "--out", str(out), "--resume"),
        "recommendation.json": ("export", str(out)),
    }
    for name, command in readers.items():
        kept = (out / name).read_bytes() if (out / name).exists() else b""
        (out / name).unlink(missing_ok=True)
        os.mkfifo(out / name) if kind == "fifo" else (out / name).symlink_to("/dev/zero")
        done = run(tmp_path, *command)
        assert done.process.returncode == 2, done.output
        assert f"{out / name} is no regular file" in done.told
        (out / name).unlink()
        (out / name).write_bytes(kept)


@pytest.mark.parametrize("seen", ["whole", "in exec", "without its ports"])
def test_the_assertion_for_leftovers_can_fail(tmp_path: Path, seen: str) -> None:
    """A process that stays is found, also where its ports cannot be read, and in the moment of its exec, when the
    kernel shows neither arguments nor environment of it: that moment comes after Popen has returned."""

    def refused(process: psutil.Process, kind: str) -> None:
        raise psutil.AccessDenied(process.pid)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.harness.leftovers.PATIENCE_S", 0.2)
        if seen == "in exec":
            patch.setattr(psutil.Process, "environ", lambda self: {})
            patch.setattr(psutil.Process, "cmdline", lambda self: [])
        if seen == "without its ports":
            patch.setattr(psutil.Process, "net_connections", refused)
        left: list[subprocess.Popen[bytes]] = []
        try:
            with pytest.raises(AssertionError, match=r"sleep|between fork and exec"), nothing_left(tmp_path):
                left.append(subprocess.Popen(["sleep", "600"]))
        finally:
            for process in left:
                process.kill()
                process.wait()
