r"""Switching under load that rises and falls, on one server: a ramp of users up and down again, and bursts.

A patched server meets the same users while it always speculates, never does, and switches, interleaved and repeated;
each wave has a run folder of its own below --out, which the same command resumes. What comes of it is
benchmarks.oracle's judgement, as JSON on the last line.

    python -m benchmarks.crossings --config results/configs/NAME.toml --model TARGET --draft DRAFT --threshold N \
      --out results/NEW
    python -m benchmarks.crossings --judge results/NEW/ramp results/NEW/burst
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from benchmarks.asked import add_settings, require_players, settings_of
from benchmarks.folders import begun, share_servers
from benchmarks.oracle import Switching, judged
from harness.bench import Bench
from harness.config import SweepConfig, make_config
from harness.console import ConsoleReporter
from harness.crowd import Crowd
from harness.errors import UserError
from harness.manifest import new_manifest, workload_of
from harness.records import PointKey, Variant
from harness.runfolder import MANIFEST, RunFolder, RunWriter
from harness.sweep import Keys, attempts_of, countdown, interruptible, opened
from harness.variants import policy_of, server_plans

Wave = Literal["ramp", "burst"]
VARIANTS: tuple[Variant, ...] = ("eagle3", "forced_off", "dynamic")
LENGTH_S, WARMUP_S = 60.0, 4.0
EVERY_S, CREST_S = 10.0, 4.0  # of bursts
RANGE_RATIO = (
    0.5  # users who come at once with equal requests would end at once, and the batch fall below the threshold
)


def waves(threshold: int, most: int) -> dict[Wave, Crowd]:
    """From one user to `most` and back, and bursts from half of the threshold to twice as many.

    Args:
        threshold: which both pass.
        most: users at the top.

    Raises:
        UserError: they would not pass it.
    """
    low, high = max(1, threshold // 2), min(most, 2 * threshold)
    if not low <= threshold < high:
        raise UserError(f"--threshold {threshold}: give one from 1 to {most - 1}, the largest concurrency less one")
    top, end = (WARMUP_S + LENGTH_S / 2, float(most)), (WARMUP_S + LENGTH_S, 1.0)
    bursts: list[tuple[float, float]] = [(0.0, low)]
    for number in range(round(LENGTH_S / EVERY_S)):
        crest_s = WARMUP_S + EVERY_S * number + EVERY_S - CREST_S
        bursts += [(crest_s, low), (crest_s, high), (crest_s + CREST_S, high), (crest_s + CREST_S, low)]
    return {"ramp": ((WARMUP_S, 1.0), top, end), "burst": tuple(bursts)}


def settings(asked: argparse.Namespace) -> SweepConfig:
    """The sweep's settings with one long point per state.

    Raises:
        UserError: a setting that cannot be.
    """
    document = settings_of(asked, "sim", "threshold", "repeats") | {"variants": list(VARIANTS)}
    document |= {"warmup": WARMUP_S, "duration": LENGTH_S, "time_scale": asked.time_scale}
    document.setdefault("random_range_ratio", RANGE_RATIO)
    if asked.attach:
        document["attach"] = dict.fromkeys(VARIANTS, asked.attach)
    config = make_config(document)
    return msgspec.structs.replace(config, concurrency=(config.max_concurrency,))


def measure(config: SweepConfig, out: Path, command: Sequence[str]) -> list[Path]:
    """Every wave, on one life of the server; the run folders.

    Raises:
        UserError: no server, or a folder that holds another run.
    """
    assert config.threshold is not None
    folders = [out / wave for wave in waves(config.threshold, config.max_concurrency)]
    with ConsoleReporter() as reporter, interruptible() as stop:
        if all(_missing(config, folder) == [] for folder in folders):
            return folders
        crowds = waves(config.threshold, config.max_concurrency)
        with _folder(config, out / "ramp", "ramp", crowds["ramp"], command) as writer:
            plans, workload = server_plans(config), workload_of(config, under_way=False)
            with opened(config, plans, writer, workload, reporter, Keys(), stop) as bench:
                require_players(bench.servers, VARIANTS, out / "ramp")
                for wave, crowd in crowds.items():
                    if wave == "ramp":
                        _points(config, bench, writer, crowd, reporter, stop)
                        continue
                    with _folder(config, out / wave, wave, crowd, command) as other:
                        share_servers(writer, other)
                        _points(config, bench, other, crowd, reporter, stop)
    return folders


def _points(
    config: SweepConfig,
    opened_bench: Bench,
    writer: RunWriter,
    crowd: Crowd,
    reporter: ConsoleReporter,
    stop: threading.Event,
) -> None:
    attempts = attempts_of(writer.path, writer.rows)
    bench = Bench(config, writer, opened_bench.servers, opened_bench.workload, attempts, stop, crowd=crowd)
    todo = _missing(config, writer.path)
    reporter.plan(len(todo), config.load_s * len(todo))
    for number, key in enumerate(todo, start=1):
        if stop.is_set():
            return
        told = countdown(reporter, key, config.load_s, config.load_s * (len(todo) - number))
        reporter.row(bench.measure(key, policy_of(key.variant, config), told))


def _missing(config: SweepConfig, folder: Path) -> list[PointKey]:
    done = {row.key for row in RunFolder(folder).levels() if row.usable} if (folder / MANIFEST).exists() else set()
    turned = [VARIANTS[turn % 3 :] + VARIANTS[: turn % 3] for turn in range(config.repeats)]
    wanted = [PointKey(v, config.max_concurrency, r) for r, of in enumerate(turned, start=1) for v in of]
    return [key for key in wanted if key not in done]


def _folder(config: SweepConfig, folder: Path, wave: Wave, crowd: Crowd, command: Sequence[str]) -> RunWriter:
    """A run folder whose manifest holds the wave; one that was begun goes on."""
    sent: dict[str, Any] = {"wave": wave, "crowd": [list(point) for point in crowd]}
    made = new_manifest(config, command, under_way=False)
    return begun(folder, msgspec.structs.replace(made, config=made.config | sent))


def line(found: Switching) -> str:
    """A wave's judgement for people."""
    span = "one repeat" if found.low is None else f"{found.low:.3f} to {found.high:.3f}"
    return (
        f"{found.run} ({found.source}): {found.ratio:.3f} of the oracle's tokens ({span}), which speculates up to"
        f" {found.oracle_users:.0f} users; {found.switches_per_crossing:.1f} switches per crossing at most;"
        f" {'met' if found.met else 'not met'}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_settings(parser, "a sweep's settings; its largest concurrency is the ramp's top")
    parser.add_argument("--attach", metavar="URL", help="a patched server that runs already")
    parser.add_argument("--sim", help="a preset of a simulated server instead")
    parser.add_argument("--time-scale", type=float, default=1.0, help="of the simulated server's clock")
    parser.add_argument("--threshold", type=int)
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--judge", nargs="+", type=Path, metavar="RUN", help="judge what was measured before")
    asked = parser.parse_args(arguments)
    try:
        if asked.judge is None and (asked.out is None or asked.threshold is None):
            raise UserError("give --threshold N and --out FOLDER, or --judge RUN ...")
        command = ("benchmarks.crossings", *(sys.argv[1:] if arguments is None else arguments))
        folders = asked.judge or measure(settings(asked), asked.out, command)
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    found = []
    for folder in folders:  # one that lacks something keeps no other from being judged
        try:
            found.append(judged(RunFolder(folder)))
            print(line(found[-1]), file=sys.stderr)
        except (UserError, OSError) as error:
            print(f"error: {error}", file=sys.stderr)
    print(msgspec.json.encode({"switching": found}).decode())
    return 0 if len(found) == len(folders) else 3 if found else 2


if __name__ == "__main__":
    raise SystemExit(main())
