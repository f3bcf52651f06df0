"""specpivot tune: the search on real or simulated servers, within a budget, in a run folder that can be resumed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import msgspec
import optuna

from harness.config import SweepConfig
from harness.console import duration
from harness.errors import UserError
from harness.load import require_files_for
from harness.pace import Pace
from harness.records import Manifest, Variant
from harness.runfolder import RunFolder, RunWriter
from harness.sweep import Keys, Reporter, interruptible
from tuner import recommend
from tuner.asked import Reason, TuneOptions, TuneOutcome
from tuner.budget import Budget, check_budget, plan
from tuner.combinations import wanted
from tuner.contexts import across, folder_of, with_contexts
from tuner.history import note_history, spent_before
from tuner.outcome import tuned
from tuner.recommend import Recommendation
from tuner.restarts import compare, keep_points, with_combinations
from tuner.search import Found
from tuner.session import live, tune_manifest
from tuner.shared import Session, Stopped

Complete = Callable[[Recommendation], Recommendation]


def run_tune(
    config: SweepConfig,
    options: TuneOptions,
    out: Path,
    command: Sequence[str],
    reporter: Reporter,
    keys: Keys,
    resume: bool = False,
    since_s: float = 0.0,
) -> TuneOutcome:
    """Tune the threshold; `config` and `options` are those of the run folder where it resumes one.

    Args:
        config, options: what is asked.
        out: the run folder.
        command: the command line, for manifests.
        reporter: told of every step.
        keys: the servers' API keys.
        resume: go on with the run in `out`.
        since_s: how long ago the command began, in seconds; that counts against the budget.

    Raises:
        UserError: bad input, no server could be had, or the budget does not reach for one pass over the levels.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # what its trials gave is told in our words
    config = tuning_config(config)
    check_budget(config, options)
    if options.context_lengths and not resume:
        config = msgspec.structs.replace(config, input_tokens=max(options.context_lengths))
    require_files_for(config.max_concurrency, config.client_workers)
    spent_s = since_s + (spent_before(out) if resume else 0.0)
    budget = Budget(options.budget_s, spent_s)
    manifest = tune_manifest(config, options, command)
    with _unchanged(out, manifest) if resume else RunWriter.create(out, manifest) as writer, interruptible() as stop:
        for line in plan(config, options):
            reporter.say(line)
        try:
            session = Session(options, budget, Pace(config, writer.rows), reporter, keys, command, stop)
            found, complete = _found(config, writer, session)
        except Stopped:
            left = duration(budget.left_s)
            reporter.say(f"interrupted with {left} of the budget left; what was measured is kept, and --resume goes on")
            return _outcome(out, None, "interrupted")
    if found is None:
        reporter.say(f"warning: nothing can be judged: {recommend.what_is_missing(RunFolder(out))}")
        return _outcome(out, None, "nothing usable")
    made = complete(tuned(RunFolder(out), found, options.slack, options.objective, options.weights, config.seed))
    recommend.write(made, out / recommend.FILE)
    said = {"threshold": made.threshold, "interval": made.interval, "reason": found.reason}
    note_history(out, "recommendation", **said, spent_s=budget.spent_s)
    return _outcome(out, made, found.reason)


def _found(config: SweepConfig, writer: RunWriter, session: Session) -> tuple[Found | None, Complete]:
    """What the search found, and what its recommendation is completed with: combinations, or context lengths."""
    if session.options.context_lengths:
        lengths = across(config, writer, session)
        if lengths is None:
            return None, lambda made: made
        keep_points(folder_of(writer.path, lengths.decides), writer)
        return lengths.found, lambda made: with_contexts(made, lengths)
    if not wanted(config, session.options.search):
        return live(config, writer, session), lambda made: made
    compared = compare(config, writer, session)
    if compared is None:
        return None, lambda made: made
    keep_points(writer.path / compared.best.combination.name, writer)
    return compared.best.found, lambda made: with_combinations(made, compared)


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


def _unchanged(out: Path, now: Manifest) -> RunWriter:
    """The run to go on with, if it would go on with the same settings and requests.

    Raises:
        UserError: it would not.
    """
    writer = RunWriter.resume(out)
    then = writer.manifest
    if now.workload.under_way != then.workload.under_way:
        problem = "requests of an older version, whose users all began at the beginning"
    elif now.workload.sha256 != then.workload.sha256:
        problem = f"other requests than {now.workload.dataset} holds now"
    elif now.settings != then.settings:
        names = [n for n in now.settings.__struct_fields__ if getattr(now.settings, n) != getattr(then.settings, n)]
        problem = f"other settings than its config says now ({', '.join(names)})"
    else:
        return writer
    writer.close()
    raise UserError(f"{out} was begun with {problem}; restore what was changed, or begin anew with another --out")


def _outcome(out: Path, made: Recommendation | None, ended: Reason | Literal["interrupted"]) -> TuneOutcome:
    rows = RunFolder(out).levels()
    return TuneOutcome(str(out), made, len(rows), sum(row.usable for row in rows), ended)
