"""What calibration reads from measured run folders: one point per variant and concurrency, medians over repeats."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from harness.errors import UserError
from harness.records import LevelRow, ServerRecord, Variant
from harness.runfolder import RunFolder

T = TypeVar("T")


class Point(msgspec.Struct, frozen=True):
    """A measured point.

    Attributes:
        gap_p50_s: median time between chunks, per decode step (a server with a stream interval puts several in one).
        accept_len: None where nothing speculated.
    """

    output_tok_per_s: float
    ttft_p50_s: float
    gap_p50_s: float
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
        for variant in sorted({row.variant for row in rows} - set(points)):
            points[variant] = _points([row for row in rows if row.variant == variant])
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


def _points(rows: Sequence[LevelRow]) -> dict[int, Point]:
    levels = sorted({row.concurrency for row in rows})
    return {level: _point([row for row in rows if row.concurrency == level]) for level in levels}


def _point(rows: Sequence[LevelRow]) -> Point:
    throughput = _median(row.output_tok_per_s for row in rows)
    ttft = _median(row.ttft_p50_s for row in rows)
    gap = _median(row.gap_p50_s for row in rows)
    if throughput is None or ttft is None or gap is None:
        raise UserError(f"{rows[0].key} has no throughput, ttft or gap; measure it with streamed answers")
    accept_len = _median(row.accept_len for row in rows)
    steps_per_chunk = max(1, round((_median(row.tokens_per_chunk for row in rows) or 1.0) / (accept_len or 1.0)))
    return Point(throughput, ttft, gap / steps_per_chunk, accept_len)


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
