r"""What a server that is off loses by bringing its draft's KV up after so many plain steps: which number costs least.

One server without speculation and one patched server that never speculates, under the same loads; the number of steps
is set live, and all of them and the reference take turns within each repeat. Every number has a run folder of its own
below --out, `reference` beside them; the same command resumes them. Each is held to the bars of benchmarks.claims for
`forced_off`. The very last line on standard output is one compact JSON document.

    python -m benchmarks.sync_steps --config results/configs/NAME.toml --model TARGET --draft DRAFT --out results/NEW
    python -m benchmarks.sync_steps --judge results/NEW
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.asked import add_settings, attached, require_players, settings_of
from benchmarks.claims import Claim, off_claims, table
from benchmarks.folders import begun, share_servers
from harness.bench import Bench
from harness.config import SweepConfig, make_config
from harness.console import ConsoleReporter
from harness.endpoint import specpivot_block
from harness.errors import UserError
from harness.manifest import new_manifest, workload_of
from harness.records import LevelRow, PointKey, Settings, Source, Variant
from harness.runfolder import MANIFEST, RunFolder, RunWriter
from harness.servers import Server
from harness.sweep import Keys, attempts_of, countdown, interruptible, opened
from harness.variants import policy_of, server_plans
from patched_worker.draft_sync import SYNC_KEY
from patched_worker.settings import DRAFT_SYNC_STEPS, MAX_DRAFT_SYNC_STEPS
from tuner.levels import usable

VARIANTS: tuple[Variant, Variant] = ("baseline", "forced_off")
STEPS = (1, 4, 8, 16, 32, 64)
REFERENCE, FOLDER = "reference", "steps-{}"

# One point: the number of plain steps, or None for the reference
Turn = tuple[int | None, PointKey]


class Found(msgspec.Struct, frozen=True):
    """The document; a claim's run is `NAME/steps-N`."""

    source: Source
    missing: int
    claims: tuple[Claim, ...]


def steps_of(text: str) -> tuple[int, ...]:
    """Numbers of plain steps, separated by commas.

    Raises:
        UserError: one that a ring cannot have, or none.
    """
    words = [word.strip() for word in text.split(",")]
    found = sorted({int(word) for word in words if word.isdecimal()})
    if not all(word.isdecimal() for word in words) or not 1 <= found[0] <= found[-1] <= MAX_DRAFT_SYNC_STEPS:
        raise UserError(f"--steps {text}: give whole numbers from 1 to {MAX_DRAFT_SYNC_STEPS}, as 1,4,16")
    return tuple(found)


def settings(asked: argparse.Namespace) -> SweepConfig:
    """The sweep's settings, off and its reference only, with a ring that holds whatever may be asked for later.

    Raises:
        UserError: a setting that cannot be.
    """
    document = settings_of(asked, "sim", "repeats") | {"variants": list(VARIANTS), "time_scale": asked.time_scale}
    document["server_env"] = document.get("server_env", {}) | {DRAFT_SYNC_STEPS: str(MAX_DRAFT_SYNC_STEPS)}
    if asked.attach:
        document["attach"] = attached(asked.attach)
    return make_config(document)


def turns(config: SweepConfig, steps: Sequence[int]) -> Iterator[Turn]:
    """All points in the order in which they are measured: within a repeat and a load all numbers of steps in turn."""
    numbers: list[int | None] = [None, *steps]
    turn = 0
    for repeat in range(1, config.repeats + 1):
        for level in config.concurrency if repeat % 2 else tuple(reversed(config.concurrency)):
            for offset in range(len(numbers)):
                number = numbers[(turn + offset) % len(numbers)]
                yield number, PointKey(VARIANTS[number is not None], level, repeat)
            turn += 1


def measure(config: SweepConfig, steps: Sequence[int], out: Path, command: Sequence[str]) -> None:
    """Every point that is missing, on one life of the two servers.

    Raises:
        UserError: no server, one that does not take a number of steps, or a folder of another run.
    """
    with ConsoleReporter() as reporter, interruptible() as stop, ExitStack() as stack:
        folders = {number: stack.enter_context(_folder(config, out, number, command)) for number in (None, *steps)}
        done = {(number, row.key) for number, writer in folders.items() for row in writer.rows if row.usable}
        todo = [turn for turn in turns(config, steps) if turn not in done]
        if not todo:
            return
        with opened(config, server_plans(config), folders[None], workload_of(config), reporter, Keys(), stop) as bench:
            require_players(bench.servers, VARIANTS, out / REFERENCE)
            benches = {number: _bench(config, writer, folders[None], bench, stop) for number, writer in folders.items()}
            reporter.plan(len(todo), config.load_s * len(todo))
            for at, (number, key) in enumerate(todo, start=1):
                if stop.is_set():
                    return
                told = countdown(reporter, key, config.load_s, config.load_s * (len(todo) - at))
                server = bench.servers[key.variant]
                if number is not None:
                    _set(server, number)
                before = _counts(server)
                reporter.row(benches[number].measure(key, policy_of(key.variant, config), told))
                if number is not None and (words := _told(number, before, _counts(server))):
                    reporter.say(words)


