"""Does levels.csv say what requests.jsonl holds, and do client, server and worker agree on the tokens?

Every figure that comes from requests is computed again. Token counts are compared per point: the client's sum, the
difference of the server's /metrics counter, and the patched worker's decode tokens, which lack the first token of each
request because a prefill makes it. All three are of the whole point: read while the server is idle before the first
request and after the last, and summed over every request of the attempt.

The measuring window and the proof of what ran stand in levels.csv alone. Where a row is lost, its figures are made
again for the planned window, and the row says row_lost: it is not used, and resume measures the point again.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec

from harness.checks import judge, sent_share
from harness.levelsfile import as_written
from harness.load_plan import ClientStats
from harness.metrics import LevelMetrics, level_metrics
from harness.records import LevelRow, PointKey, RequestRecord
from harness.runfolder import RunFolder, RunWriter

REL_TOLERANCE = 1e-5  # levels.csv holds seven digits
# Rows of a run that was begun before these columns came may have none of them, and stay as they are.
ADDED_INTERVALS = tuple(
    name
    for name in LevelRow.__struct_fields__
    if name.endswith(("_low", "_high")) and not name.startswith(("output_tok_per_s", "tpot_p50_s"))
)


class VerifyReport(msgspec.Struct, frozen=True):
    """What verify found.

    Attributes:
        points: rows of levels.csv that were recomputed.
        token_checks: comparisons of token counts that could be made.
        problems: one line each; none means that the run holds together.
        written: rows that were replaced by their recomputed figures, or made again.
    """

    run: str
    points: int
    token_checks: int
    problems: tuple[str, ...]
    written: int = 0

    @property
    def ok(self) -> bool:
        return not self.problems


def verify_run(path: Path, write: bool = False) -> VerifyReport:
    """Recompute a run's levels.csv from its requests and compare token counts.

    Args:
        path: the run folder.
        write: put recomputed figures in place of those that differ, and rows made again in place of those lost.

    Raises:
        UserError: no run folder, damaged beyond levels.csv, or (write) not writable.
    """
    folder = RunFolder(path)
    rows, problems = folder.salvaged_levels()
    records = records_by_point(folder, rows)
    damaged = bool(problems)
    lost = [_made_again(folder, found) for key, found in records.items() if key not in {row.key for row in rows}]
    problems += [f"{row.key}: its row is lost, with the proof of what ran; measure it again (--resume)" for row in lost]
    changed = lost.copy()
    checks = 0
    for row in rows:
        metrics = level_metrics(records[row.key], row.window_start_s, row.window_end_s)
        differing = _differences(row, metrics, folder.manifest.latency_intervals)
        if differing:
            changed.append(msgspec.structs.replace(row, **{name: new for name, _, new in differing}))
        problems += [f"{row.key}: {name} is {old}, the requests give {new}" for name, old, new in differing]
        problems += _verdict_problem(row, metrics, len(records[row.key]))
        made, wrong = _token_problems(row, records[row.key])
        checks += made
        problems += [f"{row.key}: {text}" for text in wrong]
    if write and (changed or damaged):
        new = {row.key: row for row in (*rows, *changed)}
        with RunWriter.resume(path, salvage=True) as writer:
            writer.set_rows(list(new.values()))
    return VerifyReport(str(path), len(rows), checks, tuple(problems), len(changed) if write else 0)


def records_by_point(folder: RunFolder, rows: list[LevelRow]) -> dict[PointKey, list[RequestRecord]]:
    """The records of the attempt that each row counts; of the last one where a point has no row."""
    counts = {row.key: row.attempt for row in rows}
    points: dict[PointKey, list[RequestRecord]] = {row.key: [] for row in rows}
    lost: dict[PointKey, int] = {}
    for record in folder.requests():
        key = record.key
        if key not in counts and record.attempt > lost.get(key, 0):
            lost[key] = record.attempt
            points[key] = []
        if counts.get(key, lost.get(key)) == record.attempt:
            points[key].append(record)
    return points


def _made_again(folder: RunFolder, records: list[RequestRecord]) -> LevelRow:
    """A row for a point that has lost its own, with the figures of the window that was planned."""
    settings, first = folder.manifest.settings, records[0]
    metrics = level_metrics(records, *map(as_written, (settings.warmup_s, settings.warmup_s + settings.duration_s)))
    row = LevelRow(first.variant, first.concurrency, first.repeat, "invalid", "row_lost", attempt=first.attempt)
    return msgspec.structs.replace(row, **metrics.row_fields())


def _differences(row: LevelRow, metrics: LevelMetrics, intervals: bool) -> list[tuple[str, Any, Any]]:
    """(column, in the file, recomputed) wherever they differ; `intervals`: whether the run's rows must have all."""
    figures = metrics.row_fields()
    if row.steps_on is not None:  # a patched worker's own, which knows the steps that speculated
        figures = {name: new for name, new in figures.items() if not name.startswith("accept_len")}
    if not intervals and all(getattr(row, name) is None for name in ADDED_INTERVALS):
        figures = {name: new for name, new in figures.items() if name not in ADDED_INTERVALS}
    pairs = ((name, getattr(row, name), new) for name, new in figures.items())
    return [(name, old, new) for name, old, new in pairs if not _equal(old, new)]


def _equal(old: Any, new: Any) -> bool:
    if old is None or new is None:
        return old is new
    return math.isclose(old, new, rel_tol=REL_TOLERANCE, abs_tol=1e-9)


def _verdict_problem(row: LevelRow, metrics: LevelMetrics, sent: int) -> list[str]:
    """A row that calls itself usable must pass the checks that its own figures allow."""
    if not row.usable:
        return []
    client = ClientStats(lag_p99_s=row.client_lag_p99_s or 0.0, cpu=row.client_cpu or 0.0)
    # A shared prefix may have been declared; whether it was, the row does not say.
    share = sent_share(sent, row.dropped)
    verdict = judge(metrics, client, row.concurrency, shared_prefix=True, open_share=share).verdict
    return [] if verdict == "ok" else [f"{row.key}: its verdict is ok, its figures say {verdict}"]


def _token_problems(row: LevelRow, records: list[RequestRecord]) -> tuple[int, list[str]]:
    """(comparisons made, what disagrees). A failed or interrupted request leaves tokens that nobody can attribute."""
    if not records or not all(record.ok for record in records):
        return 0, []
    client = sum(record.output_tokens for record in records)
    decoded = client - sum(record.output_tokens > 0 for record in records)
    wrong = []
    made = 0
    if row.server_tokens is not None:
        made += 1
        if row.server_tokens != client:
            wrong.append(f"the client counted {client} tokens, the server's /metrics {row.server_tokens}")
    if row.worker_tokens is not None:
        made += 1
        if row.worker_tokens != decoded:
            wrong.append(f"the client counted {decoded} decoded tokens, the worker {row.worker_tokens}")
    return made, wrong
