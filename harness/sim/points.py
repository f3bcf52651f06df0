"""What calibration reads from measured run folders: one point per variant and concurrency, medians over repeats."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from harness.errors import UserError
from harness.records import TICK_S, LevelRow, PointKey, RequestRecord, ServerRecord, Variant
from harness.runfolder import RunFolder
from harness.verify import records_by_point

T = TypeVar("T")


class Point(msgspec.Struct, frozen=True):
    """A measured point.

    Attributes:
        step_s: a decode step that no prefill holds up.
        accept_len: None where nothing speculated.
    """

    output_tok_per_s: float
    ttft_p50_s: float
    step_s: float
    accept_len: float | None


class Measured(msgspec.Struct, frozen=True):
    """Run folders of one machine, model, draft and workload, taken together.

    Attributes:
        range_ratio: spread of the request lengths around input_tokens and output_tokens.
        spread_s: seconds over which users started, half of the warm-up.
        points: by variant and concurrency.
        servers: the server that played each variant, as its manifest has it.
    """

    runs: tuple[str, ...]
    input_tokens: int
    output_tokens: int
    range_ratio: float
    spread_s: float
    gpu: str
    points: dict[Variant, dict[int, Point]]
    servers: dict[Variant, ServerRecord]

    def at(self, variant: Variant, concurrency: Sequence[int]) -> dict[int, Point]:
        """The points of `variant` at just these concurrencies.

        Raises:
            UserError: one is missing.
        """
        found = self.points.get(variant, {})
        if missing := [level for level in concurrency if level not in found]:
            raise UserError(
                f"no usable {variant} point at C={missing[0]} in {', '.join(self.runs)}; name a run that has it too"
            )
        return {level: found[level] for level in concurrency}


def read_measured(folders: Sequence[Path]) -> Measured:
    """Read run folders. Each variant is taken from the first that has usable points of it, whole: further folders fill
    what the first lacks (the reference without overlap, say), and medians never mix servers.

    Raises:
        UserError: one is no run, not measured, or of another workload or GPU than the first.
    """
    if not folders:
        raise UserError("no run folder was given; name one made by sweep")
    runs = [RunFolder(folder) for folder in folders]
    for run in runs:
        if run.manifest.source != "measured":
            raise UserError(f"{run.path} is {run.manifest.source}; a preset is made from measured runs only")
    lengths = _same(runs, "request lengths", _lengths)
    gpu = _same(runs, "GPU", _gpu)
    points: dict[Variant, dict[int, Point]] = {}
    servers: dict[Variant, ServerRecord] = {}
    for run in runs:
        rows = [row for row in run.levels() if row.usable]
        records = records_by_point(run, rows)
        for variant in sorted({row.variant for row in rows} - set(points)):
            points[variant] = _points([row for row in rows if row.variant == variant], records)
            record = run.manifest.variants.get(variant)
            if record is not None and record.server_run in run.manifest.servers:
                servers[variant] = run.manifest.servers[record.server_run]
    spread_s = runs[0].manifest.settings.warmup_s / 2
    return Measured(tuple(run.path.resolve().name for run in runs), *lengths, spread_s, gpu, points, servers)


def _same(runs: Sequence[RunFolder], what: str, of: Callable[[RunFolder], T]) -> T:
    values = [of(run) for run in runs]
    for run, value in zip(runs, values, strict=True):
        if value != values[0]:
            raise UserError(f"{run.path} has {what} {value}, {runs[0].path} has {values[0]}; calibrate them apart")
    return values[0]


def _lengths(run: RunFolder) -> tuple[int, int, float]:
    workload = run.manifest.workload
    if workload.input_tokens is None or workload.output_tokens is None:
        raise UserError(f"{run.path} has no one request length; a preset is made from runs of random requests")
    return workload.input_tokens, workload.output_tokens, workload.range_ratio or 0.0


def _gpu(run: RunFolder) -> str:
    gpus = run.manifest.environment.get("gpus") or [{"name": "unknown GPU"}]
    return str(gpus[0]["name"])


def _points(rows: Sequence[LevelRow], records: Mapping[PointKey, Sequence[RequestRecord]]) -> dict[int, Point]:
    levels = sorted({row.concurrency for row in rows})
    return {level: _point([row for row in rows if row.concurrency == level], records) for level in levels}


def _point(rows: Sequence[LevelRow], records: Mapping[PointKey, Sequence[RequestRecord]]) -> Point:
    throughput = _median(row.output_tok_per_s for row in rows)
    ttft = _median(row.ttft_p50_s for row in rows)
    step = _median(_step_s(row, records[row.key]) for row in rows)
    if throughput is None or ttft is None or step is None:
        raise UserError(f"{rows[0].key} has no throughput, ttft or gaps; measure it with streamed answers")
    return Point(throughput, ttft, step, _median(row.accept_len for row in rows))


def _step_s(row: LevelRow, records: Sequence[RequestRecord]) -> float | None:
    """The decode step of one repeat; a server with a stream interval puts several into one chunk."""
    inside = [record for record in records if record.ok and record.start_s >= (row.window_start_s or 0.0)]
    gaps_s = np.array([tick for record in inside for tick in record.chunk_ticks[1:]]) * TICK_S
    if not gaps_s.size or row.output_tok_per_s is None:
        return None
    requests_per_s = row.output_tok_per_s / statistics.fmean(record.output_tokens for record in inside)
    steps_per_chunk = max(1, round((row.tokens_per_chunk or 1.0) / (row.accept_len or 1.0)))
    return undisturbed_s(gaps_s, requests_per_s) / steps_per_chunk


def undisturbed_s(gaps_s: NDArray[np.float64], requests_per_s: float) -> float:
    """The median of those gaps between chunks in which nothing was prefilled.

    Where requests arrive at random, a gap of g seconds holds no arrival with probability exp(-g * requests_per_s), and
    gaps without a prefill are the shortest. Half of their share is the quantile that is their median. (The median of
    all gaps is that of a decode step at low load only: at a high one most gaps hold a prefill.)

    Args:
        gaps_s: at least one.
        requests_per_s: how often a request arrives.
    """
    ordered = np.sort(gaps_s)
    reached = (np.arange(ordered.size) + 0.5) / ordered.size >= np.exp(-requests_per_s * ordered) / 2
    return float(ordered[int(np.argmax(reached))])


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
