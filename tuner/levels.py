"""The rows of a run as levels: one variant at one concurrency, over its usable repeats.

Only usable rows count. Means over repeats are geometric where they are rates; the decode batch is what clients saw.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable

import msgspec
import numpy as np
import scipy

from harness.records import LevelRow, Manifest, Variant


class Level(msgspec.Struct, frozen=True):
    """One variant at one concurrency, over its usable repeats.

    Attributes:
        batch: mean decode batch, in requests; the concurrency where the server does not report it.
        batch_measured: whether `batch` is the server's own figure.
        repeats: number of usable repeats.
        tok_per_s: output throughput, geometric mean over repeats; `_low` and `_high` are its 95 % interval.
        tpot_s: median time per output token, mean over repeats, with its 95 % interval; None where undefined.
        ttft_s: median time to first token, mean over repeats, with its 95 % interval.
        user_tok_per_s: speed one user sees, tokens per second.
        accept_len: tokens per verify step.
    """

    variant: Variant
    concurrency: int
    batch: float
    batch_measured: bool
    repeats: int
    tok_per_s: float
    tok_per_s_low: float
    tok_per_s_high: float
    tpot_s: float | None = None
    tpot_s_low: float | None = None
    tpot_s_high: float | None = None
    ttft_s: float | None = None
    ttft_s_low: float | None = None
    ttft_s_high: float | None = None
    user_tok_per_s: float | None = None
    accept_len: float | None = None


def reference_among(variants: Collection[Variant], preferred: Variant | None = None) -> Variant | None:
    """What an operator would otherwise run, of these variants; None where none of them is that."""
    wanted: tuple[Variant | None, ...] = (preferred, "baseline", "baseline_no_overlap")
    return next((variant for variant in wanted if variant in variants), None)


def reference_in(manifest: Manifest, measured: Collection[Variant]) -> Variant | None:
    """The reference of eagle3 by the manifest, if it is among what was measured; else any baseline that is."""
    record = manifest.variants.get("eagle3")
    return reference_among(measured, record.reference if record else None)


def usable(rows: Iterable[LevelRow]) -> list[LevelRow]:
    """The rows that may be used: done, verdict ok, with a throughput."""
    return [row for row in rows if row.usable and row.output_tok_per_s]


def levels(rows: Iterable[LevelRow]) -> dict[Variant, list[Level]]:
    """Per variant its levels, smallest concurrency first; of `dynamic`, those of its most measured threshold."""
    groups: dict[tuple[Variant, int], list[LevelRow]] = defaultdict(list)
    for row in _one_threshold(usable(rows)):
        groups[row.variant, row.concurrency].append(row)
    curves: dict[Variant, list[Level]] = defaultdict(list)
    for (variant, _), group in sorted(groups.items(), key=lambda item: item[0][1]):
        curves[variant].append(_level(group))
    return dict(curves)


def _one_threshold(rows: list[LevelRow]) -> list[LevelRow]:
    """Rows of `dynamic` only where they have the threshold that was measured at most levels, the latest of equals."""
    levels_of: dict[int | None, set[int]] = {}
    for row in reversed([row for row in rows if row.variant == "dynamic"]):
        levels_of.setdefault(row.threshold, set()).add(row.concurrency)
    if len(levels_of) < 2:
        return rows
    kept = max(levels_of, key=lambda threshold: len(levels_of[threshold]))
    return [row for row in rows if row.variant != "dynamic" or row.threshold == kept]


def table(rows: Iterable[LevelRow], variant: Variant) -> dict[int, dict[int, float]]:
    """Logarithm of the throughput of a variant's usable points, by concurrency and repeat."""
    values: dict[int, dict[int, float]] = defaultdict(dict)
    for row in usable(rows):
        if row.variant == variant and row.output_tok_per_s:
            values[row.concurrency][row.repeat] = math.log(row.output_tok_per_s)
    return dict(values)


def decode_batches(rows: Iterable[LevelRow], variants: Iterable[Variant]) -> tuple[dict[int, float], dict[int, bool]]:
    """Mean decode batch per concurrency over the given variants, and whether all of it was measured.

    The gate looks at the decode batch, which prefill, queueing and caps keep below the concurrency.
    """
    wanted = set(variants)
    found: dict[int, list[float | None]] = defaultdict(list)
    for row in rows:
        if row.variant in wanted:
            found[row.concurrency].append(row.decode_batch_mean)
    batches = {c: float(np.mean([float(c) if b is None else b for b in values])) for c, values in found.items()}
    return batches, {c: None not in values for c, values in found.items()}


def _level(group: list[LevelRow]) -> Level:
    first = group[0]
    rate, rate_low, rate_high = _mean_of(group, "output_tok_per_s")
    assert rate is not None  # of usable rows
    tpot_s, tpot_s_low, tpot_s_high = _mean_of(group, "tpot_p50_s")
    ttft_s, ttft_s_low, ttft_s_high = _mean_of(group, "ttft_p50_s")
    batches = [row.decode_batch_mean for row in group]
    return Level(
        variant=first.variant,
        concurrency=first.concurrency,
        batch=float(np.mean([first.concurrency if b is None else b for b in batches])),
        batch_measured=None not in batches,
        repeats=len(group),
        tok_per_s=rate,
        tok_per_s_low=rate if rate_low is None else rate_low,
        tok_per_s_high=rate if rate_high is None else rate_high,
        tpot_s=tpot_s,
        tpot_s_low=tpot_s_low,
        tpot_s_high=tpot_s_high,
        ttft_s=ttft_s,
        ttft_s_low=ttft_s_low,
        ttft_s_high=ttft_s_high,
        user_tok_per_s=_mean([row.user_tok_per_s for row in group]),
        accept_len=_mean([row.accept_len for row in group]),
    )


def _mean_of(group: list[LevelRow], column: str) -> tuple[float | None, float | None, float | None]:
    """Geometric mean of a figure and its 95 % interval: Student's over repeats, or the one point's own, if any."""
    rows = [row for row in group if getattr(row, column)]
    if not rows:
        return None, None, None
    logs = np.log([getattr(row, column) for row in rows])
    mean = float(np.exp(logs.mean()))
    if len(rows) > 1:
        half = float(scipy.stats.t.ppf(0.975, len(rows) - 1) * logs.std(ddof=1) / math.sqrt(len(rows)))
        return mean, mean * math.exp(-half), mean * math.exp(half)
    low, high = getattr(rows[0], f"{column}_low"), getattr(rows[0], f"{column}_high")
    return (mean, None, None) if low is None or high is None else (mean, low, high)


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
