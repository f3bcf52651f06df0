"""Requests in, figures out: pure, and the same whether a point has just ended or is read back from disk.

Formulas and units are in docs/metrics.md. In short: tokens are the server's counts and belong to the window by their
own arrival; latencies are of the successful requests that were due inside the window.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import scipy
from numpy.typing import NDArray

from harness.intervals import (
    CONFIDENCE,
    Floats,
    Groups,
    Numbers,
    in_order,
    quantile,
    quantile_interval,
    ratio_interval,
    spans,
)
from harness.records import TICK_S, LevelRow, RequestRecord

SLICES = 20  # batch means: enough for a t interval and a lag-1 autocorrelation
_MIN_FOR_INTERVAL = 6  # the smallest sample whose median has a 95 % interval at all


class LevelMetrics(msgspec.Struct, frozen=True):
    """The measured part of a LevelRow, and what only the verdict needs.

    Attributes:
        slope_p: p value of window_slope.
        error_classes: failures that touch the window, by class.
        degenerate: requests of the window whose answer repeats itself.
        inexact: requests of the window whose tokens per chunk the server does not say.
        prompt_tokens: of all requests, as the server counted them.
        total_tokens: output tokens of all requests, inside and outside the window.
    """

    requests: int = 0
    errors: int = 0
    duration_s: float = 0.0
    window_start_s: float = 0.0
    window_end_s: float = 0.0
    output_tok_per_s: float | None = None
    output_tok_per_s_low: float | None = None
    output_tok_per_s_high: float | None = None
    user_tok_per_s: float | None = None
    user_tok_per_s_low: float | None = None
    user_tok_per_s_high: float | None = None
    ttft_p50_s: float | None = None
    ttft_p50_s_low: float | None = None
    ttft_p50_s_high: float | None = None
    ttft_p99_s: float | None = None
    ttft_p99_s_low: float | None = None
    ttft_p99_s_high: float | None = None
    tpot_p50_s: float | None = None
    tpot_p50_s_low: float | None = None
    tpot_p50_s_high: float | None = None
    tpot_p99_s: float | None = None
    tpot_p99_s_low: float | None = None
    tpot_p99_s_high: float | None = None
    gap_p50_s: float | None = None
    gap_p50_s_low: float | None = None
    gap_p50_s_high: float | None = None
    gap_p99_s: float | None = None
    gap_p99_s_low: float | None = None
    gap_p99_s_high: float | None = None
    gap_max_s: float | None = None
    e2e_p50_s: float | None = None
    e2e_p50_s_low: float | None = None
    e2e_p50_s_high: float | None = None
    e2e_p99_s: float | None = None
    e2e_p99_s_low: float | None = None
    e2e_p99_s_high: float | None = None
    tokens_per_chunk: float | None = None
    accept_len: float | None = None
    accept_len_low: float | None = None
    accept_len_high: float | None = None
    in_flight_mean: float | None = None
    decode_batch_mean: float | None = None
    send_delay_p99_s: float | None = None
    window_slope: float | None = None
    window_autocorrelation: float | None = None
    cached_tokens: int | None = None
    slope_p: float | None = None
    error_classes: dict[str, int] = {}
    degenerate: int = 0
    inexact: int = 0
    prompt_tokens: int = 0
    total_tokens: int = 0

    def row_fields(self) -> dict[str, Any]:
        """The fields that LevelRow has too, by name."""
        return {name: getattr(self, name) for name in self.__struct_fields__ if name in LevelRow.__struct_fields__}


class _Table:
    """The records of a point as arrays: one row per request, and all chunks behind one another."""

    def __init__(self, records: list[RequestRecord]) -> None:
        self.records = records
        self.start_s: Floats = np.array([r.start_s for r in records], dtype=float)
        # What decides whether a request belongs to the window: in an open loop, when it was due.
        due = (r.start_s if r.scheduled_s is None else r.scheduled_s for r in records)
        self.due_s: Floats = np.fromiter(due, dtype=float, count=len(records))
        self.end_s: Floats = np.array([r.end_s for r in records], dtype=float)
        self.sent_s: Floats = self.start_s + np.array([r.send_delay_s for r in records], dtype=float)
        self.ok = np.array([r.ok for r in records], dtype=bool)
        self.chunks = np.array([len(r.chunk_ticks) for r in records], dtype=np.int64)
        total = int(self.chunks.sum())
        self.ticks = np.fromiter(chain.from_iterable(r.chunk_ticks for r in records), dtype=np.int32, count=total)
        self.tokens = np.fromiter(
            chain.from_iterable(
                (1,) * len(r.chunk_ticks) if r.chunk_tokens is None else r.chunk_tokens for r in records
            ),
            dtype=np.int32,
            count=total,
        )
        self.owner = np.repeat(np.arange(len(records)), self.chunks)
        self.first = np.cumsum(self.chunks) - self.chunks  # index of each request's first chunk

    @cached_property
    def arrivals_s(self) -> Floats:
        """When each chunk arrived, on the point's clock."""
        run = np.cumsum(self.ticks, dtype=np.int64)
        before = np.concatenate(([0], run))[self.first]
        arrived: Floats = self.start_s[self.owner] + (run - before[self.owner]) * TICK_S
        return arrived


