"""specpivot bench on the command line: both loops, the figures from schedule and send, limits, and refusals."""

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from harness.bench_cli import limits_of, load_settings
from harness.errors import UserError
from harness.mock import running_mock
from harness.mock_streams import Timing
from harness.openload import Arrivals
from harness.openloop import Slo
from harness.runfolder import RunFolder
from harness.single import Asked, BenchReport, played
from harness.verify import verify_run
from specpivot import app

QUICK = ["--warmup", "0.2", "--duration", "0.8", "--input-tokens", "8", "--output-tokens", "8"]
LONG = ["--duration", "3"]  # longer than a busy machine may stand still


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A mock: 20 ms to the first chunk, then 5 ms each."""
    with running_mock(Timing(0.02, 0.005)) as base:
        yield base


def bench(url: str, out: Path, *flags: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, last line and standard error of the command."""
    result = CliRunner().invoke(app, ["bench", "--url", url, "--out", str(out), *QUICK, *flags])
    if isinstance(result.exception, UserError):
        raise result.exception
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, json.loads(result.stdout.splitlines()[-1]), result.stderr


def test_an_open_loop_tells_both_beginnings(url: str, tmp_path: Path) -> None:
    """Latency from schedule and from send, goodput with words after the flag as the other tools take them."""
    flags = ["--request-rate", "40", "--arrival", "constant", "--goodput", "ttft:20000", "tpot:20000", "e2e:30000"]
    code, said, told = bench(url, tmp_path / "run", *flags)
    assert (said["loop"], said["point"]["errors"], said["point"]["dropped"]) == ("open", 0, 0)
    assert code == (0 if said["point"]["verdict"] == "ok" else 4)
    assert said["open"]["offered_per_s"] == 40.0
    # Timers are whole milliseconds: a request may leave half of one early.
    assert said["open"]["ttft_scheduled_p50_s"] + 0.0005 >= said["open"]["ttft_sent_p50_s"] > 0.015
    assert said["goodput"]["share"] == 1.0
    assert said["limits"] == {"ttft_s": 20.0, "tpot_s": 20.0, "gap_max_s": None, "e2e_s": 30.0}
    assert "ttft from schedule" in told
    run = RunFolder(tmp_path / "run")
    assert run.manifest.config["bench"]["arrivals"]["rate"] == 40.0
    assert verify_run(run.path).problems == ()
    assert msgspec.json.decode((run.path / "bench.json").read_bytes(), type=BenchReport).run == str(run.path)


def test_a_closed_loop_by_the_other_tools_names(url: str, tmp_path: Path) -> None:
    """Exactly C in flight; no figures of a schedule."""
    _, said, told = bench(url, tmp_path / "run", "--max-concurrency", "3", "--request-rate", "inf", *LONG)
    assert (said["loop"], said["open"], said["goodput"], said["point"]["dropped"]) == ("closed", None, None, None)
    assert said["point"]["in_flight_mean"] == pytest.approx(3, abs=0.5)
    assert "ttft  " in told


def test_dropped_requests_make_the_point_unusable(url: str, tmp_path: Path) -> None:
    """One in flight at fifty per second of 55 ms each: most are dropped, counted, and missing from the load."""
    flags = ["--request-rate", "50", "--concurrency", "1", "--drop-after", "0", *LONG]
    code, said, _ = bench(url, tmp_path / "run", *flags)
    assert code == 4
    assert said["point"]["verdict"] in ("load_not_delivered", "client_limited")  # the latter on a busy machine
    assert said["point"]["dropped"] > 10
    assert verify_run(tmp_path / "run").problems == ()


def test_what_waits_is_late_and_counts_from_the_schedule(url: str, tmp_path: Path) -> None:
    """The same load without dropping: nothing is lost, and the queue shows in the latency from the schedule only."""
    _, said, _ = bench(url, tmp_path / "run", "--request-rate", "50", "--concurrency", "1")
    figures = said["open"]
    assert (figures["late"] > 10, said["point"]["dropped"]) == (True, 0)
    assert figures["e2e_scheduled_p50_s"] > 3 * figures["e2e_sent_p50_s"]


def test_a_trace_is_replayed_whole(url: str, tmp_path: Path) -> None:
    """Every request of an Azure CSV, at its time, with its lengths; the window is the trace's."""
    file = tmp_path / "trace"
    rows = "".join(f"2023-11-16 18:17:0{at}.0000000,{20 + at},{5 + at}\n" for at in range(4))
    file.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    command = ["bench", "--url", url, "--out", str(tmp_path / "run"), "--trace", str(file), "--trace-speedup", "5"]
    result = CliRunner().invoke(app, command)
    said = json.loads(result.stdout.splitlines()[-1])
    assert (said["point"]["requests"], said["point"]["errors"]) == (4, 0)
    records = sorted(RunFolder(tmp_path / "run").requests(), key=lambda record: record.index)
    assert [record.scheduled_s for record in records] == pytest.approx([0.0, 0.2, 0.4, 0.6])
    assert [(record.prompt_tokens, record.output_tokens) for record in records] == [(20, 5), (21, 6), (22, 7), (23, 8)]
    assert RunFolder(tmp_path / "run").manifest.workload.dataset == str(file)


