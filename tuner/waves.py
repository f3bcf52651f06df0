"""Load that rises and falls around a threshold, and the points that are measured under it.

Rates come from the measured curves: calm is what half the threshold's batch takes, the crest is what twice its batch
takes with speculation off. Points go to a run folder of their own below the tuning's: no curve is made of them.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np

from harness.api import PlannedRequest
from harness.arrivals import scheduled
from harness.bench import Bench
from harness.config import SweepConfig
from harness.manifest import new_manifest, workload_of
from harness.openload import Arrivals
from harness.records import LevelRow, Manifest, PointKey, Variant
from harness.runfolder import MANIFEST, RunWriter
from harness.servers import Server
from harness.workload import WorkloadPlan
from patched_worker.policy import Policy
from tuner.hysteresis import MeasureWave, Wave, place_of, point_number
from tuner.levels import decode_batches, usable

CREST_OVER_CALM = 1.3  # at least, where the curves are flat
BURSTS_PER_WINDOW = 6
BURST_SHARE = 1 / 3  # of a period


class WaveRequests(WorkloadPlan, frozen=True):
    """Requests with the times of a wave; a point's number says which, see hysteresis.place_of."""

    waves: dict[Wave, Arrivals] = {}

    def requests(self, concurrency: int, repeat: int) -> Iterator[PlannedRequest]:
        wave, round_ = place_of(repeat)
        return scheduled(super().requests(concurrency, 1 + round_), self.waves[wave].due_s(self.seed + round_))


def waves_around(
    rows: Iterable[LevelRow], off: Variant, threshold: int, warmup_s: float, window_s: float
) -> dict[Wave, Arrivals]:
    """A ramp and bursts whose decode batch passes the threshold.

    Args:
        rows: of eagle3 and `off`.
        off: what stands for "off".
        threshold: to pass.
        warmup_s, window_s: of each point.
    """
    good = usable(rows)
    calm = _requests_per_s(good, "eagle3", threshold / 2)
    crest = max(_requests_per_s(good, off, 2.0 * threshold), CREST_OVER_CALM * calm)
    stay_s = threshold / _requests_per_s(good, off, float(threshold))  # Little's law
    every_s = min(max(window_s / BURSTS_PER_WINDOW, 4 * stay_s), window_s / 2)
    return {
        "ramp": Arrivals(ramp=(calm, crest, warmup_s + window_s)),
        "burst": Arrivals(burst=(calm, crest, every_s, every_s * BURST_SHARE)),
    }


def in_words(waves: dict[Wave, Arrivals]) -> str:
    """What is sent, for people."""
    ramp, burst = waves["ramp"].ramp, waves["burst"].burst
    assert ramp is not None
    assert burst is not None
    return (
        f"ramps from {ramp[0]:.1f} to {ramp[1]:.1f} requests/s, and bursts of {burst[3]:.1f} s every {burst[2]:.1f} s"
        f" between the same rates"
    )


def row_in_words(row: LevelRow) -> str:
    """What a point under waves gave, for people."""
    if not row.usable or row.in_flight_mean is None:
        return f"{row.status}: {row.verdict}"
    often = "1 switch" if row.switches == 1 else f"{row.switches} switches"
    return f"{row.in_flight_mean:.1f} requests in flight on average, {often}"


def most_in_flight(config: SweepConfig, threshold: int) -> int:
    """Requests that are in flight under waves around a threshold, at most."""
    return max(config.max_concurrency, 4 * threshold)


@contextmanager
def wave_bench(
    bench: Bench, waves: dict[Wave, Arrivals], threshold: int, command: Sequence[str], stop: threading.Event
) -> Iterator[tuple[Bench, MeasureWave]]:
    """The tuning's patched server under waves, with a run folder of its own.

    Args:
        bench: the tuning's own; its server plays `dynamic`.
        waves: what is sent, where the folder is new; one that exists goes on with its own.
        threshold: that every candidate serves.
        command: the command line, for the manifest.
        stop: set to end the point in progress.
    """
    limit = most_in_flight(bench.config, threshold)
    config = msgspec.structs.replace(
        bench.config, variants=("dynamic",), concurrency=(limit,), threshold=threshold, resume_at=None
    )
    folder = bench.writer.path / f"hysteresis-{threshold}"
    with _opened(folder, config, bench.writer.manifest, waves, command) as writer:
        waves = msgspec.convert(writer.manifest.config["waves"], dict[Wave, Arrivals])
        workload = WaveRequests(**msgspec.structs.asdict(workload_of(config, under_way=False)), waves=waves)
        attempts = Counter({row.key: row.attempt for row in writer.rows})
        servers: dict[Variant, Server] = {"dynamic": bench.servers["dynamic"]}
        under_waves = Bench(config, writer, servers, workload, attempts, stop, open_loop=True)

        def measure(policy: Policy, wave: Wave, round_: int, candidate: int) -> LevelRow:
            return under_waves.measure(PointKey("dynamic", limit, point_number(wave, round_, candidate)), policy)

        yield under_waves, measure


def _opened(
    folder: Path, config: SweepConfig, parent: Manifest, waves: dict[Wave, Arrivals], command: Sequence[str]
) -> RunWriter:
    if (folder / MANIFEST).exists():
        return RunWriter.resume(folder)
    made = new_manifest(config, command, under_way=False)
    played = {"dynamic": parent.variants["dynamic"]}
    sent = {**made.config, "waves": msgspec.to_builtins(waves)}
    return RunWriter.create(
        folder,
        msgspec.structs.replace(
            made,
            source=parent.source,
            config=sent,
            variants=played,
            servers=parent.servers,
            simulation=parent.simulation,
        ),
    )


def _requests_per_s(rows: Sequence[LevelRow], variant: Variant, batch: float) -> float:
    """Requests per second at a decode batch, interpolated between levels in logarithms and flat beyond them."""
    mine = [row for row in rows if row.variant == variant and row.requests and row.output_tok_per_s]
    batches, _ = decode_batches(mine, (variant,))
    rates = {
        c: float(np.mean([math.log(row.output_tok_per_s or math.nan) for row in mine if row.concurrency == c]))
        for c in batches
    }
    tokens = sum((row.output_tok_per_s or 0.0) * row.duration_s for row in mine) / sum(row.requests for row in mine)
    order = sorted(batches, key=lambda c: batches[c])
    at = np.interp(math.log(batch), np.log([batches[c] for c in order]), [rates[c] for c in order])
    return math.exp(float(at)) / tokens
