"""How much the load generator itself adds, beside its peers: `python benchmarks/client.py`.

Each tool drives the bundled mock server, which runs in another process on another core and stamps its own writes: 128
tokens, 10 ms apart, 50 ms after the request. What a tool reports beyond the mock's stamps, the tool added. Tools take
turns inside each round, and the medians over the rounds are shown. Peers run where a command for them is given:

    python benchmarks/client.py --concurrency 64,256,1024 --rounds 5
    python benchmarks/client.py --sglang "venv/bin/python -m sglang.bench_serving" --tokenizer MODEL_FOLDER
    python benchmarks/client.py --other CHECKOUT  beside another version of this project
    python benchmarks/client.py --memory          100,000 requests of 512 tokens: the client's peak memory

CPU is that of the tool's processes from the mock's first request on, so imports are not counted: once to the last chunk
and once to the tool's end, because ours parses later and some peers count tokens again.
The last line on standard output is one compact JSON document.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.peers import (
    INPUT_TOKENS,
    OUTPUT_TOKENS,
    Case,
    Reported,
    aiperf,
    guidellm,
    read_aiperf,
    read_guidellm,
    read_milliseconds,
    sglang,
    vllm,
)
from benchmarks.tool_rows import cpu_ratios, medians, table
from benchmarks.tool_runs import Result, Tool, measure
from harness.load import run_closed_loop
from harness.load_plan import LoadPlan
from harness.metrics import level_metrics
from harness.mock import running_mock
from harness.mock_streams import Timing
from harness.records import PointKey, RequestRecord
from harness.transport import TransportName
from harness.workload import WorkloadPlan

ROOT = Path(__file__).resolve().parent.parent


def specpivot(case: Case, transport: TransportName, workers: int, checkout: Path = ROOT) -> list[str]:
    # In the checkout, for `python -m` looks in the working folder first: its client processes would be other ones.
    me = ["env", "-C", str(checkout), sys.executable, "benchmarks/client.py", "--one", case.url]
    me += ["--concurrency", str(case.concurrency)]
    return [*me, "--requests", str(case.requests), "--transport", transport, "--workers", str(workers),
            "--out", str(case.out)]  # fmt: skip


def read_own(out: Path) -> Reported:
    return msgspec.json.decode(out.read_bytes(), type=Reported)


def tools(options: argparse.Namespace) -> dict[str, Tool]:
    """The tools that can run here, ours first."""
    tokenizer = options.tokenizer
    found: dict[str, Tool] = {}
    for transport in ("raw", "aiohttp"):
        found[f"specpivot {transport}"] = (lambda case, t=transport: specpivot(case, t, options.workers)), read_own
    if options.other:
        found["specpivot other"] = (lambda case: specpivot(case, "raw", options.workers, options.other)), read_own
    if options.sglang:
        found["sglang python"] = (lambda case: sglang(case, options.sglang, tokenizer, False)), read_milliseconds
        found["sglang rust"] = (lambda case: sglang(case, options.sglang, tokenizer, True)), read_milliseconds
    if options.vllm:
        found["vllm"] = (lambda case: vllm(case, options.vllm, tokenizer)), read_milliseconds
    if options.aiperf:
        found["aiperf"] = (lambda case: aiperf(case, options.aiperf, tokenizer)), read_aiperf
    if options.guidellm:
        found["guidellm"] = (lambda case: guidellm(case, options.guidellm, tokenizer)), read_guidellm
    return {name: tool for name, tool in found.items() if not options.tools or name in options.tools}


def run_one(options: argparse.Namespace) -> None:
    """Our own client as one of the tools: a finite list, staggered over a second, everything measured."""
    (concurrency,) = options.concurrency
    records: list[RequestRecord] = []
    plan = LoadPlan(
        url=options.one,
        concurrency=concurrency,
        warmup_s=2.0,
        duration_s=600.0,
        workers=options.workers,
        transport=options.transport,
    )
    work = WorkloadPlan(input_tokens=INPUT_TOKENS, output_tokens=OUTPUT_TOKENS)
    requests = islice(work.requests(concurrency, 1), options.requests)
    run_closed_loop(plan, requests, PointKey("baseline", concurrency, 1), 1, records.extend)
    got = level_metrics(records, 0.0, 1e9)
    Path(options.out).write_bytes(msgspec.json.encode(Reported(got.ttft_p50_s, got.gap_p99_s)))


def run_memory(options: argparse.Namespace) -> dict[str, Any]:
    """100,000 requests of 512 tokens at C=1024; records are counted and dropped, as a sweep writes them out."""
    work = WorkloadPlan(input_tokens=16, output_tokens=512)
    count = 0

    def on_records(records: Any) -> None:
        nonlocal count
        count += len(records)

    with running_mock(Timing(0.01, 0.001, tokens_per_chunk=8)) as url:
        plan = LoadPlan(url=url, concurrency=1024, warmup_s=1.0, duration_s=3600.0, workers=options.workers)
        requests = islice(work.requests(1024, 1), options.requests or 100_000)
        started_s = time.monotonic()
        result = run_closed_loop(plan, requests, PointKey("baseline", 1024, 1), 1, on_records)
    parent = psutil.Process().memory_info().rss
    return {
        "requests": count,
        "seconds": round(time.monotonic() - started_s, 1),
        "worker_peak_bytes": result.client.peak_memory_bytes,
        "workers": result.workers,
        "parent_bytes": parent,
    }


def parsed() -> argparse.Namespace:
    cores = sorted(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--concurrency", default="64,256,1024", help="comma-separated")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=1, help="our client processes")
    parser.add_argument("--server-core", type=int, default=cores[-1])
    parser.add_argument("--client-cores", default=str(cores[0]), help="comma-separated")
    parser.add_argument("--tools", action="append", help="only these")
    parser.add_argument("--tokenizer", default="", help="folder of a tokenizer, for the peers")
    for peer in ("sglang", "vllm", "aiperf", "guidellm"):
        parser.add_argument(f"--{peer}", default="", help=f"command that starts {peer}")
    parser.add_argument("--other", type=Path, help="another checkout of this project, as one more tool")
    parser.add_argument("--memory", action="store_true", help="measure peak memory instead")
    parser.add_argument("--requests", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--transport", default="raw", help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.concurrency = [int(text) for text in options.concurrency.split(",")]
    options.client_cores = [int(text) for text in options.client_cores.split(",")]
    return options


def main() -> None:
    options = parsed()
    if options.one:
        run_one(options)
        return
    if options.memory:
        print(json.dumps(run_memory(options)))
        return
    results: list[Result] = []
    for number in range(options.rounds):
        for concurrency in options.concurrency:
            for name, tool in tools(options).items():
                result = measure(name, tool, concurrency, options.server_core, options.client_cores)
                print(f"round {number + 1}: {result}", file=sys.stderr)
                results += [result] if result is not None else []
    rows = list(medians(results))
    print(table(rows))
    said = {"load_average": os.getloadavg()[0], "rows": rows, "cpu_ratios": list(cpu_ratios(results))}
    print(json.dumps(said, separators=(",", ":")))


if __name__ == "__main__":
    main()
