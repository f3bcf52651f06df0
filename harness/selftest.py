"""What this client can measure on this machine: its own error, found against the bundled mock in another process.

The mock knows when it really wrote; what the client reports beyond that, the client added. Cost per token gives the
most tokens per second that one client process can take in, and points beyond it are client_limited.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import urllib.request
from pathlib import Path
from typing import Any

import msgspec

from harness.checks import CPU_LIMIT, Calibration
from harness.load import run_closed_loop
from harness.load_plan import LoadPlan
from harness.metrics import level_metrics
from harness.mock import running_mock
from harness.mock_streams import Timing
from harness.records import PointKey, RequestRecord, json_file
from harness.regular import replace_file
from harness.transport import TransportName
from harness.workload import WorkloadPlan

LEVELS = (1, 64, 256)
TIMING = Timing(ttft_s=0.05, gap_s=0.01)
OUTPUT_TOKENS = 128


class SelftestLevel(msgspec.Struct, frozen=True):
    """The client against the mock at one concurrency.

    Attributes:
        ttft_added_p50_s, ttft_added_p99_s, gap_added_p99_s: the client's figure less the mock's own.
        tok_per_s: tokens taken in, per client process.
        cpu_us_per_token: client CPU per token, in microseconds, with everything that a client process does.
    """

    concurrency: int
    workers: int
    ttft_added_p50_s: float
    ttft_added_p99_s: float
    gap_added_p99_s: float
    tok_per_s: float
    cpu: float
    cpu_us_per_token: float
    lag_p99_s: float


class SelftestReport(msgspec.Struct, frozen=True):
    """What this client can measure on this machine.

    Attributes:
        max_tok_per_s: tokens per second that one client process can take in before its CPU is the limit.
    """

    host: str
    cores: int
    transport: str
    levels: tuple[SelftestLevel, ...]
    max_tok_per_s: float

    @property
    def calibration(self) -> Calibration:
        return Calibration(self.max_tok_per_s)


def selftest(
    levels: tuple[int, ...] = LEVELS, seconds: float = 4.0, transport: TransportName = "raw", workers: int = 1
) -> SelftestReport:
    """Calibrate the client; takes about `seconds` + 6 s per level.

    Args:
        levels: concurrencies to measure.
        seconds: length of each measuring window.
        transport: which transport.
        workers: client processes.
    """
    measured = tuple(_level(level, seconds, transport, min(workers, level)) for level in levels)
    cost_s = min(level.cpu_us_per_token for level in measured) * 1e-6
    return SelftestReport(
        host=platform.node(),
        cores=os.cpu_count() or 1,
        transport=transport,
        levels=measured,
        max_tok_per_s=CPU_LIMIT / cost_s,
    )


def calibration_file() -> Path:
    """Where this machine's calibration is kept."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "specpivot" / "selftest.json"


def save_calibration(report: SelftestReport) -> Path:
    """Keep a report for the sweeps of this machine; returns the file."""
    file = calibration_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_file(file, json_file(report))
    return file


def load_calibration() -> Calibration | None:
    """This machine's calibration; None where selftest has not run on it."""
    with contextlib.suppress(OSError, ValueError, RecursionError, msgspec.DecodeError):  # a damaged one is as none
        report = msgspec.json.decode(calibration_file().read_bytes(), type=SelftestReport)
        usable = 0 < report.max_tok_per_s < math.inf
        if usable and (report.host, report.cores) == (platform.node(), os.cpu_count()):
            return report.calibration
    return None


def _level(concurrency: int, seconds: float, transport: TransportName, workers: int) -> SelftestLevel:
    records: list[RequestRecord] = []
    with running_mock(TIMING) as url:
        plan = LoadPlan(
            url=url,
            concurrency=concurrency,
            warmup_s=2.0,
            duration_s=seconds,
            workers=workers,
            transport=transport,
        )
        work = WorkloadPlan(input_tokens=16, output_tokens=OUTPUT_TOKENS)
        key = PointKey("baseline", concurrency, 1)
        result = run_closed_loop(plan, work.requests(concurrency, 1), key, 1, records.extend)
        truth = _stamps(url)
    # Everything since the start, as the mock's own stamps are.
    whole = level_metrics(records, 0.0, float("1e9"))
    window = level_metrics(records, result.window_start_s, result.window_end_s)
    tok_per_s = (window.output_tok_per_s or 0.0) / workers
    return SelftestLevel(
        concurrency=concurrency,
        workers=workers,
        ttft_added_p50_s=(whole.ttft_p50_s or 0.0) - truth["ttft_p50_s"],
        ttft_added_p99_s=(whole.ttft_p99_s or 0.0) - truth["ttft_p99_s"],
        gap_added_p99_s=(whole.gap_p99_s or 0.0) - truth["gap_p99_s"],
        tok_per_s=tok_per_s,
        cpu=result.client.cpu,
        cpu_us_per_token=result.client.cpu / max(tok_per_s, 1e-9) * 1e6,
        lag_p99_s=result.client.lag_p99_s,
    )


def _stamps(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/stamps") as answer:
        body: dict[str, Any] = json.load(answer)
        return body
