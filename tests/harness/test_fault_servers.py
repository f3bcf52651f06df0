"""The real command against servers that fail in every phase: what is told, what is kept, and that nothing is left."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.mock import running_mock
from harness.mock_streams import Timing
from harness.runfolder import RunFolder
from harness.servers import reserved_ports
from harness.verify import verify_run
from tests.harness.commands import CODE, LASTING, QUICK, ROOT, SIM, WARMING_UP, Command, rows_of, run
from tests.harness.faulty import BUSY, TALKS, UNFINISHED, before, talking
from tests.harness.leftovers import nothing_left
from tests.harness.test_sweep_faults import simulated

STAND_IN = {"PYTHONPATH": os.pathsep.join([str(ROOT / "tests" / "harness" / "stand_in"), str(ROOT)])}
IMPATIENT = (  # between two chunks, for which it would wait a minute
    "import functools, harness.bench as bench; from harness.load_plan import LoadPlan, Timeouts;"
    f" bench.LoadPlan = functools.partial(LoadPlan, timeouts=Timeouts(chunk_s=6.0)); {CODE}"
)
SOON = (  # gives up a silent server, for which it would wait 5 s
    "import functools, harness.endpoint as e;"
    f" e.Endpoint.require_healthy = functools.partialmethod(e.Endpoint.require_healthy, timeout_s=1.0); {CODE}"
)
RUTHLESS = f"import harness.servers; harness.servers.STOP_GRACE_S = 2.0; {CODE}"  # 20 s
COLD = f"import harness.bench; harness.bench.Bench.warm_up = lambda bench, server: None; {WARMING_UP}"
TWO = ("--model", "m", "--draft", "d", "--variants", "baseline,eagle3", "--concurrency", "1", "--repeats", "1")


@pytest.fixture(autouse=True)
def _nothing_left(tmp_path: Path) -> Iterator[None]:
    with nothing_left(tmp_path):
        yield


def test_a_server_that_is_overloaded_for_a_while(tmp_path: Path) -> None:
    """Each way of saying so fails a point, which is kept; the one after them is clean; --resume measures the failed."""
    out, ways, busy = tmp_path / "run", [*BUSY], threading.Event()
    busy.set()

    def instead(request: bytes) -> bytes | None:
        if not busy.is_set() or not request.startswith(b"POST /generate"):
            return None
        measured = len(rows_of(out))
        if measured == len(ways):
            busy.clear()
            return None
        return BUSY[ways[measured]]

    with running_mock(Timing(0.02, 0.005)) as mock, talking(before(lambda: mock, instead)) as url:
        words = ("--attach", f"baseline={url}", "--concurrency", "1,2,3", "--repeats", "1", *LASTING)
        done = run(tmp_path, "sweep", "--out", str(out), *words)
        assert done.process.returncode in (3, 4)
        *failed, last = rows_of(out)
        assert [(row.verdict, row.usable) for row in failed] == [("errors", False)] * len(ways)
        assert (last.errors, last.requests > 0) == (0, True)
        told = {(r.concurrency, r.status_code) for r in RunFolder(out).requests() if r.error == "http_status"}
        assert told == {*enumerate(ways, 1)}
        again = run(tmp_path, "sweep", "--resume", "--out", str(out))
    assert again.process.returncode in (0, 3, 4)
    assert [row.errors for row in rows_of(out)] == [0, 0, 0]
    assert [row.attempt for row in rows_of(out) if row.concurrency <= len(ways)] == [2] * len(ways)
    assert verify_run(out).problems == ()


def test_requests_that_no_server_finishes(tmp_path: Path) -> None:
    """Another way at each point: every request is on record by its own error, and no point can be used."""
    out, ways = tmp_path / "run", [*UNFINISHED]

    def instead(request: bytes) -> bytes | None:
        way = ways[min(len(rows_of(out)), len(ways) - 1)]
        return UNFINISHED[way] if request.startswith(b"POST /generate") else None

    with running_mock(Timing(0.02, 0.005)) as mock, talking(before(lambda: mock, instead)) as url:
        words = ("--attach", f"baseline={url}", "--concurrency", "1,2,3,4", "--repeats", "1", *LASTING)
        done = run(tmp_path, "sweep", "--out", str(out), *words)
    assert (done.process.returncode, done.answer["usable"]) == (4, 0)
    assert [(row.verdict, row.errors > 0) for row in rows_of(out)] == [("errors", True)] * 4
    told = {record.error for record in RunFolder(out).requests()}
    assert set(ways) <= told <= {*ways, "cancelled"}
    assert verify_run(out).problems == ()


@pytest.mark.parametrize(("worker", "code"), [("v1", (4,)), ("v2", (0, 3, 4))])
def test_another_worker_than_was_asked_for(tmp_path: Path, worker: str, code: tuple[int, ...]) -> None:
    """Its points prove nothing, however well they went; where the right one runs, nothing is said of it."""
    out = tmp_path / "run"
    words = ("--attach", "eagle3=URL", "--concurrency", "1", "--repeats", "1", "--worker", worker, *LASTING)
    with reserved_ports(1) as (port,), simulated(port, 1, "--variant", "eagle3"):
        url = f"http://127.0.0.1:{port}"
        done = run(tmp_path, "sweep", "--out", str(out), *(word.replace("URL", url) for word in words))
    assert done.process.returncode in code, done.output
    (row,) = rows_of(out)
    assert (row.verdict == "unproven_worker", row.worker) == (worker == "v1", "EAGLEWorkerV2")


def test_a_simulated_server_that_was_attached_to_is_not_measured(tmp_path: Path) -> None:
    """It says what it is; the run does, too."""
    out = tmp_path / "run"
    with reserved_ports(1) as (port,), simulated(port, 1):
        words = ("--attach", f"baseline=http://127.0.0.1:{port}", "--concurrency", "1", "--repeats", "1", *QUICK)
        done = run(tmp_path, "sweep", "--out", str(out), *words)
    assert (done.answer["source"], RunFolder(out).manifest.source) == ("simulated", "simulated")
    assert "warning: baseline is a simulated server: nothing here is measured" in done.told


def test_ten_megabytes_in_one_event(tmp_path: Path) -> None:
    """A server whose events carry that much is slow to read, and read right."""
    out = tmp_path / "run"
    with running_mock(Timing(0.2, 0.3, padding_bytes=10_000_000)) as url:
        words = ("sweep", "--out", str(out), "--attach", f"baseline={url}", "--concurrency", "1", "--repeats", "1")
        done = run(tmp_path, *words, "--warmup", "0", "--duration", "4", "--output-tokens", "2")
    records = list(RunFolder(out).requests())
    assert {record.error for record in records} <= {None, "cancelled"}
    assert all(record.output_tokens == record.planned_output_tokens for record in records if record.ok)
    assert rows_of(out)[0].requests > 0, done.output


def test_streams_that_stop_in_the_middle(tmp_path: Path) -> None:
    """They begin well and bring nothing more: the point ends in time, is no measurement, and the next one is one."""
    out = tmp_path / "run"
    stalled = UNFINISHED["unterminated"].replace(b"content-length: ", b"content-length: 1")  # the rest never comes

    def instead(request: bytes) -> bytes | None:
        return stalled if request.startswith(b"POST /generate") and not rows_of(out) else None

    with running_mock(Timing(0.02, 0.005)) as mock, talking(before(lambda: mock, instead)) as url:
        words = ("--attach", f"baseline={url}", "--concurrency", "1,2", "--repeats", "1", *LASTING)
        done = run(tmp_path, "sweep", "--out", str(out), *words, code=IMPATIENT)
    assert done.process.returncode in (3, 4)
    assert "chunk_timeout" in {record.error for record in RunFolder(out).requests()}
    stalling, sound = rows_of(out)
    assert (stalling.usable, stalling.errors > 0, sound.errors, sound.requests > 0) == (False, True, 0, True)
    assert verify_run(out).problems == ()


@pytest.mark.parametrize("talk", ["silent", "overloaded", "ssh", "dripping_body"])
def test_what_is_no_server_leaves_no_run(tmp_path: Path, talk: str) -> None:
    """One line and exit code 2, in time."""
    with talking(TALKS[talk]) as url:
        words = ("sweep", "--out", str(tmp_path / "run"), "--attach", f"baseline={url}")
        done = run(tmp_path, *words, code=SOON)
    assert done.process.returncode == 2
    assert "no server answers" in done.told
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("out_of_memory", "ended with code 1: MemoryError: CUDA out of memory"),
        ("killed", "ended with code -9"),
        ("orphans", "RuntimeError: the launcher has failed"),
        ("deaf", "was not healthy after 12 s"),
        ("port_taken", "another process answers on port"),
    ],
)
def test_a_server_that_does_not_start(tmp_path: Path, fault: str, words: str) -> None:
    """Why is in the manifest and in the answer; the other variant is measured, and no process stays behind."""
    out = tmp_path / "run"
    words_of_fault = ("--start-timeout", "12") if fault == "deaf" else ()
    how = {"env": STAND_IN | {"FAULT": fault}, "code": RUTHLESS if fault == "orphans" else CODE}
    done = run(tmp_path, "sweep", "--out", str(out), *TWO, *LASTING, *words_of_fault, **how)
    assert done.process.returncode in (3, 4)  # 4 where this machine is too busy for the one point
    assert words in done.answer["not_run"]["eagle3"]
    assert words in str(RunFolder(out).manifest.variants["eagle3"].not_run)
    (row,) = rows_of(out)
    assert (row.variant, row.requests > 0) == ("baseline", True)


def test_a_server_that_starts_slowly_is_waited_for(tmp_path: Path) -> None:
    """It takes seconds longer than the other one, and both are measured."""
    out = tmp_path / "run"
    done = run(tmp_path, "sweep", "--out", str(out), *TWO, *LASTING, env=STAND_IN | {"FAULT": "slow"})
    assert done.answer["not_run"] == {}
    assert {row.variant for row in rows_of(out) if row.requests} == {"baseline", "eagle3"}


@pytest.mark.parametrize("phase", ["warm_up", "window", "drain", "between"])
def test_a_started_server_that_dies(tmp_path: Path, phase: str) -> None:
    """Every point from there on is invalid at once, what came before is kept, and --resume starts it anew."""
    out = tmp_path / "run"
    words = ["sweep", "--out", str(out), "--model", "m", "--variants", "baseline", "--repeats", "1", *QUICK]
    words += [
        "--concurrency",
        "1,2,3" if phase == "between" else "1",
        "--duration",
        {"window": "6", "drain": "0.6"}.get(phase, "2.5"),
    ]
    slow = {"GAP": "2"} if phase == "drain" else {}
    code = {"warm_up": WARMING_UP, "drain": COLD}.get(phase, CODE)  # to warm up would take a request of 14 s
    with Command(tmp_path, *words, env=STAND_IN | slow, code=code) as command:
        command.says("warming up" if phase == "warm_up" else "variant")
        if phase == "window":
            command.until(lambda: (out / "requests.jsonl").stat().st_size)
        if phase == "drain":
            time.sleep(2)  # of 14 s that a request takes: the window of 0.6 s is over, its requests are not
        if phase == "between":
            command.until(lambda: rows_of(out))
        (server,) = RunFolder(out).manifest.servers.values()
        os.killpg(int(server.pid or 0), signal.SIGKILL)
        assert command.end() in (3, 4)
    died = [row.verdict == "server_died" for row in rows_of(out)]
    assert (died[0], died[-1]) == ((False, True) if phase == "between" else (True, True))
    assert phase in ("warm_up", "drain") or any(record.ok for record in RunFolder(out).requests())
    run(tmp_path, "sweep", "--resume", "--out", str(out), env=STAND_IN)
    assert len(RunFolder(out).manifest.servers) == 2
    assert [row.requests > 0 and not row.errors for row in rows_of(out)] == [True] * len(died)
    assert verify_run(out).problems == ()


def test_another_model_behind_the_same_address(tmp_path: Path) -> None:
    """A server that comes back with another model between two points is noticed, and the manifest names both."""
    out, other = tmp_path / "run", tmp_path / "other.json"
    sound = (ROOT / "harness" / "sim" / "presets" / f"{SIM}.json").read_text()
    other.write_text(sound.replace('"model": "', '"model": "another/'))
    with (
        reserved_ports(2) as ports,
        simulated(ports[0], 1),
        simulated(ports[1], 1, "--preset", str(other)),
        talking(before(lambda: f"http://127.0.0.1:{ports[bool(rows_of(out))]}")) as url,
    ):
        words = ("--attach", f"baseline={url}", "--concurrency", "1,2", "--repeats", "1")
        done = run(tmp_path, "sweep", "--out", str(out), *words, *LASTING)
    assert done.process.returncode in (3, 4)
    assert [row.verdict == "unproven_worker" for row in rows_of(out)] == [False, True]
    manifest = RunFolder(out).manifest
    models = {str(server.server_args["model_path"]) for server in manifest.servers.values()}
    assert sorted(model.startswith("another/") for model in models) == [False, True]
    assert [line for line in manifest.warnings if "answers in place of" in line]