def _bench(config: SweepConfig, writer: RunWriter, first: RunWriter, bench: Bench, stop: threading.Event) -> Bench:
    """The same servers, writing into another folder, whose manifest says so."""
    if writer is not first:
        share_servers(first, writer)
    return Bench(config, writer, bench.servers, bench.workload, attempts_of(writer.path, writer.rows), stop)


def _set(server: Server, steps: int) -> None:
    """Bring the draft's KV up so often from now on; a simulated server has none."""
    if server.simulation:
        return
    block = server.endpoint.set_numbers({SYNC_KEY: steps}, "steps of draft sync")
    if block.get("draft_sync_steps") != steps:
        reason = block.get("last_error") or "it knows no such setting"
        raise UserError(f"{server.endpoint.public_url} does not sync its draft every {steps} plain steps: {reason}")


def _counts(server: Server) -> tuple[int, int]:
    """Plain steps and catch-ups so far; zeros where the server tells of neither."""
    block: dict[str, Any] = specpivot_block(server.endpoint.server_info()) or {}
    return block.get("steps_off", 0), block.get("draft_syncs", 0)


def _told(steps: int, before: tuple[int, int], after: tuple[int, int]) -> str:
    plain, syncs = after[0] - before[0], after[1] - before[1]
    return f"sync every {steps}: {plain / syncs:.1f} plain steps for each of {syncs} catch-ups" if syncs > 0 else ""


def _folder(config: SweepConfig, out: Path, number: int | None, command: Sequence[str]) -> RunWriter:
    """The run folder of one number of steps."""
    folder = out / (REFERENCE if number is None else FOLDER.format(number))
    made = new_manifest(config, command)
    return begun(folder, msgspec.structs.replace(made, config=made.config | {"sync_steps": number}))


def judged(out: Path) -> Found:
    """What each number of steps loses against the reference.

    Raises:
        UserError: nothing was measured there.
    """
    if not (out / REFERENCE / MANIFEST).exists():
        raise UserError(f"{out} has no {REFERENCE}; measure it with --out {out}")
    reference = RunFolder(out / REFERENCE)
    rows, config = usable(reference.levels()), reference.manifest.settings
    found: list[Claim] = []
    missing = _missing(rows, config)
    for folder in sorted(out.glob(FOLDER.format("*")), key=lambda path: int(path.name.rpartition("-")[2])):
        others = usable(RunFolder(folder).levels())
        missing += _missing(others, config)
        found += off_claims(f"{out.resolve().name}/{folder.name}", [*rows, *others], VARIANTS[0])
    return Found(reference.manifest.source, missing, tuple(found))


def _missing(rows: Sequence[LevelRow], config: Settings) -> int:
    return len(config.concurrency) * config.repeats - len({row.key for row in rows})


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_settings(parser, "a sweep's settings; its variants do not count")
    parser.add_argument("--steps", default=",".join(map(str, STEPS)), metavar="N,N,...", help="default: %(default)s")
    parser.add_argument("--attach", action="append", metavar="VARIANT=URL", help="baseline and forced_off run already")
    parser.add_argument("--sim", help="a preset of simulated servers instead: says what the command does, nothing else")
    parser.add_argument("--time-scale", type=float, default=1.0, help="of the simulated servers' clocks")
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--judge", type=Path, metavar="FOLDER", help="judge what was measured before")
    asked = parser.parse_args(arguments)
    try:
        if asked.judge is None:
            if asked.out is None:
                raise UserError("give --out FOLDER, or --judge FOLDER")
            steps = steps_of(asked.steps)
            command = ("benchmarks.sync_steps", *(sys.argv[1:] if arguments is None else arguments))
            measure(settings(asked), steps, asked.out, command)
        found = judged(asked.judge or asked.out)
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(table(found.claims), file=sys.stderr)
    if found.source != "measured":
        print(f"{found.source}: no draft is brought up there, so that all numbers of steps are alike", file=sys.stderr)
    print(msgspec.json.encode(found).decode())
    return 0 if found.claims and not found.missing else 3 if found.claims else 2


if __name__ == "__main__":
    raise SystemExit(main())