def level_metrics(records: Iterable[RequestRecord], window_start_s: float, window_end_s: float) -> LevelMetrics:
    """The figures of one point.

    Args:
        records: every request of one attempt at the point, warm-up and drain included.
        window_start_s, window_end_s: the measuring window on the point's clock.
    """
    # In one order, so that figures recomputed from disk are equal to the last bit.
    table = _Table(sorted(records, key=lambda r: (r.start_s, r.index)))
    length_s = window_end_s - window_start_s
    in_window = (table.due_s >= window_start_s) & (table.due_s < window_end_s)
    failed = ~table.ok & (table.start_s < window_end_s) & (table.end_s >= window_start_s)
    good = in_window & table.ok
    sums: dict[str, Any] = {
        "requests": int(in_window.sum()),
        "errors": int(failed.sum()),
        "duration_s": max(0.0, length_s),
        "window_start_s": window_start_s,
        "window_end_s": window_end_s,
        "error_classes": dict(Counter(str(table.records[i].error) for i in np.flatnonzero(failed))),
    }
    figures: dict[str, Any] = {}
    if length_s > 0 and table.records:
        figures |= _throughput(table, window_start_s, window_end_s)
        figures |= _load(table, in_window, window_start_s, window_end_s)
    return LevelMetrics(**sums, **figures, **_latencies(table, good), **_counts(table, good))


def _throughput(table: _Table, start_s: float, end_s: float) -> dict[str, Any]:
    slice_s = (end_s - start_s) / SLICES
    at = np.floor((table.arrivals_s - start_s) / slice_s)
    inside = (at >= 0) & (at < SLICES)
    tokens = np.bincount(at[inside].astype(np.int64), weights=table.tokens[inside], minlength=SLICES)
    rates: Floats = (tokens / slice_s).astype(np.float64)
    mean = float(rates.mean())
    if mean == 0:
        return {"output_tok_per_s": 0.0}
    around = rates - mean
    # Slices that hold equally many tokens differ by rounding errors, which would seem to move together.
    spread = 0.0 if np.allclose(around, 0, atol=1e-9 * mean) else float(around @ around)
    autocorrelation = float(around[1:] @ around[:-1]) / spread if spread > 0 else 0.0
    # Neighbouring slices that move together tell less than independent ones: the interval widens accordingly.
    widening = np.sqrt((1 + autocorrelation) / (1 - autocorrelation)) if autocorrelation > 0 else 1.0
    half = float(scipy.stats.t.ppf(0.5 + CONFIDENCE / 2, SLICES - 1) * rates.std(ddof=1) / np.sqrt(SLICES) * widening)
    line = scipy.stats.linregress(np.arange(SLICES), rates) if spread > 0 else None
    return {
        "output_tok_per_s": mean,
        "output_tok_per_s_low": max(0.0, mean - half),
        "output_tok_per_s_high": mean + half,
        "window_slope": float(line.slope) * SLICES / mean if line else 0.0,
        "slope_p": float(line.pvalue) if line else 1.0,
        "window_autocorrelation": autocorrelation,
    }


def _load(table: _Table, in_window: NDArray[np.bool_], start_s: float, end_s: float) -> dict[str, Any]:
    delays = (table.sent_s - table.start_s)[in_window]
    arrived, answered = table.arrivals_s, table.chunks > 0
    first = table.first[answered]
    last = first + table.chunks[answered] - 1
    return {
        "in_flight_mean": _mean_count(table.sent_s, table.end_s, start_s, end_s),
        "decode_batch_mean": _mean_count(arrived[first], arrived[last], start_s, end_s),
        "send_delay_p99_s": quantile(np.sort(delays), 0.99),
    }


def _mean_count(began_s: Floats, ended_s: Floats, start_s: float, end_s: float) -> float:
    """How many intervals [began, ended) hold at a moment of the window, on average over it."""
    overlap = np.minimum(ended_s, end_s) - np.maximum(began_s, start_s)
    return float(np.maximum(overlap, 0.0).sum() / (end_s - start_s))


