"""The combinations of a tuning on servers: each one started once, tuned in that life, and left early if clearly behind.

RUN/NAME is the run folder of each combination, complete in itself. RUN holds the points of the one that is kept, and
combinations.json what became of all.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import optuna
from optuna.distributions import CategoricalDistribution

from harness.config import SweepConfig
from harness.errors import UserError
from harness.pace import Pace
from harness.records import json_file
from harness.regular import replace_file, replacing
from harness.runfolder import LEVELS, REQUESTS, RunFolder, RunWriter, WriteFailed
from harness.sweep import opened
from harness.variants import server_plans
from tuner import combinations, recommend
from tuner.asked import TuneOptions
from tuner.budget import START_S, kind_of
from tuner.combinations import Combination, Worth
from tuner.curves import Pivot
from tuner.ladder import Ladder
from tuner.levels import reference_among
from tuner.objective import even_weights, level_weights
from tuner.outcome import tuned
from tuner.recommend import Recommendation
from tuner.reference import combination_folder
from tuner.search import Found
from tuner.session import has_reference, live, measurer, reference_block, tune_manifest
from tuner.shared import Session, shared_requests
from tuner.study import JOURNAL, storage_of
from tuner.words import change, name

FILE = "combinations.json"
STUDY = "combinations.journal"
FOUND = "found.json"  # in the folder of a combination that is through


class Tuned(msgspec.Struct, frozen=True):
    """A combination that was tuned."""

    combination: Combination
    found: Found
    worth: Worth


class Compared(msgspec.Struct, frozen=True):
    """All combinations that could be tuned.

    Attributes:
        tuned: the default first, where it could be.
        kept: which of them.
        ladder: bands of draft steps, where they beat the one that is kept; and what they bring over it.
        failed: why a combination could not be tuned, by its name.
    """

    tuned: tuple[Tuned, ...]
    kept: int
    ladder: Ladder | None = None
    ladder_gain: Worth | None = None
    failed: dict[str, str] = {}

    @property
    def best(self) -> Tuned:
        return self.tuned[self.kept]


def compare(config: SweepConfig, writer: RunWriter, session: Session) -> Compared | None:
    """Tune every combination that the budget reaches for; None where none could be.

    Args:
        config: the sweep that the tuning is made of; its combination is the default.
        writer: the run folder of the whole.
        session: the rest.
    """
    asked = combinations.wanted(config, session.options.search)
    _measure_reference(config, writer, session)
    done, failed = list[Tuned](), dict[str, str]()
    for number, combination in enumerate(asked):
        title = combination.name
        share_s = session.budget.left_s / (len(asked) - number)
        if share_s < least_s(config, session.pace) and not (writer.path / title / FOUND).exists():
            failed[title] = "the budget did not reach for it"
            continue
        session.note(writer, f"combination {number + 1} of {len(asked)}: {title}")
        try:
            made = _tuned(combination, config, writer, session, share_s, done)
        except WriteFailed:
            raise
        except UserError as error:
            failed[title] = str(error)
            session.reporter.say(f"warning: {title}: {error}")
            continue
        if made is None:
            failed[title] = "none of its points was usable"
            session.reporter.say(f"warning: {title}: {failed[title]}")
            continue
        done.append(made)
        session.note(writer, f"{title}: {_told(made)}")
    if not done:
        return None
    compared = _compared(done, failed, session.options, config)
    replace_file(writer.path / FILE, json_file(_table(compared)))
    _record(compared, writer.path, session.options)
    return compared


def least_s(config: SweepConfig, pace: Pace) -> float:
    """The least time of one combination: a start, and one pass over the levels."""
    return START_S[kind_of(config)] + 2 * pace.points_s(config.concurrency)


def keep_points(best: Path, writer: RunWriter) -> None:
    """Make RUN hold the points of a folder below it, and its manifest what they were measured on; the last thing to do.

    Args:
        best: the folder of the combination, or of the context length, that is kept.
        writer: RUN.
    """
    for file in (REQUESTS, LEVELS, JOURNAL):
        if (best / file).exists():
            with (best / file).open("rb") as kept, replacing(writer.path / file) as copy:
                shutil.copyfileobj(kept, copy)
    measured = RunFolder(best).manifest
    writer.set_manifest(
        msgspec.structs.replace(
            writer.manifest,
            source=measured.source,
            servers=measured.servers,
            variants=measured.variants,
            simulation=measured.simulation,
            workload=measured.workload,
            config=writer.manifest.config | {"input_tokens": measured.config["input_tokens"]},
        )
    )


def with_combinations(made: Recommendation, compared: Compared) -> Recommendation:
    """The recommendation of the combination that is kept, with what became of the others, and the ladder."""
    return msgspec.structs.replace(
        made,
        ladder=compared.ladder or made.ladder,
        words=made.words | in_words(compared),
        evidence=made.evidence | _table(compared),
    )


def in_words(compared: Compared) -> dict[str, str]:
    """What was kept, for people."""
    best, first = compared.best, compared.tuned[0]
    c = best.combination
    words = f"Start the server with num_steps {c.num_steps}, topk {c.topk}, draft tokens {c.draft_tokens}:"
    words += f" {_told(best)}"
    if compared.kept:
        ahead = Worth(best.worth.gain - first.worth.gain, math.hypot(best.worth.se, first.worth.se))
        words += f", which is {change(ahead.gain, ahead.se)} more than {first.combination.name}"
    elif len(compared.tuned) > 1:
        others = len(compared.tuned) - 1
        words += "; the other one is" if others == 1 else f"; none of {others} others is"
        words += " not better by more than noise" if others == 1 else " better by more than noise"
    if compared.failed:
        words += f". Not judged: {'; '.join(f'{title} ({why})' for title, why in compared.failed.items())}"
    found = {"combination": f"{words}."}
    if compared.ladder and (more := compared.ladder_gain):
        bands = ", ".join(f"{r['num_steps']} up to {r['threshold'] or 'any batch'}" for r in compared.ladder)
        found["ladder"] = (
            f"Not one number of draft steps: {bands} brings {change(more.gain, more.se)} more. SGLang's own"
            " adaptive mode can run it (export --format sglang-adaptive); the patched worker drafts its own number or"
            " none, so it takes the threshold alone (apply --one-threshold)."
        )
    return found


def _measure_reference(config: SweepConfig, writer: RunWriter, session: Session) -> None:
    """The reference once, for all combinations, before the first of them."""
    variant = reference_among(config.variants)
    if variant is None or has_reference(config, writer.rows):
        return
    alone = msgspec.structs.replace(config, variants=(variant,))
    plans = server_plans(alone)
    with opened(alone, plans, writer, shared_requests(config), session.reporter, session.keys, session.stop) as bench:
        session.reporter.plan(len(config.concurrency), session.pace.points_s(config.concurrency))
        reference_block(measurer(bench, session), alone, variant, list(writer.rows))


def _tuned(
    combination: Combination,
    config: SweepConfig,
    whole: RunWriter,
    session: Session,
    share_s: float,
    done: Sequence[Tuned],
) -> Tuned | None:
    """One combination in one server life, or as it was tuned before; None where nothing of it is usable."""
    mine = combination.settings(config)
    options = session.options
    if options.storage is not None:  # a study of its own: thresholds of other drafts are no neighbours
        options = msgspec.structs.replace(options, study=f"{options.study}-{combination.name}")
    session = replace(session, options=options, budget=session.budget.part(share_s))
    leader = max((t.worth for t in done), key=lambda worth: worth.gain, default=None)

    def still(fit: Pivot) -> bool:
        now = _worth(fit, options, config)
        return leader is None or now.gain + 2 * now.se > leader.gain - 2 * leader.se

    with combination_folder(whole, combination.name, tune_manifest(mine, options, session.command)) as writer:
        speculative = msgspec.structs.replace(mine, variants=("eagle3", "forced_off"))
        found = _found_before(writer.path) or live(speculative, writer, session, still)
        if found is None:
            return None
        replace_file(writer.path / FOUND, msgspec.json.encode(found))
        run = RunFolder(writer.path)
        made = tuned(run, found, options.slack, options.objective, options.weights, config.seed)
        recommend.write(made, writer.path / recommend.FILE)
    return Tuned(combination, found, _worth(found.fit, options, config))


def _found_before(path: Path) -> Found | None:
    """How an interrupted tuning had ended with this combination, if it had."""
    try:
        return msgspec.json.decode((path / FOUND).read_bytes(), type=Found)
    except (OSError, msgspec.DecodeError):
        return None


def _worth(fit: Pivot, options: TuneOptions, config: SweepConfig) -> Worth:
    return combinations.worth(fit, _weights(fit, options, config))


def _weights(fit: Pivot, options: TuneOptions, config: SweepConfig) -> dict[int, float]:
    """The weight of each measured level; those added between the ones that were asked for have none."""
    levels = [ratio.concurrency for ratio in fit.ratios]
    return level_weights(levels, options.weights or even_weights(fit, config.concurrency))


def _compared(done: list[Tuned], failed: dict[str, str], options: TuneOptions, config: SweepConfig) -> Compared:
    kept = combinations.best([t.worth for t in done])
    best = done[kept]
    chains = {t.combination.num_steps: t.found.fit for t in done if t.combination.topk == 1}
    found = None
    if best.combination.topk == 1:
        found = combinations.ladder(chains, best.combination.num_steps, _weights(best.found.fit, options, config))
    ladder, gain = found or (None, None)
    return Compared(tuple(done), kept, ladder, gain, failed)


def _table(compared: Compared) -> dict[str, Any]:
    rows = [
        msgspec.structs.asdict(t.combination)
        | {"threshold": t.found.threshold, "interval": t.found.fit.interval, "ended": t.found.reason}
        | {"gain": t.worth.gain, "se": t.worth.se, "kept": i == compared.kept}
        for i, t in enumerate(compared.tuned)
    ]
    return {"combinations": rows, "ladder": compared.ladder, "failed": compared.failed}


def _record(compared: Compared, path: Path, options: TuneOptions) -> None:
    """The combinations as an Optuna study, in a journal beside the others."""
    study = optuna.create_study(
        storage=storage_of(path / STUDY), study_name=options.study, direction="maximize", load_if_exists=True
    )
    have = [trial.params for trial in study.get_trials(deepcopy=False)]
    params = [msgspec.structs.asdict(t.combination) for t in compared.tuned]
    choices = {name: CategoricalDistribution(sorted({p[name] for p in params})) for name in params[0]}
    for each, tried in zip(params, compared.tuned, strict=True):
        if each not in have:
            study.add_trial(
                optuna.create_trial(
                    params=each,
                    distributions=dict(choices),
                    value=tried.worth.gain,
                    user_attrs={"se": tried.worth.se, "threshold": tried.found.threshold},
                )
            )


def _told(tried: Tuned) -> str:
    kept = name(tried.found.threshold)
    left = ", left early: clearly behind" if tried.found.reason == "behind" else ""
    return f"{kept} brings {change(tried.worth.gain, tried.worth.se)} over never speculating{left}"
