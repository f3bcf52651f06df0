"""specpivot tune: the search on real or simulated servers, in one life of the patched server, within a budget.

Thresholds are set live, so the patched server starts once. Everything is in the run folder as it happens: points in
levels.csv, the study in study.journal, each stage in search_history.jsonl; a tuning that was killed goes on from them.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import optuna

from harness.bench import Bench
from harness.config import SweepConfig
from harness.errors import UserError
from harness.load import require_files_for
from harness.manifest import new_manifest, workload_of
from harness.records import LevelRow, Manifest, PointKey, Variant, VariantRecord
from harness.runfolder import RunFolder, RunWriter
from harness.sweep import Keys, Reporter, interruptible, opened, point_seconds
from harness.variants import ServerPlan, server_plans
from harness.workload import WorkloadPlan
from patched_worker.policy import Policy
from tuner import recommend
from tuner.asked import TuneOptions, TuneOutcome
from tuner.budget import Budget, check_budget, minutes, plan, together
from tuner.outcome import tuned
from tuner.recommend import Recommendation
from tuner.search import TRIAL_REPEATS, Aim, Found, search
from tuner.study import JOURNAL, open_study, storage_of

HISTORY = "search_history.jsonl"


class Stopped(Exception):
    """The person, or the end of the budget, ended the tuning; what was measured is kept."""


class SharedRequests(WorkloadPlan, frozen=True):
    """Request lists that are the same for every trial: differences between thresholds are not those of requests."""

    def requests(self, concurrency: int, repeat: int) -> Iterator[Any]:
        return super().requests(concurrency, repeat % TRIAL_REPEATS)


def run_tune(
    config: SweepConfig,
    options: TuneOptions,
    out: Path,
    command: Sequence[str],
    reporter: Reporter,
    keys: Keys,
    resume: bool = False,
) -> TuneOutcome:
    """Tune the threshold; `config` and `options` are those of the run folder where it resumes one.

    Raises:
        UserError: bad input, no server could be had, or the budget does not reach for one pass over the levels.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # what its trials gave is told in our words
    config = tuning_config(config)
    check_budget(config, options)
    require_files_for(config.max_concurrency, config.client_workers)
    budget = Budget(options.budget_s, point_seconds(config))
    manifest = tune_manifest(config, options, command)
    with RunWriter.resume(out) if resume else RunWriter.create(out, manifest) as writer, interruptible() as stop:
        for line in plan(config, options):
            reporter.say(line)
        try:
            found = _searched(config, options, budget, writer, reporter, keys, stop)
        except Stopped:
            return _outcome(writer, None, "interrupted")
    run = RunFolder(out)
    if found is None:
        reporter.say(f"warning: nothing can be judged: {recommend.what_is_missing(run)}")
        return _outcome(writer, None, "nothing usable")
    made = tuned(run, found, options.slack, options.objective, options.weights, config.seed)
    recommend.write(made, out / recommend.FILE)
    note_history(out, "recommendation", threshold=made.threshold, interval=made.interval, reason=found.reason)
    return _outcome(writer, made, found.reason)


def tuning_config(config: SweepConfig) -> SweepConfig:
    """The sweep that a tuning is made of: one reference, eagle3 and forced_off."""
    reference: Variant = "baseline_no_overlap" if config.worker == "v1" else "baseline"
    wanted: tuple[Variant, ...] = (reference, "eagle3", "forced_off")
    if config.attach:
        wanted = tuple(v for v in wanted if v in config.attach)
        if not {"eagle3", "forced_off"} <= set(wanted):
            raise UserError("tune needs a patched server: --attach eagle3=URL --attach forced_off=URL (the same URL)")
    elif config.model is not None and config.draft is None:
        raise UserError("tune needs --draft PATH beside --model")
    return msgspec.structs.replace(config, variants=wanted, repeats=1, threshold=None, resume_at=None)


def tune_manifest(config: SweepConfig, options: TuneOptions, command: Sequence[str]) -> Manifest:
    """The manifest of a tuning that begins now; --resume reads the options back from it."""
    manifest = new_manifest(config, command)
    settings = msgspec.structs.replace(manifest.settings, variants=(*config.variants, "dynamic"))
    return msgspec.structs.replace(
        manifest, settings=settings, config={**manifest.config, "tune": msgspec.to_builtins(options)}
    )


