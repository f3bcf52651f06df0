"""Which points of a run were measured in one sitting.

A sweep interleaves its variants, so that what drifts (clocks, the host's other work) is common to the points of one
repeat at one concurrency. A point measured again hours later, by servers of another start, shares nothing with them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

from harness.records import LevelRow, PointKey, Variant

APART_S = 3600.0  # servers of one sitting start together, or by blocks some minutes after one another


def started_s(row: LevelRow) -> float | None:
    """When the server of a row started, in seconds since the epoch; None where nobody knows."""
    _, _, start = row.server_run.rpartition("@")
    return float(start) if start.replace(".", "", 1).isdecimal() else None


def apart(rows: Iterable[LevelRow]) -> set[tuple[int, int]]:
    """(concurrency, repeat) of which usable points are of servers that started hours apart."""
    starts: dict[tuple[int, int], list[float]] = defaultdict(list)
    for row in rows:
        if row.usable and (start_s := started_s(row)) is not None:
            starts[row.concurrency, row.repeat].append(start_s)
    return {place for place, seconds in starts.items() if max(seconds) - min(seconds) > APART_S}


def settled(rows: Collection[LevelRow], variants: Collection[Variant], now_s: float) -> set[PointKey]:
    """The points of `variants` that need no measuring when a sweep goes on.

    A usable point is measured again where the points beside it are of another sitting, or will be because they are
    missing and it is not of this one.

    Args:
        rows: what has been measured.
        variants: whose points are interleaved.
        now_s: seconds since the epoch.
    """
    beside: dict[tuple[int, int], list[LevelRow]] = defaultdict(list)
    for row in rows:
        if row.usable and row.variant in variants:
            beside[row.concurrency, row.repeat].append(row)
    found: set[PointKey] = set()
    for group in beside.values():
        starts = [start_s for row in group if (start_s := started_s(row)) is not None]
        is_old = bool(starts) and now_s - min(starts) > APART_S
        if not apart(group) and (len(group) == len(variants) or not is_old):
            found |= {row.key for row in group}
    return found
