"""The sweep: every variant at every concurrency, repeated and interleaved, resumable at any moment.

Repeats are interleaved so that a drift of the machine (clocks, temperature, a neighbour) falls on all variants alike:
variants alternate inside each concurrency, their order turns from point to point, and every other repeat walks the
concurrencies downwards.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import msgspec

from harness.bench import Bench
from harness.config import SweepConfig
from harness.errors import UserError
from harness.load import require_files_for
from harness.manifest import new_manifest, record_servers, workload_of
from harness.pace import Pace
from harness.records import PATCHED_VARIANTS, LevelRow, PointKey, RequestRecord, Variant
from harness.runfolder import RunFolder, RunWriter, WriteFailed
from harness.servers import Server, attach, running
from harness.sittings import settled
from harness.variants import ServerPlan, policy_of, server_plans
from harness.workload import WorkloadPlan


class Reporter(Protocol):
    """What a person is told while a sweep runs."""

    def say(self, line: str) -> None: ...
    def plan(self, points: int, seconds: float, at_most: bool = False) -> None: ...
    def point(self, key: PointKey, left_s: float) -> None: ...
    def row(self, row: LevelRow) -> None: ...


class Keys(msgspec.Struct, frozen=True):
    """Secrets: handed on to servers, never written."""

    api_key: str | None = None
    admin_api_key: str | None = None


class Outcome(msgspec.Struct, frozen=True):
    """How a sweep ended."""

    run: str
    source: str
    points: int
    usable: int
    invalid: int
    not_run: dict[str, str]
    interrupted: bool
    failed: str = ""  # why nothing more could be written

    @property
    def exit_code(self) -> int:
        if self.interrupted:
            return 130
        if not self.usable:
            return 4
        return 0 if self.usable == self.points and not self.not_run and not self.failed else 3


def run_sweep(
    config: SweepConfig, out: Path, command: Sequence[str], reporter: Reporter, keys: Keys, resume: bool = False
) -> Outcome:
    """Measure everything that is missing from a run folder.

    Args:
        config: what to measure.
        out: the run folder.
        command: the command line, for the manifest.
        reporter: told of every step.
        keys: the servers' API keys.
        resume: go on with the run in `out`.

    Raises:
        UserError: bad input, or no server could be had.
    """
    require_files_for(config.max_concurrency, config.client_workers)
    _attached(config, keys)  # before anything is written: a wrong URL must not leave a run behind
    run = _resumed(out, config) if resume else RunWriter.create(out, new_manifest(config, command))
    with run as writer, interruptible() as stop:
        failed = ""
        try:
            for phase in _phases(config):
                if not stop.is_set():
                    _run_phase(config, phase, writer, reporter, keys, stop)
        except WriteFailed as error:
            failed = str(error)
            reporter.say(f"warning: {failed}, then go on with --resume")
        if stop.is_set():
            reporter.say(f"interrupted; what was measured is kept, and sweep --out {out} --resume goes on")
        return _outcome(writer, stop.is_set(), failed)


def _resumed(out: Path, config: SweepConfig) -> RunWriter:
    """The run to go on with, if it would go on with the same requests."""
    writer = RunWriter.resume(out)
    begun = writer.manifest.workload
    requests = workload_of(config, begun.under_way).describe(config.concurrency, config.repeats)
    if requests.sha256 != begun.sha256:
        writer.close()
        raise UserError(
            f"{out} was begun with other requests than {config.dataset} holds now; restore it, or begin anew"
        )
    return writer


# One phase: the servers that are up together, and the repeats measured on them.
Phase = tuple[tuple[ServerPlan, ...], tuple[int, ...]]


def _phases(config: SweepConfig) -> list[Phase]:
    """All servers at once, or (where they do not fit) a reference block, each other server, the reference again."""
    plans = server_plans(config)
    repeats = tuple(range(1, config.repeats + 1))
    if config.together or len(plans) == 1:
        return [(plans, repeats)]
    first, *others = plans
    half = (len(repeats) + 1) // 2
    phases: list[Phase] = [((first,), repeats[:half]), *(((plan,), repeats) for plan in others)]
    return [*phases, ((first,), repeats[half:])] if repeats[half:] else phases


def _order(variants: Sequence[Variant], concurrency: Sequence[int], repeats: Sequence[int]) -> Iterator[PointKey]:
    turn = 0
    for repeat in repeats:
        for level in concurrency if repeat % 2 else tuple(reversed(concurrency)):
            for offset in range(len(variants)):
                yield PointKey(variants[(turn + offset) % len(variants)], level, repeat)
            turn += 1


def _run_phase(
    config: SweepConfig, phase: Phase, writer: RunWriter, reporter: Reporter, keys: Keys, stop: threading.Event
) -> None:
    plans, repeats = phase
    variants = [variant for plan in plans for variant in plan.variants]

    def missing(among: Sequence[Variant]) -> list[PointKey]:
        done = settled(writer.rows, among, time.time())
        order = _order(variants, config.concurrency, repeats)
        return [key for key in order if key.variant in among and key not in done]

    if not missing(variants):
        return
    workload = workload_of(config, writer.manifest.workload.under_way)
    with opened(config, plans, writer, workload, reporter, keys, stop) as bench:
        todo = missing([variant for variant in variants if variant in bench.servers])
        pace = Pace(config, writer.rows)
        reporter.plan(len(todo), pace.points_s(key.concurrency for key in todo))
        for number, key in enumerate(todo, start=1):
            if stop.is_set():
                return
            end_s = pace.points_s(later.concurrency for later in todo[number:])
            told = countdown(reporter, key, pace.point_s(key.concurrency), end_s)
            with pace.watching(key.concurrency):
                row = bench.measure(key, policy_of(key.variant, config), told)
            reporter.row(row)


@contextmanager
def opened(
    config: SweepConfig,
    plans: Sequence[ServerPlan],
    writer: RunWriter,
    workload: WorkloadPlan,
    reporter: Reporter,
    keys: Keys,
    stop: threading.Event,
) -> Iterator[Bench]:
    """Servers up, proven, written down and warm, ready to measure any points.

    Raises:
        UserError: a server that every point needs could not be had.
    """
    bench = Bench(config, writer, {}, workload, attempts_of(writer.path, writer.rows), stop)
    with _servers(config, plans, bench, reporter, keys) as found:
        bench.servers = _players(found)
        record_servers(config, writer, found, reporter.say)
        for server in found.values():
            if isinstance(server, Server) and not server.simulation:
                reporter.say(f"warming up {server.plan.name}")
                if problem := bench.warm_up(server):
                    reporter.say(
                        f"warning: {server.plan.name} was not warmed up ({problem}); its first points may be slow"
                    )
        yield bench


def countdown(reporter: Reporter, key: PointKey, point_s: float, after_s: float = 0.0) -> Callable[[float], None]:
    """Tell how much time is left as a point goes on.

    Args:
        point_s: what the point will take.
        after_s: what follows it.
    """
    return lambda seconds_in: reporter.point(key, max(0.0, point_s - seconds_in) + after_s)


@contextmanager
def _servers(
    config: SweepConfig, plans: Sequence[ServerPlan], bench: Bench, reporter: Reporter, keys: Keys
) -> Iterator[dict[str, Server | UserError]]:
    if config.attach:
        yield _attached(config, keys)
        return
    reporter.say(f"starting {', '.join(plan.name for plan in plans)} ({'simulated' if config.sim else 'SGLang'})")
    with running(plans, bench.writer.path / "logs", config.start_timeout_s, bench.stop, reporter.say) as found:
        yield found


def _attached(config: SweepConfig, keys: Keys) -> dict[str, Server | UserError]:
    """The servers that the sweep attaches to; {} where it starts its own.

    Raises:
        UserError: nothing answers at a URL.
    """
    plans = server_plans(config) if config.attach else ()
    return {plan.name: attach(plan, keys.api_key, keys.admin_api_key) for plan in plans}


def _players(found: dict[str, Server | UserError]) -> dict[Variant, Server]:
    """The server of each variant that can be played: dynamic and forced_off need a patched one."""
    return {
        variant: server
        for server in found.values()
        if isinstance(server, Server)
        for variant in server.plan.variants
        if server.patched or variant not in PATCHED_VARIANTS
    }


def attempts_of(out: Path, rows: Iterable[LevelRow]) -> Counter[PointKey]:
    """How often each point was begun before, whether or not it was finished."""
    attempts: Counter[PointKey] = Counter()
    lines: Iterator[LevelRow | RequestRecord] = chain(rows, RunFolder(out).requests())
    for line in lines:
        attempts[line.key] = max(attempts[line.key], line.attempt)
    return attempts


def _outcome(writer: RunWriter, interrupted: bool, failed: str) -> Outcome:
    manifest, rows = writer.manifest, writer.rows
    not_run = {name: record.not_run for name, record in manifest.variants.items() if record.not_run}
    runnable = [v for v in manifest.settings.variants if v not in not_run]
    usable = sum(row.usable for row in rows)
    return Outcome(
        run=str(writer.path),
        source=manifest.source,
        points=len(runnable) * len(manifest.settings.concurrency) * manifest.settings.repeats,
        usable=usable,
        invalid=len(rows) - usable,
        not_run=not_run,
        interrupted=interrupted,
        failed=failed,
    )


@contextmanager
def interruptible() -> Iterator[threading.Event]:
    """Let Ctrl-C, SIGTERM or a closed terminal end the point in progress and keep what was measured.

    A second one ends at once. A signal that is ignored, as nohup ignores SIGHUP, stays so.
    """
    stop = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    heard = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]
    old: dict[int, Any] = {number: signal.signal(number, on_signal) for number in heard}
    try:
        yield stop
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
