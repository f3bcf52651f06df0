"""From runs of load generators to a table: medians over the rounds, and what ours costs as a share of each other's."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from typing import Any

import scipy.stats

from benchmarks.tool_runs import Result

FIGURES = (
    *("ttft_added_p50_s", "gap_added_p99_s", "tok_per_s"),
    *("cpu_s_per_1k_tokens", "whole_cpu_s_per_1k_tokens", "in_flight_max"),
)


def medians(results: list[Result]) -> Iterator[dict[str, Any]]:
    """One row per tool and concurrency, in the order of first appearance."""
    for place in dict.fromkeys((r.concurrency, r.tool) for r in results):
        group = [r for r in results if (r.concurrency, r.tool) == place]
        row: dict[str, Any] = {"concurrency": place[0], "tool": place[1], "runs": len(group)}
        for name in FIGURES:
            values = [value for r in group if (value := getattr(r, name)) is not None]
            row[name] = statistics.median(values) if values else None
        row["complete"] = all(r.complete for r in group)
        yield row


def cpu_ratios(results: list[Result]) -> Iterator[dict[str, Any]]:
    """CPU to the end of the first tool over that of each other: geometric mean over the rounds and 95 % interval."""
    for concurrency in dict.fromkeys(r.concurrency for r in results):
        by_tool: dict[str, list[float]] = {}
        for r in results:
            if r.concurrency == concurrency:
                by_tool.setdefault(r.tool, []).append(math.log(r.whole_cpu_s_per_1k_tokens))
        first, *others = by_tool
        for other in others:
            logs = [a - b for a, b in zip(by_tool[first], by_tool[other], strict=False)]
            row: dict[str, Any] = {"concurrency": concurrency, "over": other, "ratio": math.exp(statistics.fmean(logs))}
            if len(logs) > 1:
                half = float(scipy.stats.t.ppf(0.975, len(logs) - 1)) * statistics.stdev(logs) / math.sqrt(len(logs))
                row |= {"low": row["ratio"] * math.exp(-half), "high": row["ratio"] * math.exp(half)}
            yield row


def table(rows: list[dict[str, Any]]) -> str:
    head = (
        "| C | tool | TTFT p50 added, ms | gap p99 added, ms | tok/s | CPU ms / 1,000 tokens | to the end | in flight |"
    )
    lines = [head, "|---|---|---|---|---|---|---|---|"]
    for row in rows:
        ttft, gap = ("" if row[k] is None else f"{row[k] * 1e3:.1f}" for k in ("ttft_added_p50_s", "gap_added_p99_s"))
        cpu, whole = (f"{row[k] * 1e3:.1f}" for k in ("cpu_s_per_1k_tokens", "whole_cpu_s_per_1k_tokens"))
        figures = f"{row['tok_per_s']:.0f} | {cpu} | {whole} | {row['in_flight_max']:.0f}"
        lines.append(f"| {row['concurrency']} | {row['tool']} | {ttft} | {gap} | {figures} |")
    return "\n".join(lines)
