"""What the client benchmark makes of its runs."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from benchmarks.tool_rows import cpu_ratios, medians, table
from benchmarks.tool_runs import Result, cpu_between


def run(tool: str, whole_ms: float, ttft_ms: float | None = 1.0, complete: bool = True) -> Result:
    return Result(
        tool, 64, None if ttft_ms is None else ttft_ms / 1e3, None, 5000.0, 0.004, whole_ms / 1e3, 64, complete
    )


def test_rows_are_medians_over_the_rounds() -> None:
    """What a tool does not report stays empty, and one incomplete round is told."""
    ours, theirs = medians([run("a", 3), run("b", 8, None), run("a", 9), run("b", 8, None, False), run("a", 4)])
    assert (ours["runs"], ours["whole_cpu_s_per_1k_tokens"], ours["complete"]) == (3, 0.004, True)
    assert (theirs["ttft_added_p50_s"], theirs["complete"]) == (None, False)
    assert table([ours, theirs]).splitlines()[2:] == [
        "| 64 | a | 1.0 |  | 5000 | 4.0 | 4.0 | 64 |",
        "| 64 | b |  |  | 5000 | 4.0 | 8.0 | 64 |",
    ]


def test_cpu_is_compared_inside_each_round() -> None:
    """The geometric mean of the rounds' ratios, with Student's interval of their logarithms."""
    rounds = [run("a", 4), run("b", 8), run("a", 9), run("b", 9)]
    (row,) = cpu_ratios(rounds)
    half = float(stats.t.ppf(0.975, 1)) * math.log(2) / math.sqrt(2) / math.sqrt(2)
    assert (row["over"], row["ratio"]) == ("b", pytest.approx(math.sqrt(0.5)))
    assert row["high"] == pytest.approx(math.sqrt(0.5) * math.exp(half))
    (single,) = cpu_ratios(rounds[:2])
    assert single == {"concurrency": 64, "over": "b", "ratio": pytest.approx(0.5)}


def test_cpu_is_that_between_two_moments() -> None:
    """Samples a twentieth of a second around count; without two there is no figure."""
    samples = [(0.0, 1.0), (1.0, 1.5), (2.0, 2.5), (3.0, 4.5)]
    assert cpu_between(samples, 1.0, 2.0) == 1.0
    assert cpu_between(samples, 1.0, math.inf) == 3.0
    assert math.isnan(cpu_between(samples, 2.9, 2.95))
