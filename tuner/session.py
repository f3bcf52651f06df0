"""One life of the patched server: what a tuning does between its start and its stop.

Thresholds and hysteresis are set live. Everything is in the run folder as it happens: points in levels.csv, the study
in study.journal, each point and stage with the time spent so far in search_history.jsonl.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Sequence

import msgspec
import optuna

from harness.bench import Bench
from harness.config import SweepConfig
from harness.errors import UserError
from harness.load import require_files_for
from harness.manifest import new_manifest
from harness.pace import Pace
from harness.records import LevelRow, Manifest, PointKey, Variant, VariantRecord
from harness.runfolder import RunWriter
from harness.sweep import opened
from harness.variants import ServerPlan, server_plans
from patched_worker.policy import Policy
from tuner import hysteresis, waves
from tuner.asked import TuneOptions
from tuner.curves import Pivot
from tuner.hysteresis import Ranked, Wave
from tuner.knobs import ranks_hysteresis
from tuner.levels import reference_among
from tuner.replicas import missing
from tuner.search import ATTEMPTS, CONFIRMATION, Aim, Found, Task, search
from tuner.shared import Session, shared_requests
from tuner.study import JOURNAL, open_study, storage_of

HYSTERESIS_SHARE = 0.4  # of the time that is left after the first pass, at most


def aim_of(config: SweepConfig, session: Session) -> Aim:
    """What the search is asked, its points priced in seconds."""
    options, reference = session.options, reference_among(config.variants)
    return Aim(
        config.concurrency,
        reference,
        options.trials,
        options.slack,
        options.weights,
        config.seed,
        session.pace.point_s,
    )


def live(
    config: SweepConfig, writer: RunWriter, session: Session, still: Callable[[Pivot], bool] = lambda fit: True
) -> Found | None:
    """Start servers as they fit, and search on them; None where nothing can be judged.

    Args:
        config: the sweep that the tuning is made of.
        writer: its run folder, with what an interrupted tuning has measured.
        session: the rest.
        still: see `search`.
    """
    options, rows = session.options, list(writer.rows)
    aim = aim_of(config, session)
    study = open_study(storage_of(options.storage or writer.path / JOURNAL), options.study, config.seed)
    for plans in blocks(config, has_reference(config, rows)):
        requests = shared_requests(config)
        with opened(config, plans, writer, requests, session.reporter, session.keys, session.stop) as bench:
            take = measurer(bench, session)
            if (alone := reference_alone(plans)) is not None:
                reference_block(take, config, alone, rows)
                continue
            let_play_dynamic(bench, writer)
            return _search(bench, aim, study, rows, session, still)
    return None


def _search(
    bench: Bench,
    aim: Aim,
    study: optuna.Study,
    rows: list[LevelRow],
    session: Session,
    still: Callable[[Pivot], bool],
) -> Found | None:
    """The threshold, then (where asked) its hysteresis, on servers that are up."""
    budget, writer = session.budget, bench.writer
    session.reporter.plan(int(budget.left_s / session.pace.mean_s), budget.left_s, at_most=True)
    kept_back = kept_for_hysteresis(bench.config, session, rows)
    task = Task(
        measurer(bench, session),
        aim,
        rows,
        lambda: budget.left_s - kept_back,
        lambda line: session.note(writer, line),
        my_name(writer),
    )
    found = search(task, study, still)
    return found if found is None or not kept_back else with_hysteresis(bench, found, rows, session)


def with_hysteresis(bench: Bench, found: Found, rows: Sequence[LevelRow], session: Session) -> Found:
    """What was found with its hysteresis ranked, where there is a threshold to switch at."""
    if not found.threshold or found.reason == "behind":
        return found
    return msgspec.structs.replace(found, hysteresis=_hysteresis(bench, found, rows, session))


def _hysteresis(bench: Bench, found: Found, rows: Sequence[LevelRow], session: Session) -> Ranked | None:
    """Rank resume points and dwells of what is kept, under waves on the same servers."""
    threshold, config = found.threshold, bench.config
    assert threshold
    try:
        require_files_for(waves.most_in_flight(config, threshold), config.client_workers)
    except UserError as error:
        session.note(bench.writer, f"resume points and dwells are not ranked, the default stays: {error}")
        return None
    wanted = waves.waves_around(rows, found.fit.off, threshold, config.warmup_s, config.duration_s)
    session.note(bench.writer, f"resume points and dwells of threshold {threshold}: {waves.in_words(wanted)}")
    with waves.wave_bench(bench, wanted, threshold, session.command, session.stop) as (under, measure):
        pace, level = Pace(config, under.writer.rows), under.config.max_concurrency

        def take(policy: Policy, wave: Wave, round_: int, candidate: int) -> LevelRow:
            point = f"{wave} of round {round_ + 1}, resume at {policy.resume_at}, {policy.min_dwell} steps"
            watching = pace.watching(level)
            row = session.point(bench.writer, point, watching, lambda: measure(policy, wave, round_, candidate))
            session.reporter.say(f"  {point}: {waves.row_in_words(row)}")
            return row

        ranked = hysteresis.rank(
            take,
            threshold,
            hysteresis.design(threshold, session.options.search, session.options.trials),
            list(under.writer.rows),
            lambda: session.budget.left_s / pace.point_s(level),
            lambda line: session.note(bench.writer, line),
        )
    if ranked is None:
        session.note(bench.writer, "the budget does not reach for ranking them: the default stays")
        return None
    study = open_study(storage_of(bench.writer.path / JOURNAL), f"{session.options.study}-hysteresis", config.seed)
    hysteresis.record(study, ranked, threshold)
    return ranked


def kept_for_hysteresis(config: SweepConfig, session: Session, rows: Sequence[LevelRow]) -> float:
    """Seconds that are left alone for ranking hysteresis; 0 where that is not asked."""
    options = session.options
    if not ranks_hysteresis(options.search):
        return 0.0
    spare_s = session.budget.left_s - first_pass_s(config, session, rows)
    wave_s = session.pace.point_s(config.max_concurrency)
    most = hysteresis.MOST_ROUNDS * len(hysteresis.WAVES) * (1 + options.trials)
    return max(wave_s, min(HYSTERESIS_SHARE * spare_s, most * wave_s))


def first_pass_s(config: SweepConfig, session: Session, rows: Sequence[LevelRow]) -> float:
    """Seconds of the first pass that are still to come."""
    todo = missing(config.concurrency, reference_among(config.variants), rows)
    return session.pace.points_s(level for _, level, _ in todo)


def tune_manifest(config: SweepConfig, options: TuneOptions, command: Sequence[str]) -> Manifest:
    """The manifest of a tuning that begins now; --resume reads the options back from it."""
    manifest = new_manifest(config, command)
    settings = msgspec.structs.replace(manifest.settings, variants=(*config.variants, "dynamic"))
    return msgspec.structs.replace(
        manifest, settings=settings, config={**manifest.config, "tune": msgspec.to_builtins(options)}
    )


Take = Callable[[Variant, Policy | None, int, int], LevelRow]


def measurer(bench: Bench, session: Session, home: RunWriter | None = None) -> Take:
    """How `search` takes a point on servers that are up.

    Args:
        bench: takes it.
        session: the rest.
        home: the run folder with the servers' logs; None where it is the bench's own.
    """

    def told(key: PointKey) -> Callable[[float], None]:
        return lambda seconds_in: session.reporter.point(key, session.budget.left_s)

    def take(variant: Variant, policy: Policy | None, concurrency: int, repeat: int) -> LevelRow:
        key = PointKey(variant, concurrency, repeat)
        # Numbers that keep trials apart mean nothing to people.
        shown = PointKey(variant, concurrency, 1 if repeat >= CONFIRMATION else repeat)
        watching = session.pace.watching(concurrency)
        row = session.point(home or bench.writer, str(key), watching, lambda: bench.measure(key, policy, told(shown)))
        session.reporter.row(msgspec.structs.replace(row, repeat=shown.repeat))
        return row

    return take


def reference_block(take: Take, config: SweepConfig, variant: Variant, rows: list[LevelRow]) -> None:
    """The reference alone, where its server and the patched one are not up together; a spoilt point is taken again."""
    for _ in range(ATTEMPTS):
        done = {row.concurrency for row in rows if row.usable and row.variant == variant}
        rows.extend([take(variant, None, level, 1) for level in config.concurrency if level not in done])


def blocks(config: SweepConfig, reference_done: bool) -> list[tuple[ServerPlan, ...]]:
    """All servers at once where they fit; else the reference first, where it is not done, and the patched one after."""
    plans = server_plans(config)
    if config.together:
        return [plans]
    return [(plan,) for plan in plans if plan.name == "speculative" or not reference_done]


def reference_alone(plans: Sequence[ServerPlan]) -> Variant | None:
    """The reference that these servers play, where the patched one is not up with it."""
    return plans[0].variants[0] if len(plans) == 1 and plans[0].name != "speculative" else None


def has_reference(config: SweepConfig, rows: Iterable[LevelRow]) -> bool:
    """Whether the reference is measured at every level."""
    have = {row.concurrency for row in rows if row.usable and row.variant == reference_among(config.variants)}
    return have >= set(config.concurrency)


def let_play_dynamic(bench: Bench, writer: RunWriter) -> None:
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


def my_name(writer: RunWriter) -> str:
    """This tuner's name among those that share a study: the same after a crash, another on another folder."""
    return f"{socket.gethostname()}:{writer.path.resolve()}"
