"""How near a switching server comes to an oracle's switching, from runs under users who rise and fall.

The same users met the patched server three times: always speculating, never, and switching. The oracle has the better
of the first two at each number of users, at no cost and without delay: it switches at one number of users, the one
that would have served most tokens. Tokens count by their arrival, in slices of half a second.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec
import numpy as np
from numpy.typing import NDArray

from benchmarks.claims import intervals
from harness.crowd import Crowd, users_at
from harness.errors import UserError
from harness.records import LevelRow, RequestRecord, Variant
from harness.runfolder import RunFolder

SLICE_S = 0.5
BAR, SWITCHES_BAR = 0.97, 4.0
Slices = NDArray[np.float64]


class Switching(msgspec.Struct, frozen=True):
    """How switching did under one wave.

    Attributes:
        threshold: of the server.
        oracle_users: the most users with which the oracle speculates.
        ratio: tokens over the oracle's, geometric mean over repeats, with its 95 % interval; None with one repeat.
        gain_over_static: the oracle's tokens over those of the better static state: what there was to win.
        crossings: times at which the users pass the threshold, per repeat.
        switches_per_crossing: the most of any repeat.
        met: neither the interval nor the switches lie beyond their bars.
    """

    run: str
    wave: str
    source: str
    threshold: int
    oracle_users: float
    ratio: float
    low: float | None
    high: float | None
    repeats: int
    gain_over_static: float
    crossings: int
    switches_per_crossing: float
    met: bool


def judged(run: RunFolder) -> Switching:
    """What a run under a wave says.

    Raises:
        UserError: it has no wave, no crossing, or no repeat with all three states.
    """
    config = run.manifest.config
    crowd: Crowd = tuple((float(at_s), float(users)) for at_s, users in config.get("crowd", ()))
    if not crowd:
        raise UserError(f"{run.path} was not measured under a wave; make one with python -m benchmarks.crossings")
    rows = [row for row in run.levels() if row.usable]
    threshold = next((row.threshold for row in rows if row.variant == "dynamic" and row.threshold is not None), None)
    tokens = _tokens(run.requests(), rows)
    repeats = sorted(set.intersection(*({r for v, r in tokens if v == want} for want in ("eagle3", "forced_off"))))
    repeats = [repeat for repeat in repeats if ("dynamic", repeat) in tokens]
    if threshold is None or not repeats:
        raise UserError(f"{run.path} has no repeat with eagle3, forced_off and dynamic; resume it")
    times = crossings(crowd, threshold, rows[0].window_start_s, rows[0].window_end_s)
    if not times:
        raise UserError(f"{run.path}: the users never pass the threshold {threshold}; take another wave")
    starts = rows[0].window_start_s + SLICE_S * np.arange(len(tokens["dynamic", repeats[0]]))
    users = np.array([users_at(crowd, float(at_s) + SLICE_S / 2) for at_s in starts])
    static = {v: np.mean([tokens[v, r] for r in repeats], axis=0) for v in ("eagle3", "forced_off")}
    level = best_level(static["eagle3"], static["forced_off"], users)
    per_repeat = [
        (tokens["dynamic", r].sum(), _composed(tokens["eagle3", r], tokens["forced_off", r], users, level).sum())
        for r in repeats
    ]
    logs = [math.log(ours / oracle) for ours, oracle in per_repeat]
    (half,), mean = intervals([logs]), math.fsum(logs) / len(logs)
    most = max(row.switches or 0 for row in rows if row.variant == "dynamic" and row.repeat in repeats)
    high = None if half is None else math.exp(mean + half)
    return Switching(
        run=run.path.resolve().name,
        wave=str(config.get("wave", "")),
        source=run.manifest.source,
        threshold=threshold,
        oracle_users=level,
        ratio=math.exp(mean),
        low=None if half is None else math.exp(mean - half),
        high=high,
        repeats=len(repeats),
        gain_over_static=float(_composed(**_named(static), users=users, level=level).sum())
        / max(float(of.sum()) for of in static.values()),
        crossings=len(times),
        switches_per_crossing=most / len(times),
        met=(high or math.exp(mean)) >= BAR and most / len(times) <= SWITCHES_BAR,
    )


def best_level(on: Slices, off: Slices, users: Slices) -> float:
    """The most users with which speculating pays, switching at one number of users; 0 where it never does."""
    levels: list[float] = [0.0, *sorted(set(users.tolist()))]
    return max(levels, key=lambda level: float(_composed(on, off, users, level).sum()))


def crossings(crowd: Crowd, threshold: int, start_s: float, end_s: float) -> list[float]:
    """When the number of users passes the threshold inside a window, either way."""
    found = []
    for (left_s, left), (right_s, right) in pairwise(crowd):
        if (left > threshold) != (right > threshold):
            at_s = left_s + (right_s - left_s) * (threshold - left) / (right - left)
            if start_s <= at_s < end_s:
                found.append(at_s)
    return found


def _composed(on: Slices, off: Slices, users: Slices, level: float) -> Slices:
    return np.where(users <= level, on, off)


def _named(static: dict[str, Slices]) -> dict[str, Slices]:
    return {"on": static["eagle3"], "off": static["forced_off"]}


def _tokens(records: Iterable[RequestRecord], rows: Sequence[LevelRow]) -> dict[tuple[Variant, int], Slices]:
    """Tokens that arrived in each slice of the window, by variant and repeat; of usable points only."""
    places = {(row.variant, row.repeat): row for row in rows}
    found: dict[tuple[Variant, int], Slices] = {}
    for (variant, repeat), row in places.items():
        found[variant, repeat] = np.zeros(int((row.window_end_s - row.window_start_s) / SLICE_S))
    wanted = defaultdict(int, {(row.variant, row.repeat): row.attempt for row in rows})
    for record in records:
        place = (record.variant, record.repeat)
        if wanted[place] != record.attempt:
            continue
        slices, start_s = found[place], places[place].window_start_s
        for at_s, tokens in record.arrivals():
            index = math.floor((at_s - start_s) / SLICE_S)
            if 0 <= index < len(slices):
                slices[index] += tokens
    return found
