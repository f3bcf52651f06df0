"""Whether an off server costs nothing and a dynamic one is the better of two, from the run folders of sweeps.

    python -m benchmarks.claims results/NAME ... -o results/claims.json

A run needs its reference and forced_off, or eagle3 and dynamic as well. Ratios are of points of the same repeat, so
that drift of the machine cancels; their 95 % intervals take the scatter of one pair from all levels of the claim,
because three repeats of one level say little of it. A point meets its bar unless its interval lies wholly beyond it; a
claim is met when each of its points is and the geometric mean over the levels meets the bar itself. The last line is
JSON.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
from scipy import stats

from harness.errors import UserError
from harness.records import LevelRow, Variant
from harness.runfolder import RunFolder
from tuner.levels import usable

Metric = Literal["output_tok_per_s", "tpot_p50_s"]
Logs = dict[int, dict[int, float]]
CONFIDENCE = 0.95
# What is claimed: name, metric, bar. Throughput must be at least so high, time per token at most.
OFF_THROUGHPUT, OFF_TPOT = 0.97, 1.03
DYNAMIC_THROUGHPUT, DYNAMIC_TPOT_C1 = 0.97, 1.02


class ClaimPoint(msgspec.Struct, frozen=True):
    """One level of a claim.

    Attributes:
        against: the variant in the denominator.
        ratio: geometric mean over repeats, with its 95 % interval; the ends are None where nothing was repeated.
    """

    concurrency: int
    against: Variant
    ratio: float
    low: float | None
    high: float | None
    repeats: int
    met: bool


class Claim(msgspec.Struct, frozen=True):
    """One claim on one run.

    Attributes:
        bar: what the ratio must reach (throughput) or must not exceed (time per token).
        geometric_mean: of the ratios over the levels.
    """

    run: str
    claim: str
    metric: Metric
    bar: float
    geometric_mean: float
    met: bool
    points: tuple[ClaimPoint, ...]


def claims_of(run: RunFolder) -> list[Claim]:
    """What the run's points say on each claim that its variants allow.

    Raises:
        UserError: it was not measured, or has neither forced_off nor dynamic beside what they are compared with.
    """
    if run.manifest.source != "measured":
        raise UserError(f"{run.path} is {run.manifest.source}; claims are made from measured runs only")
    rows = usable(run.levels())
    known = {row.variant for row in rows}
    eagle = run.manifest.variants.get("eagle3")
    reference = (eagle.reference if eagle else None) or "baseline"
    name = run.path.resolve().name
    found: list[Claim | None] = []
    if {"forced_off", reference} <= known:
        for metric, bar in (("output_tok_per_s", OFF_THROUGHPUT), ("tpot_p50_s", OFF_TPOT)):
            found.append(_claim(name, "off", metric, bar, rows, "forced_off", (reference,)))
    if {"dynamic", "eagle3", reference} <= known:
        both = (reference, "eagle3")
        found.append(_claim(name, "dynamic", "output_tok_per_s", DYNAMIC_THROUGHPUT, rows, "dynamic", both))
        alone = [row for row in rows if row.concurrency == 1]
        found.append(_claim(name, "dynamic, alone", "tpot_p50_s", DYNAMIC_TPOT_C1, alone, "dynamic", ("eagle3",)))
    if claims := [claim for claim in found if claim is not None]:
        return claims
    raise UserError(f"{run.path} has no repeat with {reference} and forced_off, or dynamic; sweep with these variants")


def _claim(
    run: str,
    claim: str,
    metric: Metric,
    bar: float,
    rows: Sequence[LevelRow],
    variant: Variant,
    others: Sequence[Variant],
) -> Claim | None:
    """`variant` over the best of the others at each level; None where no repeat holds both."""
    ours, theirs = logs(rows, variant, metric), {other: logs(rows, other, metric) for other in others}
    best = max if metric == "output_tok_per_s" else min
    pairs: dict[int, tuple[Variant, list[float]]] = {}
    for level in sorted(ours):
        means = {other: float(np.mean(list(of[level].values()))) for other, of in theirs.items() if level in of}
        if not means:
            continue
        against = best(means, key=lambda other: means[other])
        shared = ours[level].keys() & theirs[against][level].keys()
        if shared:
            pairs[level] = against, [ours[level][repeat] - theirs[against][level][repeat] for repeat in sorted(shared)]
    if not pairs:
        return None
    half_widths = intervals([values for _, values in pairs.values()])
    points = tuple(
        _point(level, against, values, half, metric, bar)
        for (level, (against, values)), half in zip(pairs.items(), half_widths, strict=True)
    )
    mean = math.exp(math.fsum(math.log(point.ratio) for point in points) / len(points))
    met = all(point.met for point in points) and (mean >= bar if metric == "output_tok_per_s" else mean <= bar)
    return Claim(run, claim, metric, bar, mean, met, points)


def _point(
    level: int, against: Variant, values: Sequence[float], half: float | None, metric: Metric, bar: float
) -> ClaimPoint:
    mean = math.fsum(values) / len(values)
    low, high = (None, None) if half is None else (math.exp(mean - half), math.exp(mean + half))
    ratio = math.exp(mean)
    best = (low if metric == "tpot_p50_s" else high) or ratio  # the end of the interval that may still meet the bar
    met = best <= bar if metric == "tpot_p50_s" else best >= bar
    return ClaimPoint(level, against, ratio, low, high, len(values), met)


def intervals(groups: Sequence[Sequence[float]]) -> list[float | None]:
    """Half the width of each group's 95 % interval; the scatter is that of all groups together.

    Args:
        groups: values of each level, each level around a mean of its own.
    """
    df = sum(len(group) - 1 for group in groups)
    if df == 0:
        return [None] * len(groups)
    squares = math.fsum(float(np.var(group)) * len(group) for group in groups)
    reach = float(stats.t.ppf(0.5 + CONFIDENCE / 2, df)) * math.sqrt(squares / df)
    return [reach / math.sqrt(len(group)) for group in groups]


def logs(rows: Sequence[LevelRow], variant: Variant, metric: Metric) -> Logs:
    """Logarithms of a figure of one variant, by concurrency and repeat."""
    found: Logs = defaultdict(dict)
    for row in rows:
        value = getattr(row, metric)
        if row.variant == variant and value:
            found[row.concurrency][row.repeat] = math.log(value)
    return dict(found)


def table(claims: Sequence[Claim]) -> str:
    """The claims as a Markdown table, a line per level and one for the mean."""
    lines = [
        "| run | claim | C | against | ratio | 95 % | bar | met |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for claim in claims:
        sign = ">=" if claim.metric == "output_tok_per_s" else "<="
        what = f"{claim.run} | {claim.claim}: {claim.metric}"
        for point in claim.points:
            span = "one repeat" if point.low is None else f"{point.low:.3f} to {point.high:.3f}"
            ratio = f"{point.ratio:.3f} | {span} | {sign} {claim.bar} | {'yes' if point.met else 'no'}"
            lines.append(f"| {what} | {point.concurrency} | {point.against} | {ratio} |")
        mean = f"{claim.geometric_mean:.3f} | | {sign} {claim.bar} | {'yes' if claim.met else 'no'}"
        lines.append(f"| {what} | all | | {mean} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="run folders of sweeps")
    parser.add_argument("-o", "--out", type=Path, help="also write the JSON document to this file")
    asked = parser.parse_args(arguments)
    try:
        claims = [claim for path in asked.runs for claim in claims_of(RunFolder(path))]
        document = msgspec.json.encode({"claims": claims})
        if asked.out:
            asked.out.write_bytes(msgspec.json.format(document, indent=1) + b"\n")
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(table(claims), file=sys.stderr)
    print(document.decode())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
