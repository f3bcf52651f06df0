"""What any threshold would have brought on recorded traffic: `specpivot recommend --trace FILE`.

A trace has one record per decode step (`patched_worker.steptrace`). Where the autopilot ran, also in dry-run, blocks in
both states stand side by side at the same batch; the worker's own estimator makes the gain curve from them and forgets
nothing. A trace of a server whose threshold was set now and then will do where both states came at the same batches.
Time spent at each batch is taken as given, since users decide it; only decode time counts, and what speculation saves
in prefills is taken for decode time that it saves.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from harness.errors import UserError
from harness.regular import require_regular
from patched_worker.autopilot_curve import INTERVAL_Z, Curve, curve_of
from patched_worker.autopilot_evidence import ACCEPT, COST, Evidence, compared
from patched_worker.steptrace import RECORD, TRACE_KIND, TRACE_SCHEMA, StepRecord, unpacked
from patched_worker.switchback import bin_of

CHUNKS = 4  # of unpaired steps at one half octave, compared one by one
CHUNK_STEPS = 32
CANDIDATES = (0, 1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
MIN_TRIPLES = 4


class Candidate(msgspec.Struct, frozen=True):
    """A threshold (None: never disable) and the tokens per second of decode time expected with it, with 90 %."""

    threshold: int | None
    tok_per_s: float
    low: float
    high: float


class Gain(msgspec.Struct, frozen=True):
    """Throughput on / off at a batch, with its 90 % interval."""

    batch: float
    ratio: float
    low: float
    high: float


class Replay(msgspec.Struct, frozen=True):
    """What a trace says.

    Attributes:
        threshold: the best one; None: never disable, as far as the trace goes.
        interval: 90 % interval of the pivot; None at an end that lies beyond the trace's batches.
        largest_batch: that the trace has measured.
        comparisons: of both states at one batch.
        paired: whether they are blocks that the autopilot alternated.
    """

    trace: str
    steps: int
    decode_s: float
    threshold: int | None
    interval: tuple[int | None, int | None]
    accept_len: float
    largest_batch: int
    comparisons: int
    paired: bool
    candidates: tuple[Candidate, ...]
    gains: tuple[Gain, ...]
    warnings: tuple[str, ...] = ()


def read_trace(file: Path) -> list[StepRecord]:
    """The records of a trace; a last one that was cut short is left out.

    Raises:
        UserError: it is missing, no regular file, no trace, of another schema, damaged or empty.
    """
    try:
        body = require_regular(file).read_bytes()
    except OSError as error:
        raise UserError(f"cannot read the trace {file}: {error.strerror}") from error
    first, newline, rest = body.partition(b"\n")
    try:
        header = json.loads(first) if newline else None
    except ValueError:
        header = None
    if not isinstance(header, dict) or header.get("kind") != TRACE_KIND:
        raise UserError(f"{file} is no step trace; give a file that --speculative-trace-file wrote")
    if header.get("schema") != TRACE_SCHEMA:
        raise UserError(
            f"{file} has schema {header.get('schema')}, this SpecPivot reads {TRACE_SCHEMA}; record it again"
        )
    records = unpacked(rest[: len(rest) // RECORD.size * RECORD.size])
    for index, record in enumerate(records):
        times = record.seconds, record.prefill_s
        if record.batch < 1 or not all(math.isfinite(value) and value >= 0 for value in times):
            raise UserError(f"{file} is damaged at step {index}: {record}; record it again")
    if not records:
        raise UserError(f"{file} holds no step yet; let the server decode some requests first")
    return records


def replay(records: Sequence[StepRecord], name: str) -> Replay:
    """Expected throughput of every candidate, and the best threshold.

    Raises:
        UserError: the trace does not hold both states at the same batches.
    """
    evidence = gathered(records)
    paired = evidence.triples >= MIN_TRIPLES
    if not paired:
        compare_unpaired(evidence, records)
    curve = curve_of(evidence)
    if curve is None or evidence.triples < MIN_TRIPLES:
        raise UserError(
            f"{name} holds too few steps of both states at the same batch; record with the threshold `auto`, or with "
            "--speculative-auto-dry-run if it must not move"
        )
    pivot, (low, high) = curve.best_cut(), curve.interval()
    top = round(2**curve.high)
    open_end = curve.points[-1].octave
    best = None if pivot >= open_end else _batch(pivot)
    candidates = _candidates(records, curve, best)
    return Replay(
        trace=name,
        steps=len(records),
        decode_s=sum(record.seconds for record in records),
        threshold=best,
        interval=(_batch(low), None if high >= open_end else _batch(high)),
        accept_len=evidence.accept.mean,
        largest_batch=top,
        comparisons=evidence.triples,
        paired=paired,
        candidates=candidates,
        gains=tuple(_gain(curve, place.octave) for place in evidence.places if place.cost.count >= 2),
        warnings=_warnings(records, paired, best, top),
    )


def gathered(records: Sequence[StepRecord]) -> Evidence:
    """The autopilot's evidence over a whole trace: nothing is forgotten, nothing counts as broken."""
    accept, cost = (replace(kind, half_life_s=math.inf, break_sigmas=math.inf) for kind in (ACCEPT, COST))
    evidence = Evidence(accept, cost, prefill_memory=1.0)
    for record in records:
        evidence.add(record)
    evidence.now_s = evidence.context = 0.0  # age and context of a place are no reason to doubt it here
    return evidence


