"""What calibration reads from measured run folders: one point per variant and concurrency.

A preset is of a server that nothing disturbs. What disturbs one (the host's other work: a prefill that the scheduler
launches kernel by kernel takes twice as long on a crowded core) only ever slows it, so of all repeats of a point the
one with the quickest steps is taken, as timeit does, and not their median.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from harness.errors import UserError
from harness.records import SPECULATIVE_VARIANTS, TICK_S, LevelRow, RequestRecord, ServerRecord, Variant
from harness.runfolder import RunFolder
from harness.verify import records_by_point

T = TypeVar("T")
Repeat = tuple[LevelRow, Sequence[RequestRecord]]


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
    """Read run folders.

    Each variant is taken from the first that has usable points of it, and from every other folder whose server of that
    variant was the same; other servers are left out.

    Raises:
        UserError: one is no run, not measured, or of another workload, beginning or GPU than the first.
    """
    if not folders:
        raise UserError("no run folder was given; name one made by sweep")
    runs = [RunFolder(folder) for folder in folders]
    for run in runs:
        if run.manifest.source != "measured":
            raise UserError(f"{run.path} is {run.manifest.source}; a preset is made from measured runs only")
    lengths = _same(runs, "request lengths", _lengths)
    _same(runs, "requests found under way", lambda run: run.manifest.workload.under_way)
    gpu = _same(runs, "GPU", _gpu)
    servers: dict[Variant, ServerRecord] = {}
    same: dict[Variant, Hashable] = {}
    repeats: dict[Variant, dict[int, list[Repeat]]] = {}
    for run in runs:
        rows = [row for row in run.levels() if row.usable]
        records = records_by_point(run, rows)
        for variant in sorted({row.variant for row in rows}):
            server = _server(run, variant)
            identity = str(run.path) if server is None else _identity(server, variant)
            if same.setdefault(variant, identity) != identity:
                continue
            if server is not None:
                servers.setdefault(variant, server)
            for row in rows:
                if row.variant == variant:
                    repeats.setdefault(variant, {}).setdefault(row.concurrency, []).append((row, records[row.key]))
    points = {variant: {at: _point(levels[at]) for at in sorted(levels)} for variant, levels in repeats.items()}
    spread_s = runs[0].manifest.settings.warmup_s / 2
    return Measured(tuple(run.path.resolve().name for run in runs), *lengths, spread_s, gpu, points, servers)


def _server(run: RunFolder, variant: Variant) -> ServerRecord | None:
    record = run.manifest.variants.get(variant)
    return run.manifest.servers.get(record.server_run) if record is not None and record.server_run else None


def _identity(server: ServerRecord, variant: Variant) -> Hashable:
    """What servers that play `variant` must have in common to be the same one at another time: version, arguments and
    SGLang's variables; those of the drafts that it pretends to accept mean nothing where there are none."""
    ignored = "-" if variant in SPECULATIVE_VARIANTS else "SGLANG_SIMULATE_ACC_"
    names = [name for name in server.env if name.startswith("SGLANG_") and not name.startswith(ignored)]
    return server.version, server.arguments, repr(server.server_args), tuple((n, server.env[n]) for n in sorted(names))


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


def _point(repeats: Sequence[Repeat]) -> Point:
    """The repeat with the most steps per second: tokens alone would choose the luckiest drafts."""
    row, records = max(repeats, key=lambda repeat: (repeat[0].output_tok_per_s or 0.0) / (repeat[0].accept_len or 1.0))
    step_s = decode_step_s(row, records)
    if row.output_tok_per_s is None or row.ttft_p50_s is None or step_s is None:
        raise UserError(f"{row.key} has no throughput, ttft or gaps; measure it with streamed answers")
    return Point(row.output_tok_per_s, row.ttft_p50_s, step_s, row.accept_len)


def decode_step_s(row: LevelRow, records: Sequence[RequestRecord]) -> float | None:
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
