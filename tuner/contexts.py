"""Context lengths as an axis of a tuning: on and off at each of them, on the same servers, as curves of their own.

RUN/context-LENGTH is the run folder of each length, complete in itself. The length with the smallest pivot decides: its
threshold is tried live and kept, because it loses at none of the others. RUN holds that length's points.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import msgspec

from harness.bench import Bench
from harness.config import SweepConfig
from harness.pace import Pace
from harness.records import LevelRow
from harness.runfolder import MANIFEST, RunWriter
from harness.sweep import attempts_of, opened
from harness.variants import ServerPlan
from tuner.asked import Reason
from tuner.curves import Pivot
from tuner.ladder import ContextPivot, context_bands
from tuner.recommend import Recommendation
from tuner.replicas import blind_above
from tuner.search import TRIAL_SHARE, Found, Task, replicate, settle
from tuner.session import (
    aim_of,
    blocks,
    first_pass_s,
    has_reference,
    let_play_dynamic,
    measurer,
    my_name,
    reference_alone,
    reference_block,
    tune_manifest,
)
from tuner.shared import Session, shared_requests
from tuner.study import JOURNAL, open_study, recover, storage_of
from tuner.words import name, span


class Across(msgspec.Struct, frozen=True):
    """What was found at all context lengths.

    Attributes:
        pivots: of each length that could be judged, shortest first.
        decides: the length whose threshold is kept, in tokens of prompt.
        found: how the search ended there.
        failed: lengths that could not be judged; a gain as far as is known says nothing where larger levels failed.
    """

    pivots: tuple[ContextPivot, ...]
    decides: int
    found: Found
    failed: tuple[int, ...] = ()


class _Length(msgspec.Struct, frozen=True):
    """One context length while it is measured; `rows` grows."""

    config: SweepConfig
    writer: RunWriter
    session: Session
    rows: list[LevelRow]


def folder_of(run: Path, length: int) -> Path:
    """The run folder of one context length."""
    return run / f"context-{length}"


def across(config: SweepConfig, writer: RunWriter, session: Session) -> Across | None:
    """Measure all context lengths in one server life, then tune at the one that decides; None: none can be judged.

    Args:
        config: the sweep that the tuning is made of.
        writer: the run folder of the whole, with the servers' logs.
        session: the rest.
    """
    settings = session.options.at_each_length(config)
    longest = max(settings, key=lambda each: each.input_tokens)  # what started servers must have room for
    with ExitStack() as stack:
        lengths = [_length(each, writer, session, stack) for each in settings]
        done = all(has_reference(each.config, each.rows) for each in lengths)
        for plans in blocks(longest, done):
            found = _block(longest, plans, lengths, writer, session)
        return found


def _length(config: SweepConfig, whole: RunWriter, session: Session, stack: ExitStack) -> _Length:
    path = folder_of(whole.path, config.input_tokens)
    begun = (path / MANIFEST).exists()
    alone = msgspec.structs.replace(session.options, context_lengths=())
    manifest = tune_manifest(config, alone, session.command)
    writer = stack.enter_context(RunWriter.resume(path) if begun else RunWriter.create(path, manifest))
    rows = list(writer.rows)
    return _Length(config, writer, replace(session, pace=Pace(config, rows)), rows)


def _block(
    longest: SweepConfig, plans: tuple[ServerPlan, ...], lengths: Sequence[_Length], writer: RunWriter, session: Session
) -> Across | None:
    """What is measured while some servers are up: the reference alone, or everything with the patched one."""
    requests = shared_requests(longest)
    with opened(longest, plans, writer, requests, session.reporter, session.keys, session.stop) as shared:
        alone = reference_alone(plans)
        if alone is None:
            let_play_dynamic(shared, writer)
        benches = [_bench(each, shared, writer) for each in lengths]
        if alone is None:
            return _tuned(lengths, benches, writer, session)
        for each, bench in zip(lengths, benches, strict=True):
            take = measurer(bench, each.session, writer)
            reference_block(take, each.config, alone, each.rows)
    return None


def _bench(length: _Length, shared: Bench, whole: RunWriter) -> Bench:
    """The servers that are up, under the requests of one length, into its own folder."""
    writer, up = length.writer, whole.manifest
    writer.set_manifest(
        msgspec.structs.replace(
            writer.manifest,
            source=up.source,
            servers=writer.manifest.servers | up.servers,
            variants=up.variants,
            simulation=up.simulation,
            confounders=up.confounders,
        )
    )
    attempts = attempts_of(writer.path, writer.rows)
    return Bench(length.config, writer, shared.servers, shared_requests(length.config), attempts, shared.stop)


def _tuned(lengths: Sequence[_Length], benches: Sequence[Bench], writer: RunWriter, session: Session) -> Across | None:
    """Replicated curves at every length, then trials and last check at the one that decides."""
    left_s = session.budget.left_s
    session.reporter.plan(int(left_s / min(each.session.pace.mean_s for each in lengths)), left_s, at_most=True)
    reserve_s = _reserve_s(lengths, session)
    judged: dict[int, tuple[Pivot, Reason]] = {}
    for number, (each, bench) in enumerate(zip(lengths, benches, strict=True)):
        session.note(writer, f"context {each.config.input_tokens} tokens, {number + 1} of {len(lengths)}")
        fit, reason = replicate(_task(each, bench, writer, session), _kept_s(lengths[number:], session, reserve_s))
        if fit is None or (fit.threshold is None and blind_above(each.config.concurrency, each.rows)):
            session.reporter.say(f"warning: context {each.config.input_tokens}: too few points are usable to judge it")
            continue
        judged[number] = (fit, reason)
        session.note(writer, f"context {each.config.input_tokens}: {name(fit.threshold)}, 90 % {span(*fit.interval)}")
    if not judged:
        return None
    decides = min(judged, key=lambda number: _order(judged[number][0].threshold))
    found = _settled(lengths[decides], benches[decides], *judged[decides], writer, session)
    pivots = {number: _pivot(lengths[number].config, fit) for number, (fit, _) in judged.items()}
    pivots[decides] = msgspec.structs.replace(pivots[decides], threshold=found.threshold)  # a trial may have beaten it
    return Across(
        tuple(sorted(pivots.values(), key=lambda pivot: pivot.input_tokens)),
        lengths[decides].config.input_tokens,
        found,
        tuple(each.config.input_tokens for number, each in enumerate(lengths) if number not in judged),
    )


def _reserve_s(lengths: Sequence[_Length], session: Session) -> float:
    """Seconds that are kept for the length that decides: its last check and its trials."""
    longest = max(lengths, key=lambda each: each.config.input_tokens)
    reserve_s = longest.session.pace.points_s(longest.config.concurrency)
    first_s = sum(first_pass_s(each.config, each.session, each.rows) for each in lengths)
    spare_s = max(0.0, session.budget.left_s - reserve_s - first_s)
    trials_s = TRIAL_SHARE * spare_s if session.options.trials else 0.0
    return reserve_s + trials_s


def _kept_s(lengths: Sequence[_Length], session: Session, reserve_s: float) -> float:
    """Seconds that the replicas of the first of these lengths leave alone, for those after it and the reserve.

    First passes come before all else: a length that lacks its largest levels is misjudged.
    """
    mine_s, *later_s = (first_pass_s(each.config, each.session, each.rows) for each in lengths)
    spare_s = max(0.0, session.budget.left_s - reserve_s - mine_s - sum(later_s))
    return reserve_s + sum(later_s) + spare_s * len(later_s) / len(lengths)


def _task(length: _Length, bench: Bench, whole: RunWriter, session: Session) -> Task:
    """What is to be found at one length, within what the whole has left."""
    return Task(
        measurer(bench, length.session, whole),
        aim_of(length.config, length.session),
        length.rows,
        lambda: session.budget.left_s,
        lambda line: session.note(whole, line),
        my_name(length.writer),
    )


def _settled(length: _Length, bench: Bench, fit: Pivot, reason: Reason, whole: RunWriter, session: Session) -> Found:
    """Trials and last check at the length that decides."""
    options, config, writer = session.options, length.config, length.writer
    study = open_study(storage_of(options.storage or writer.path / JOURNAL), options.study, config.seed)
    recover(study, my_name(writer))
    return settle(_task(length, bench, whole, session), study, fit, reason)


def _order(threshold: int | None) -> float:
    return float("inf") if threshold is None else threshold


def _pivot(config: SweepConfig, fit: Pivot) -> ContextPivot:
    mean = config.input_tokens + config.output_tokens // 2  # while it decodes, half of the answer is there
    return ContextPivot(config.input_tokens, mean, fit.threshold, fit.interval, fit.shape)


def with_contexts(made: Recommendation, found: Across) -> Recommendation:
    """The recommendation of the length that decides, with the pivots of all of them, and a ladder where they differ."""
    ladder = context_bands(found.pivots)
    failed = tuple(f"nothing is known at {length} tokens of context" for length in found.failed)
    return msgspec.structs.replace(
        made,
        contexts=found.pivots,
        ladder=ladder or made.ladder,
        words=made.words | {"contexts": in_words(found, ladder is not None)},
        warnings=made.warnings + failed,
    )


def in_words(found: Across, differ: bool) -> str:
    """Where the pivot lies at each length, and what follows, for people."""
    each = "; ".join(f"{p.input_tokens} tokens {name(p.threshold)}, 90 % {span(*p.interval)}" for p in found.pivots)
    smallest = min(_order(p.threshold) for p in found.pivots)
    kept = f"By length of the prompt: {each}. Kept is " + (
        f"the smallest, that of {found.decides}: it loses at none of them."
        if _order(found.found.threshold) <= smallest
        else f"that of {found.decides}, whose crossing was the smallest until a trial beat it there: others may lose."
    )
    if differ:
        return (
            f"{kept} The lengths differ by more than noise, so there is a ladder banded by batch and context, for the"
            " patched worker (apply, export --format json); between two lengths its border is their geometric mean,"
            " which was not measured. Other formats know no context: export --one-threshold gives them the smallest."
        )
    return f"{kept} Their intervals overlap: nothing here calls for a ladder." if len(found.pivots) > 1 else kept