def compare_unpaired(evidence: Evidence, records: Sequence[StepRecord]) -> None:
    """Compare the two states at each half octave where both came, in the order they came."""
    groups: dict[tuple[int, bool], list[StepRecord]] = defaultdict(list)
    for record in records:
        groups[bin_of(record.batch), record.drafts > 0].append(record)
    for place in sorted({place for place, _ in groups}):
        on, off = groups.get((place, True), []), groups.get((place, False), [])
        if min(len(on), len(off)) < CHUNKS * CHUNK_STEPS:
            continue
        for part_on, part_off in zip(_chunks(on), _chunks(off), strict=True):
            triple = compared(part_on, part_off)
            if triple is not None:
                evidence.learn(triple)


def _chunks(records: list[StepRecord]) -> list[list[StepRecord]]:
    size = len(records) // CHUNKS
    return [records[i * size : (i + 1) * size] for i in range(CHUNKS)]


def _candidates(records: Sequence[StepRecord], curve: Curve, best: int | None) -> tuple[Candidate, ...]:
    top = max(record.batch for record in records)
    wanted = sorted({t for t in CANDIDATES if t < top} | ({best} if best is not None else set()))
    spent = _by_batch(records)
    return tuple(_expected(spent, curve, threshold) for threshold in [*wanted, None])


def _by_batch(records: Sequence[StepRecord]) -> dict[tuple[int, bool], tuple[float, int]]:
    """Seconds and tokens per batch and state."""
    found: dict[tuple[int, bool], tuple[float, int]] = {}
    for record in records:
        key = record.batch, record.drafts > 0
        seconds, tokens = found.get(key, (0.0, 0))
        found[key] = seconds + record.seconds, tokens + record.tokens
    return found


def _expected(spent: dict[tuple[int, bool], tuple[float, int]], curve: Curve, threshold: int | None) -> Candidate:
    """Tokens per second if every second had been spent in the state that the threshold wants at its batch."""
    seconds_all, tokens_all = 0.0, [0.0, 0.0, 0.0]
    for (batch, on), (seconds, tokens) in spent.items():
        seconds_all += seconds
        wanted = threshold is None or batch <= threshold
        point = curve.at(math.log2(batch))
        way = float(wanted) - float(on)  # 1: it would have been on instead of off
        for index, z in enumerate((0.0, -INTERVAL_Z, INTERVAL_Z)):
            tokens_all[index] += tokens * math.exp(way * point.gain + z * abs(way) * point.se)
    mean, low, high = (value / seconds_all for value in tokens_all)
    return Candidate(threshold, round(mean, 1), round(low, 1), round(high, 1))


def _gain(curve: Curve, octave: float) -> Gain:
    point = curve.at(octave)
    low, high = (math.exp(point.gain + z * point.se) for z in (-INTERVAL_Z, INTERVAL_Z))
    return Gain(round(2**octave, 1), round(math.exp(point.gain), 4), round(low, 4), round(high, 4))


def _batch(octave: float) -> int | None:
    if octave == math.inf:
        return None
    return 0 if octave == -math.inf else max(1, math.floor(2**octave + 1e-9))


def _warnings(records: Sequence[StepRecord], paired: bool, best: int | None, top: int) -> tuple[str, ...]:
    found = []
    if not paired:
        found.append(
            "the trace has no alternating blocks: both states were compared over all the time at their batch, so what"
            " drifted between them is in the answer"
        )
    if best is None:
        found.append(f"speculation gains at every batch that was measured (up to {top}); beyond, nothing is known")
    if best == 0:
        smallest = min(record.batch for record in records)
        found.append(f"speculation loses at every batch that was measured (from {smallest}); below, nothing is known")
    return tuple(found)


def in_words(found: Replay) -> list[str]:
    """The answer in sentences."""
    best = "never disable speculation" if found.threshold is None else f"a threshold of {found.threshold}"
    if found.threshold == 0:
        best = "never speculate"
    low, high = found.interval
    chosen = next(c for c in found.candidates if c.threshold == found.threshold)
    always, never = found.candidates[-1], found.candidates[0]
    return [
        f"{found.trace}: {found.steps} decode steps in {found.decode_s:.0f} s, {found.comparisons} comparisons"
        f" of both states at one batch, {found.accept_len:.2f} tokens per speculative step",
        f"best on this traffic: {best} (pivot {low} to {'beyond' if high is None else high}, 90 %):"
        f" {chosen.tok_per_s:,.0f} tokens per second of decode time ({chosen.low:,.0f} to {chosen.high:,.0f})",
        f"always speculating: {always.tok_per_s:,.0f}; never: {never.tok_per_s:,.0f}",
    ]
