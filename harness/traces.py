"""Recorded traffic to replay: arrival times and lengths from the public trace formats.

Mooncake JSONL (timestamp in ms, input_length, output_length, hash_ids of 512-token prefix blocks), BurstGPT CSV and
Azure LLM inference CSV. Traces hold no text: prompts are random ids of the recorded length, and requests that shared
prefix blocks in a Mooncake trace share them again.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from harness.api import PlannedRequest
from harness.config import MAX_TOKENS
from harness.errors import UserError
from harness.workload import WorkloadPlan, draw_ids, encode_body

BLOCK_TOKENS = 512
_LOOK = 256  # characters that tell JSON lines from CSV


class TraceRow(msgspec.Struct, frozen=True):
    """One recorded request.

    Attributes:
        at_s: arrival, in seconds since the trace's first.
        blocks: ids of its prefix blocks of BLOCK_TOKENS tokens; () where the trace has none.
    """

    at_s: float
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()


def read_trace(path: Path, speedup: float = 1.0) -> list[TraceRow]:
    """Read a trace, oldest arrival first.

    Args:
        path: Mooncake JSON lines, or a BurstGPT or Azure CSV; told by what is in it.
        speedup: divides all times.

    Raises:
        UserError: it cannot be read, or a line is none of the formats.
    """
    try:
        with path.open(newline="", encoding="utf-8") as lines:
            is_json = lines.read(_LOOK).lstrip().startswith("{")
            lines.seek(0)
            rows = list(_mooncake(path, lines) if is_json else _csv(path, lines))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"cannot read the trace {path}: {error}; give a JSON-lines or CSV trace") from error
    if not rows:
        raise UserError(f"the trace {path} holds no request")
    first = min(row.at_s for row in rows)
    moved = (msgspec.structs.replace(row, at_s=(row.at_s - first) / speedup) for row in rows)
    return sorted(moved, key=lambda row: row.at_s)


def replay(rows: list[TraceRow], plan: WorkloadPlan, repeat: int) -> Iterator[PlannedRequest]:
    """The trace's requests, each with the time when it is due.

    Args:
        rows: from `read_trace`.
        plan: API, sampling and seed; its lengths are the trace's.
        repeat: changes the ids, not the times.
    """
    salt = f"{plan.seed}/trace/{repeat}"
    for index, row in enumerate(rows):
        ids: list[int] = []
        for block in row.blocks:
            ids += draw_ids(plan, f"{salt}/block/{block}", BLOCK_TOKENS)
        missing = row.input_tokens - len(ids)
        ids = ids[: row.input_tokens] if missing <= 0 else ids + draw_ids(plan, f"{salt}/{index}", missing)
        expected = row.output_tokens if plan.ignore_eos else None
        yield PlannedRequest(index, encode_body(plan, ids, row.output_tokens), len(ids), expected, row.at_s)


def _mooncake(path: Path, lines: Iterator[str]) -> Iterator[TraceRow]:
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield _row(path, number, _from_mooncake, json.loads, line)


def _from_mooncake(entry: Mapping[str, Any]) -> TraceRow:
    blocks = tuple(int(block) for block in entry.get("hash_ids", ()))
    return TraceRow(float(entry["timestamp"]) / 1000, int(entry["input_length"]), int(entry["output_length"]), blocks)


def _csv(path: Path, lines: Iterator[str]) -> Iterator[TraceRow]:
    table = csv.DictReader(lines)
    for number, entry in enumerate(table, start=2):
        yield _row(path, number, _from_csv, dict, entry)


def _from_csv(entry: Mapping[str, str]) -> TraceRow:
    if "TIMESTAMP" in entry:
        at_s = datetime.fromisoformat(entry["TIMESTAMP"].strip()[:26]).timestamp()
        return TraceRow(at_s, int(entry["ContextTokens"]), int(entry["GeneratedTokens"]))
    return TraceRow(float(entry["Timestamp"]), int(entry["Request tokens"]), int(entry["Response tokens"]))


def _row(path: Path, number: int, make: Callable[[Any], TraceRow], load: Callable[[Any], Any], line: Any) -> TraceRow:
    try:
        row = make(load(line))
        if not math.isfinite(row.at_s) or max(row.input_tokens, row.output_tokens) > MAX_TOKENS:
            raise ValueError("a time that is none, or too many tokens")
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        what = f"{path}:{number} is no Mooncake, BurstGPT or Azure entry ({error!r})"
        raise UserError(f"{what}; mend or remove the line") from error
    return msgspec.structs.replace(row, input_tokens=max(1, row.input_tokens), output_tokens=max(1, row.output_tokens))
