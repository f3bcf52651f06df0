"""Whatever a server or a client process does, a sweep ends with a verdict for every point and the exit code for it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from harness import bench
from harness.config import make_config
from harness.mock import running_mock
from harness.mock_streams import Timing
from harness.records import LevelRow, PointKey
from harness.runfolder import RunFolder
from harness.servers import reserved_ports
from harness.sweep import Keys, Outcome, run_sweep
from harness.verify import verify_run
from tests.harness.leftovers import nothing_left

ROOT = Path(__file__).parent.parent.parent
POINTS = {"variants": ["baseline"], "repeats": 1, "warmup": 0.2, "duration": 0.6, "output_tokens": 8}


class Saboteur:
    """A reporter that does something `at_s` into the first point, or once its row is there."""

    def __init__(self, in_point: Callable[[], object] | None = None, after: Callable[[], object] | None = None) -> None:
        self.rows: list[LevelRow] = []
        self._in_point, self._after = in_point, after
        self._told_s = 0.0  # left at first

    def say(self, line: str) -> None:
        """Not of interest."""

    def plan(self, points: int, seconds: float, at_most: bool = False) -> None:
        """Not of interest."""

    def point(self, key: PointKey, left_s: float) -> None:
        self._told_s = self._told_s or left_s
        if self._in_point is not None and self._told_s - left_s > 0.3:
            self._in_point()
            self._in_point = None

    def row(self, row: LevelRow) -> None:
        self.rows.append(row)
        if self._after is not None:
            self._after()
            self._after = None


@pytest.fixture(autouse=True)
def _nothing_left(tmp_path: Path) -> Iterator[None]:
    with nothing_left(tmp_path):
        yield


@pytest.fixture(autouse=True)
def _short_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "WARM_UP_S", 0.2)


@pytest.fixture(scope="module")
def mock() -> Iterator[str]:
    """A mock server that every test leaves alive."""
    with running_mock(Timing(ttft_s=0.01, gap_s=0.005)) as url:
        yield url


def swept(url: str, out: Path, reporter: Saboteur, levels: tuple[int, ...] = (1, 2), **values: object) -> Outcome:
    """A small sweep of the server at `url`."""
    config = make_config(POINTS | {"attach": {"baseline": url}, "concurrency": list(levels)} | values)
    return run_sweep(config, out, ["specpivot", "sweep"], reporter, Keys())


@pytest.mark.parametrize(
    ("mode", "error"),
    [
        ("http_503", "http_status"),
        ("abort", "aborted"),
        ("error_event", "error_event"),
        ("no_json", "malformed"),
        ("clean_close", "unterminated"),
    ],
)
def test_failing_requests_are_no_measurement(mock: str, tmp_path: Path, mode: str, error: str) -> None:
    """Every request is on record with its own error, no figure reaches a curve, and verify agrees with the verdict."""
    outcome = swept(f"{mock}/{mode}", tmp_path / "run", Saboteur(), (2,))
    (row,) = RunFolder(tmp_path / "run").levels()
    assert (row.verdict, row.usable, outcome.exit_code) == ("errors", False, 4)
    assert row.errors > 0
    assert {record.error for record in RunFolder(tmp_path / "run").requests()} <= {error, "cancelled"}
    assert verify_run(tmp_path / "run").problems == ()


def test_a_killed_client_process_spoils_its_point_only(mock: str, tmp_path: Path) -> None:
    """The point is invalid by name, the next one is measured, the records that had come are kept."""

    def kill_client() -> None:
        for child in psutil.Process().children():
            with suppress(psutil.NoSuchProcess):
                if "harness.load_worker" in child.cmdline():
                    child.kill()

    reporter = Saboteur(in_point=kill_client)
    outcome = swept(mock, tmp_path / "run", reporter, duration=3.0)  # so that it is killed inside, however late
    spoilt, other = reporter.rows
    assert spoilt.verdict == "client_crashed"
    assert other.verdict != "client_crashed"
    assert other.requests > 0
    assert outcome.exit_code in (3, 4)
    assert verify_run(tmp_path / "run").problems == ()


def test_a_server_that_dies_in_the_window(tmp_path: Path) -> None:
    """What came before is kept; the points after it are invalid at once instead of being waited for."""

    def kill_server() -> None:
        with suppress(OSError):
            urllib.request.urlopen(f"{url}/quit").close()

    with running_mock(Timing(ttft_s=0.01, gap_s=0.005)) as url:
        reporter = Saboteur(in_point=kill_server)
        outcome = swept(url, tmp_path / "run", reporter, duration=3.0)
    assert [row.verdict for row in reporter.rows] == ["server_died", "server_died"]
    assert list(RunFolder(tmp_path / "run").requests())
    assert outcome.exit_code == 4


@contextmanager
def simulated(port: int, seed: int, *more: str) -> Iterator[subprocess.Popen[bytes]]:
    """A simulated server that is up."""
    command = [sys.executable, "-m", "harness.sim.server", "--variant", "baseline", "--port", str(port)]
    with subprocess.Popen([*command, "--seed", str(seed), *more], cwd=ROOT) as process:
        deadline = time.monotonic() + 200
        try:
            while True:
                with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health"):
                    break
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.1)
            yield process
        finally:
            process.kill()


def test_a_server_that_restarts_with_other_arguments_is_noticed(tmp_path: Path) -> None:
    """Its points are not measured, and the manifest names the server that answers now."""
    with reserved_ports(1) as (port,), simulated(port, 1) as first:
        restarted = simulated(port, 2)

        def restart() -> None:
            first.kill()
            first.wait()
            restarted.__enter__()

        reporter = Saboteur(after=restart)
        try:
            swept(f"http://127.0.0.1:{port}", tmp_path / "run", reporter)
        finally:
            restarted.__exit__(None, None, None)
    manifest = RunFolder(tmp_path / "run").manifest
    assert [row.verdict == "unproven_worker" for row in reporter.rows] == [False, True]
    assert len(manifest.servers) == 2
    assert [line for line in manifest.warnings if "answers in place of" in line]


@pytest.mark.parametrize("pause_s", [0.0, 0.2])
def test_ctrl_c_twice_ends_at_once_and_leaves_nothing(tmp_path: Path, pause_s: float) -> None:
    """On the real command: 130 whatever the second one hits, no traceback, no server, and a folder that reads."""
    out = tmp_path / "run"
    command = [sys.executable, "-m", "specpivot", "sweep", "--sim", "h200-llama31-8b-illustrative", "--out", str(out)]
    command += ["--variants", "baseline", "--concurrency", "1", "--repeats", "1", "--duration", "60"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        # The reader keeps the pipe from filling; the heading says that the first point begins.
        line = next(line for line in process.stderr if line.startswith("variant"))
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(pause_s)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=200)
    assert process.returncode == 130, line + errors
    assert "Traceback" not in errors
    assert len(RunFolder(out).levels()) <= 1
