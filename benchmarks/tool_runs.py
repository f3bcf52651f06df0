"""One run of one load generator against the bundled mock: what it reports beyond the mock's stamps, and its CPU.

The mock runs in another process on a core of its own and stamps what it writes; CPU is that of the tool and its
children, sampled from outside, so every tool is measured alike.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil

from benchmarks.peers import Case, Reported
from harness.mock import running_mock
from harness.mock_streams import Timing

TIMING = Timing(ttft_s=0.05, gap_s=0.01)
WAVES = 5  # requests per slot
TIMEOUT_S = 600.0  # some peers start a dozen processes


class Result(msgspec.Struct, frozen=True):
    """One run: the tool's figures less the mock's, and what it cost."""

    tool: str
    concurrency: int
    ttft_added_p50_s: float | None
    gap_added_p99_s: float | None
    tok_per_s: float
    cpu_s_per_1k_tokens: float  # to the last chunk
    whole_cpu_s_per_1k_tokens: float  # to the end of the process
    in_flight_max: int
    complete: bool


Tool = tuple[Callable[[Case], list[str]], Callable[[Path], Reported]]


def measure(name: str, tool: Tool, concurrency: int, server_core: int, client_cores: Sequence[int]) -> Result | None:
    """Run one tool once; None where it failed."""
    make, read = tool
    requests = concurrency * WAVES
    with (
        running_mock(TIMING, core=server_core) as url,
        tempfile.TemporaryDirectory() as folder,
        (Path(folder) / "log").open("wb") as log,
    ):
        case = Case(name, url, concurrency, requests, Path(folder) / "out.json")
        process = psutil.Popen(make(case), stdout=log, stderr=subprocess.STDOUT)
        process.cpu_affinity(list(client_cores))
        cpu = watch_cpu(process)
        try:
            code = process.wait(TIMEOUT_S)
        except psutil.TimeoutExpired:
            code = None
            kill(process)
        truth = stamps(url)
        try:
            reported = read(case.out)
        except (OSError, KeyError, ValueError, IndexError, TypeError) as error:
            tail = Path(log.name).read_text(errors="replace")[-600:]
            print(f"{name} at C={concurrency}: exit {code}, {error!r}: {tail}", file=sys.stderr)
            return None
    tokens = truth["chunks"]
    return Result(
        tool=name,
        concurrency=concurrency,
        ttft_added_p50_s=less(reported.ttft_p50_s, truth["ttft_p50_s"]),
        gap_added_p99_s=less(reported.gap_p99_s, truth["gap_p99_s"]),
        tok_per_s=tokens / (truth["last_s"] - truth["first_s"]),
        cpu_s_per_1k_tokens=cpu_between(cpu, truth["first_s"], truth["last_s"]) / tokens * 1000,
        whole_cpu_s_per_1k_tokens=cpu_between(cpu, truth["first_s"], math.inf) / tokens * 1000,
        in_flight_max=truth["in_flight_max"],
        complete=truth["requests"] >= requests,
    )


def watch_cpu(process: psutil.Popen) -> list[tuple[float, float]]:
    """(time, CPU seconds of the process and its children so far), twenty times a second until it ends."""
    samples: list[tuple[float, float]] = []
    ended: dict[int, float] = {}

    def watch() -> None:
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            try:
                for each in [process, *process.children(recursive=True)]:
                    times = each.cpu_times()
                    ended[each.pid] = times.user + times.system
            except psutil.NoSuchProcess:
                pass
            samples.append((time.monotonic(), sum(ended.values())))
            time.sleep(0.05)

    threading.Thread(target=watch, daemon=True).start()
    return samples


def cpu_between(samples: list[tuple[float, float]], start_s: float, end_s: float) -> float:
    inside = [cpu for at, cpu in samples if start_s - 0.05 <= at <= end_s + 0.05]
    return inside[-1] - inside[0] if len(inside) > 1 else float("nan")


def kill(process: psutil.Popen) -> None:
    for each in [*process.children(recursive=True), process]:
        each.kill()
    process.wait()


def stamps(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/stamps") as answer:
        body: dict[str, Any] = json.load(answer)
        return body


def less(value: float | None, truth: float | None) -> float | None:
    return None if value is None or truth is None else value - truth