def _latencies(table: _Table, good: NDArray[np.bool_]) -> dict[str, Any]:
    answered = good & (table.chunks > 0)
    first = table.first[answered]
    ttft = (table.ticks[first] * TICK_S).astype(np.float64)
    tpot, slow = _tpot(table, answered)
    e2e = (table.end_s - table.start_s)[good]
    low, high = _median_interval(tpot)
    figures: dict[str, Any] = {
        **_quantiles("ttft", ttft, np.sort(ttft), spans(table.due_s[answered])),
        **_quantiles("tpot", tpot, np.sort(tpot), spans(table.due_s[answered][slow])),
        **_quantiles("e2e", e2e, np.sort(e2e), spans(table.due_s[good])),
        **_gaps(table, good),
        "tpot_p50_s_low": low,
        "tpot_p50_s_high": high,
    }
    ends = (("", ""), ("_low", "_high"), ("_high", "_low"))
    figures |= {f"user_tok_per_s{end}": _inverse(figures[f"tpot_p50_s{other}"]) for end, other in ends}
    chunks = int(table.chunks[good].sum())
    figures["tokens_per_chunk"] = float(table.tokens[good[table.owner]].sum() / chunks) if chunks else None
    return figures


def _gaps(table: _Table, good: NDArray[np.bool_]) -> dict[str, Any]:
    """Those of one request, and those of one moment, move together."""
    later = good[table.owner]  # a copy
    later[table.first[table.chunks > 0]] = False
    ticks = table.ticks[later]
    ordered = in_order(ticks)
    groupings = spans(table.arrivals_s[later]), table.owner[later]
    figures = _quantiles("gap", ticks, ordered, *groupings) | {"gap_max_s": ordered[-1] if ordered.size else None}
    return {column: None if value is None else float(value) * TICK_S for column, value in figures.items()}


def _quantiles(name: str, values: Numbers, ordered: Numbers, *groupings: Groups) -> dict[str, Any]:
    """Median and p99 with their intervals, by column."""
    figures: dict[str, Any] = {}
    for percent in (50, 99):
        low, high = quantile_interval(values, ordered, percent / 100, groupings)
        column = f"{name}_p{percent}_s"
        figures |= {column: quantile(ordered, percent / 100), f"{column}_low": low, f"{column}_high": high}
    return figures


def _inverse(value: float | None) -> float | None:
    return 1 / value if value else None


def _tpot(table: _Table, answered: NDArray[np.bool_]) -> tuple[Floats, NDArray[np.bool_]]:
    """Seconds per token after the first chunk, and which of the requests have such tokens."""
    ticks = np.bincount(table.owner, weights=table.ticks, minlength=len(table.records))[answered]
    tokens = np.bincount(table.owner, weights=table.tokens, minlength=len(table.records))[answered]
    first = table.first[answered]
    seconds = (ticks - table.ticks[first]) * TICK_S
    later = tokens - table.tokens[first]
    some = later > 0
    tpot: Floats = seconds[some] / later[some]
    return tpot, some


def _counts(table: _Table, good: NDArray[np.bool_]) -> dict[str, Any]:
    measured = [table.records[i] for i in np.flatnonzero(good)]
    verified = [r for r in measured if r.verify_steps]
    cached = [r.cached_tokens for r in table.records if r.cached_tokens is not None]
    tokens = np.array([r.output_tokens for r in verified], dtype=float)
    steps = np.array([r.verify_steps for r in verified], dtype=float)
    due_s = np.array([r.start_s if r.scheduled_s is None else r.scheduled_s for r in verified], dtype=float)
    low, high = ratio_interval(tokens, steps, (spans(due_s), np.arange(len(verified))))
    return {
        "accept_len": float(tokens.sum() / steps.sum()) if verified else None,
        "accept_len_low": low,
        "accept_len_high": high,
        "cached_tokens": sum(cached) if cached else None,
        "degenerate": sum(r.degenerate for r in measured),
        "inexact": sum(not r.tokens_exact for r in measured),
        "prompt_tokens": sum(r.prompt_tokens or 0 for r in table.records),
        "total_tokens": sum(r.output_tokens for r in table.records),
    }


def _median_interval(values: Floats) -> tuple[float | None, float | None]:
    """Distribution-free interval of the median, from order statistics."""
    if values.size < _MIN_FOR_INTERVAL:
        return None, None
    interval: Any = scipy.stats.quantile_test(values, p=0.5).confidence_interval(CONFIDENCE)
    return float(interval.low), float(interval.high)
