"""How far the repeats of a run agree, in what they differ, and which of its pairs come from two sittings.

By concurrency: throughput, the gain of eagle3 over its reference, the spread of repeats, the undisturbed decode step,
and per request the time in which no step is made (prefills, and what the host takes). The last line on standard output
is a JSON document.

    python -m benchmarks.repeats results/NAME ...
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from harness.errors import UserError
from harness.records import LevelRow, RequestRecord, Variant
from harness.runfolder import RunFolder
from harness.sim.points import decode_step_s
from harness.sittings import APART_S, apart, started_s
from harness.verify import records_by_point
from tuner.curves import pivot
from tuner.levels import reference_in, usable
from tuner.words import name, span

LOW_C = 16  # up to here a step outweighs what holds it up


class Side(msgspec.Struct, frozen=True):
    """One variant at one concurrency; figures of its usable repeats, by repeat.

    Attributes:
        step_s: a decode step that no prefill holds up.
        held_s: seconds without a decode step per request that began.
        late: repeats of a later sitting.
    """

    tok_per_s: dict[int, float]
    ttft_s: dict[int, float]
    step_s: dict[int, float]
    held_s: dict[int, float]
    late: tuple[int, ...]


class Point(msgspec.Struct, frozen=True):
    """Both sides of one concurrency; `apart` are repeats that both have, from two sittings."""

    concurrency: int
    off: Side
    on: Side
    apart: tuple[int, ...]

    @property
    def pairs(self) -> list[int]:
        """Repeats with both sides; those from two sittings only where there are no others."""
        both = self.on.tok_per_s.keys() & self.off.tok_per_s.keys()
        return sorted(both - set(self.apart) or both)

    @property
    def gain(self) -> float | None:
        """Geometric mean over pairs of eagle3 over its reference."""
        ratios = [self.on.tok_per_s[r] / self.off.tok_per_s[r] for r in self.pairs]
        return statistics.geometric_mean(ratios) if ratios else None


class Scatter(msgspec.Struct, frozen=True):
    """Standard deviations between repeats, as shares, pooled over levels, where a repeat has both sides.

    Attributes:
        on, off: of the throughput of eagle3 and of its reference.
        gain: of their ratio; `independent` is what it would be if the two had nothing in common.
    """

    on: float
    off: float
    gain: float
    independent: float


class Repeats(msgspec.Struct, frozen=True):
    """What is said of one run.

    Attributes:
        scatter: of all levels, and of those up to and above `LOW_C`; absent where no level has two pairs.
        pivot: the threshold in words.
        late_over_early: median over points of throughput in a later sitting over that in the first; None without one.
    """

    run: str
    reference: Variant
    points: tuple[Point, ...]
    scatter: dict[str, Scatter]
    pivot: str
    late_over_early: float | None


def repeats_of(run: RunFolder) -> Repeats:
    """Read one run.

    Raises:
        UserError: it has no usable points of eagle3 and a reference.
    """
    rows = usable(run.levels())
    reference = reference_in(run.manifest, {row.variant for row in rows})
    if reference is None or not any(row.variant == "eagle3" for row in rows):
        raise UserError(f"{run.path} has no usable points of eagle3 and of a baseline; measure both")
    records = records_by_point(run, rows)
    torn = apart(row for row in rows if row.variant in ("eagle3", reference))
    first_s = min((start for row in rows if (start := started_s(row)) is not None), default=0.0)
    points = []
    for level in sorted({row.concurrency for row in rows}):
        on, off = ([r for r in rows if (r.variant, r.concurrency) == (v, level)] for v in ("eagle3", reference))
        made = [_side(side, records, first_s) for side in (off, on)]
        points.append(Point(level, made[0], made[1], tuple(sorted(repeat for at, repeat in torn if at == level))))
    bands = {"all": points, f"up to C={LOW_C}": [p for p in points if p.concurrency <= LOW_C]}
    bands[f"above C={LOW_C}"] = [p for p in points if p.concurrency > LOW_C]
    return Repeats(
        run.path.resolve().name,
        reference,
        tuple(points),
        {band: found for band, some in bands.items() if (found := scatter(some))},
        _pivot(rows, reference),
        _late_over_early(points),
    )


def scatter(points: Iterable[Point]) -> Scatter | None:
    """Spread between repeats around each level's mean; None where no level has two pairs."""
    squares, freedom = np.zeros(3), 0
    for point in points:
        on, off = (np.log([side.tok_per_s[r] for r in point.pairs]) for side in (point.on, point.off))
        if len(on) > 1:
            squares += [float(np.sum((x - x.mean()) ** 2)) for x in (on, off, on - off)]
            freedom += len(on) - 1
    if not freedom:
        return None
    deviations = [float(x) for x in np.sqrt(squares / freedom)]
    return Scatter(*deviations, independent=math.hypot(*deviations[:2]))