def test_a_ramp_on_a_simulated_clock(tmp_path: Path) -> None:
    """On a simulated server times are simulated: at five times the speed a second holds five seconds of schedule."""
    command = [sys.executable, "-m", "harness.sim.server", "--port", "0", "--variant", "eagle3", "--time-scale", "5"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        assert server.stdout is not None
        try:
            address = next(word for line in server.stdout for word in line.split() if word.startswith("http://"))
            flags = ["--ramp", "4,20,2", "--arrival", "constant", "--warmup", "0", "--duration", "3"]
            _, said, _ = bench(address.rstrip("/,.;"), tmp_path / "run", *flags)
        finally:
            server.kill()
    assert (said["source"], said["open"]["requests"]) == ("simulated", 44), said
    assert said["point"]["variant"] == "eagle3"
    assert verify_run(tmp_path / "run").problems == ()


def test_a_full_disk_ends_in_one_line(url: str, tmp_path: Path) -> None:
    """What was written can be read, nothing is usable, and the exit code says so."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8000, limit[1]))
    try:
        code, said, told = bench(url, tmp_path / "run", "--concurrency", "8", *LONG)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert (code, said["point"]) == (4, None)
    assert "cannot write" in said["failed"]
    assert "cannot write" in told
    assert all(record.ok for record in RunFolder(tmp_path / "run").requests())


def test_ctrl_c_keeps_what_was_measured(url: str, tmp_path: Path) -> None:
    """The point ends early, its requests are on disk, and the exit code says so."""
    requests = tmp_path / "run" / "requests.jsonl"

    def interrupt() -> None:
        while not (requests.exists() and requests.stat().st_size):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    waiting = threading.Thread(target=interrupt, daemon=True)
    waiting.start()
    code, said, _ = bench(url, tmp_path / "run", "--concurrency", "4", "--duration", "60")
    waiting.join()
    assert (code, said["point"]["verdict"]) == (130, "interrupted")
    run = RunFolder(tmp_path / "run")
    assert any(record.ok for record in run.requests())
    # The window was cut where the file can say it, or a token at its edge would count in one and not in the other.
    assert run.levels()[0].window_end_s == said["point"]["window_end_s"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "say the load"),
        (["--concurrency", "2", "--drop-after", "1"], "--drop-after"),
        (["--ramp", "1,2"], "give 3 numbers"),
        (["--request-rate", "2", "--arrival", "uniform"], "constant, poisson, gamma"),
        (["--request-rate", "2", "--goodput", "ttft:0"], "no limit"),
        (["--request-rate", "2", "stray"], "'stray' is no limit"),
        (["--trace", "/none"], "cannot read the trace"),
        (["--request-rate", "2", "--tokenizer", "x"], "add --dataset FILE"),
        (["--concurrency", "0"], "each from 1"),
    ],
)
def test_bad_input_is_one_line(url: str, tmp_path: Path, flags: list[str], words: str) -> None:
    """Refused before a folder is made."""
    with pytest.raises(UserError, match=words):
        bench(url, tmp_path / "run", *flags)
    assert not (tmp_path / "run").exists()


def test_no_server_is_told(tmp_path: Path) -> None:
    """The address is named, and what to do."""
    with pytest.raises(UserError, match=r"no server answers at http://127.0.0.1:9/health"):
        bench("http://127.0.0.1:9", tmp_path / "run", "--concurrency", "1")


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        (None, ("baseline", {})),
        ({"speculative_algorithm": None, "disable_overlap_schedule": True}, ("baseline_no_overlap", {})),
        ({"speculative_algorithm": "EAGLE3"}, ("eagle3", {})),
        ({"speculative_algorithm": "EAGLE3", "threshold": -1}, ("eagle3", {})),
        ({"speculative_algorithm": "EAGLE3", "threshold": 0}, ("forced_off", {})),
        ({"speculative_algorithm": "EAGLE3", "threshold": 16}, ("dynamic", {"threshold": 16})),
    ],
)
def test_the_variant_is_what_the_server_says(info: dict[str, Any] | None, expected: tuple[str, Any]) -> None:
    """By its algorithm and, where it is patched, by the threshold it holds."""
    if info and "threshold" in info:
        info = {**info, "internal_states": [{"specpivot": {"threshold": info.pop("threshold")}}]}
    assert played(info) == expected


def test_limits_are_milliseconds() -> None:
    """In one word or in several, by vLLM's name of e2e too."""
    assert limits_of(["ttft:500 tpot:50", "e2el:2000", "gap:80"]) == Slo(0.5, 0.05, 0.08, 2.0)


def test_a_trace_goes_with_no_other_prompts() -> None:
    """A trace holds lengths only; it takes neither a data set nor a chat."""
    with pytest.raises(UserError, match="--trace sends token ids"):
        load_settings({"dataset": "x"}, Asked(Arrivals(trace="t")))