def note_history(out: Path, kind: str, **what: Any) -> None:
    """Add a line to search_history.jsonl."""
    line = {"at": datetime.now(UTC).isoformat(timespec="seconds"), "kind": kind, **what}
    with (out / HISTORY).open("ab") as history:
        history.write(msgspec.json.encode(line) + b"\n")


def _searched(
    config: SweepConfig,
    options: TuneOptions,
    budget: Budget,
    writer: RunWriter,
    reporter: Reporter,
    keys: Keys,
    stop: threading.Event,
) -> Found | None:
    """Start servers as they fit, and search on them."""
    rows = list(writer.rows)
    workload = SharedRequests(**msgspec.structs.asdict(workload_of(config)))
    aim = Aim(config.concurrency, _reference(config), options.trials, options.slack, options.weights, config.seed)
    study = open_study(storage_of(options.storage or writer.path / JOURNAL), options.study, config.seed)

    def note(line: str) -> None:
        note_history(writer.path, "note", line=line)
        reporter.say(f"{line}  ({minutes(budget.left_s)} of the budget left)")

    for plans in _blocks(config, rows):
        with opened(config, plans, writer, workload, reporter, keys, stop) as bench:
            take = _measurer(bench, reporter, budget, stop)
            if len(plans) == 1 and plans[0].name != "speculative":
                _reference_block(take, config, plans[0].variants[0], rows)
                continue
            _require(bench, writer)
            reporter.plan(int(budget.left()), budget.left_s)
            return search(take, aim, study, rows, budget.left, note, _my_name(writer))
    return None


Take = Callable[[Variant, Policy | None, int, int], LevelRow]


def _measurer(bench: Bench, reporter: Reporter, budget: Budget, stop: threading.Event) -> Take:
    def take(variant: Variant, policy: Policy | None, concurrency: int, repeat: int) -> LevelRow:
        if stop.is_set():
            raise Stopped
        key = PointKey(variant, concurrency, repeat)
        with budget.spending():
            row = bench.measure(key, policy, lambda seconds: reporter.point(key, seconds))
        if stop.is_set():
            raise Stopped
        reporter.row(row)
        if row.verdict in ("server_died", "policy_refused"):
            raise UserError(f"{key}: {row.verdict}; see {bench.writer.path / 'logs'}, then --resume goes on")
        return row

    return take


def _reference_block(take: Take, config: SweepConfig, variant: Variant, rows: list[LevelRow]) -> None:
    """The reference alone, where its server and the patched one do not fit on the machine together."""
    done = {row.concurrency for row in rows if row.usable and row.variant == variant}
    rows.extend(take(variant, None, level, 1) for level in config.concurrency if level not in done)


def _blocks(config: SweepConfig, rows: Sequence[LevelRow]) -> list[tuple[ServerPlan, ...]]:
    """All servers at once where they fit; else the reference first, and the patched server after it."""
    plans = server_plans(config)
    if together(config):
        return [plans]
    have = {row.concurrency for row in rows if row.usable and row.variant == _reference(config)}
    return [(plan,) for plan in plans if plan.name == "speculative" or not have >= set(config.concurrency)]


def _require(bench: Bench, writer: RunWriter) -> None:
    """Let the patched server play `dynamic` too.

    Raises:
        UserError: there is no patched server.
    """
    if "forced_off" not in bench.servers:
        record = writer.manifest.variants.get("forced_off")
        raise UserError(f"tune needs a patched server: {(record and record.not_run) or 'none is up'}")
    bench.servers["dynamic"] = bench.servers["forced_off"]
    played = writer.manifest.variants["forced_off"]
    record = VariantRecord(played.server_run, played.reference)
    writer.set_manifest(
        msgspec.structs.replace(writer.manifest, variants={**writer.manifest.variants, "dynamic": record})
    )


def _reference(config: SweepConfig) -> Variant | None:
    return next((v for v in config.variants if v in ("baseline", "baseline_no_overlap")), None)


def _my_name(writer: RunWriter) -> str:
    """This tuner's name among those that share a study: the same after a crash, another on another folder."""
    return f"{socket.gethostname()}:{writer.path.resolve()}"


def _outcome(writer: RunWriter, made: Recommendation | None, ended: str) -> TuneOutcome:
    rows = writer.rows
    return TuneOutcome(str(writer.path), made, len(rows), sum(row.usable for row in rows), ended)  # type: ignore[arg-type]