def held_s(row: LevelRow, records: Sequence[RequestRecord], step: float) -> float | None:
    """Seconds without a decode step per request that began; None where the row does not say how many ran at once."""
    inside = [record for record in records if record.ok and record.start_s >= row.window_start_s]
    if not (inside and row.output_tok_per_s and row.decode_batch_mean):
        return None
    steps_per_s = row.output_tok_per_s / row.decode_batch_mean / (row.accept_len or 1.0)
    requests_per_s = row.output_tok_per_s / statistics.fmean(record.output_tokens for record in inside)
    return (1 - steps_per_s * step) / requests_per_s


def _side(
    rows: Sequence[LevelRow], records: dict[tuple[Variant, int, int], list[RequestRecord]], first_s: float
) -> Side:
    steps = {row.repeat: step for row in rows if (step := decode_step_s(row, records[row.key])) is not None}
    held = {r.repeat: held_s(r, records[r.key], steps[r.repeat]) for r in rows if r.repeat in steps}
    return Side(
        {row.repeat: row.output_tok_per_s for row in rows if row.output_tok_per_s},
        {row.repeat: row.ttft_p50_s for row in rows if row.ttft_p50_s},
        steps,
        {repeat: seconds for repeat, seconds in held.items() if seconds is not None},
        tuple(row.repeat for row in rows if (started_s(row) or first_s) - first_s > APART_S),
    )


def _pivot(rows: Sequence[LevelRow], reference: Variant) -> str:
    fit = pivot(rows, reference)
    return f"{name(fit.threshold)}, 90 % {span(*fit.interval)}" if fit else "no pair"


def _late_over_early(points: Iterable[Point]) -> float | None:
    ratios = []
    for side in (side for point in points for side in (point.off, point.on)):
        early = [rate for repeat, rate in side.tok_per_s.items() if repeat not in side.late]
        late = [side.tok_per_s[repeat] for repeat in side.late]
        ratios += [rate / statistics.geometric_mean(early) for rate in late if early]
    return statistics.median(ratios) if ratios else None


def table(found: Repeats) -> str:
    """One run as a Markdown table, a line per concurrency, and what its pivot rests on."""
    lines = [
        f"{found.run}: off is {found.reference}; spread is largest over smallest less 1; times in ms",
        "| C | gain | pairs (apart) | tokens/s off, on | spread | step | held up | first token |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for point in found.points:
        sides = (point.off, point.on)
        rates = ", ".join(
            f"{statistics.geometric_mean(s.tok_per_s.values()):.0f}" if s.tok_per_s else "-" for s in sides
        )
        spread = ", ".join(f"{_spread(side):.1%}" for side in sides)
        times = [", ".join(_ms(v) for v in pair) for pair in _times(sides)]
        gain = "-" if point.gain is None else f"{point.gain:.3f}"
        pairs = f"{len(point.pairs)} ({len(point.apart)})"
        lines.append(f"| {' | '.join((str(point.concurrency), gain, pairs, rates, spread, *times))} |")
    for band, one in found.scatter.items():
        lines.append(
            f"{band}: repeats scatter by {one.on:.1%} (eagle3) and {one.off:.1%} (off), their ratio by {one.gain:.1%};"
            f" by {one.independent:.1%} if they shared nothing"
        )
    lines.append(f"pivot: {found.pivot}")
    if found.late_over_early:
        lines.append(f"later sittings over the first: {found.late_over_early:.3f} (median of points)")
    return "\n".join(lines)


def _times(sides: tuple[Side, Side]) -> list[list[dict[int, float]]]:
    return [[s.step_s for s in sides], [s.held_s for s in sides], [s.ttft_s for s in sides]]


def _spread(side: Side) -> float:
    rates = side.tok_per_s.values()
    return max(rates) / min(rates) - 1 if rates else 0.0


def _ms(values: dict[int, float]) -> str:
    if not values:
        return "-"
    low, high = (f"{1e3 * f(values.values()):.1f}" for f in (min, max))
    return low if low == high else f"{low} to {high}"


def main(arguments: Sequence[str] | None = None) -> int:
    """A table per run on standard error, the same as JSON on standard output."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="run folders of sweeps")
    try:
        found = [repeats_of(RunFolder(path)) for path in parser.parse_args(arguments).runs]
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print("\n\n".join(table(one) for one in found), file=sys.stderr)
    print(msgspec.json.encode({"runs": found}).decode())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
