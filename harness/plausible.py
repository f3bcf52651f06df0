"""Figures that no measurement can have given: what a damaged or hostile run folder may hold despite its right types.

A reader that lets NaN, a negative rate or 10 ** 30 chunks through answers nonsense later, or fails far from the file.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from harness.records import LevelRow, Manifest, PointKey, RequestRecord

MAX_FIGURE = 1e12  # seconds, tokens per second, counts: far beyond any real one, far within floating point
MIN_RATE = 1e-12  # the smallest that is not 0, of what goes through a logarithm
_MAX_CHUNK = 2**31 - 1  # metrics keep ticks and tokens of a chunk in 32 bits
MIN_WINDOW_S = 1e-9  # what 20 slices can be cut from; a point that was ended before its window has none
_RATES = ("output_tok_per_s", "user_tok_per_s", "tpot_p50_s")  # and the ends of their intervals
_SIGNED = frozenset({"threshold", "window_slope", "window_autocorrelation", "window_start_s", "window_end_s"})


def row_problem(row: LevelRow) -> str | None:
    """What is impossible in a row of levels.csv; None where nothing is."""
    if row.concurrency < 1:
        return f"concurrency is {row.concurrency}"
    for name in LevelRow.__struct_fields__:
        value = getattr(row, name)
        if isinstance(value, int | float) and not _possible(value, name in _SIGNED):
            return f"{name} is {value}"
        if name.startswith(_RATES) and value is not None and 0 < value < MIN_RATE:
            return f"{name} is {value}"
    length_s = row.window_end_s - row.window_start_s
    if length_s and length_s < MIN_WINDOW_S:
        return f"window_end_s is {length_s} s after window_start_s"
    if row.threshold is not None and row.threshold < -1:
        return f"threshold is {row.threshold}"
    return None


def record_problem(record: RequestRecord) -> str | None:
    """What is impossible in a line of requests.jsonl; None where nothing is."""
    if record.concurrency < 1:
        return f"concurrency is {record.concurrency}"
    for name in ("start_s", "end_s", "send_delay_s", "scheduled_s"):
        value = getattr(record, name)
        if value is not None and not _possible(value, signed=True):
            return f"{name} is {value}"
    for name in _COUNTS:
        value = getattr(record, name)
        if value is not None and not 0 <= value <= MAX_FIGURE:
            return f"{name} is {value}"
    return _chunk_problem(record)


_COUNTS = (
    *("repeat", "index", "attempt", "worker", "prompt_tokens", "planned_prompt_tokens", "output_tokens"),
    *("planned_output_tokens", "cached_tokens", "verify_steps"),
)


def manifest_problem(manifest: Manifest) -> str | None:
    """What in the untyped parts of a manifest is not as SpecPivot writes it; None where all is."""
    gpus, packages = manifest.environment.get("gpus", []), manifest.environment.get("packages", {})
    if not isinstance(gpus, list) or not all(isinstance(gpu, dict) for gpu in gpus):
        return "environment.gpus is no list of objects"
    if not isinstance(packages, dict):
        return "environment.packages is no object"
    if not all(1 <= level <= MAX_FIGURE for level in manifest.settings.concurrency):
        return "settings.concurrency holds an impossible level"
    return None


def repeated_point(rows: Iterable[LevelRow]) -> PointKey | None:
    """A point that has two rows; None where each has one."""
    seen: set[PointKey] = set()
    for row in rows:
        if row.key in seen:
            return row.key
        seen.add(row.key)
    return None


def _possible(value: float, signed: bool) -> bool:
    return math.isfinite(value) and abs(value) <= MAX_FIGURE and (signed or value >= 0)


def _chunk_problem(record: RequestRecord) -> str | None:
    ticks, tokens = record.chunk_ticks, record.chunk_tokens
    if tokens is not None and len(tokens) != len(ticks):
        return f"it has {len(ticks)} chunk_ticks and {len(tokens)} chunk_tokens"
    for name, values in (("chunk_ticks", ticks), ("chunk_tokens", tokens)):
        if values and not 0 <= min(values) <= max(values) <= _MAX_CHUNK:
            return f"{name} holds {min(values)} to {max(values)}"
    return None
