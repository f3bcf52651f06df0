"""Whether an off server costs nothing and a dynamic one is the better of two, from the run folders of sweeps.

    python -m benchmarks.claims results/NAME ... -o results/claims.json
    python -m benchmarks.claims results/NAME --upstream results/OTHER

A run needs its reference and forced_off, or eagle3 and dynamic as well. Ratios are of points of the same repeat, so
that drift of the machine cancels; their 95 % intervals take the scatter of one pair from all levels of the claim,
because three repeats of one level say little of it. A point meets its bar unless its interval lies wholly beyond it; a
claim is met when each of its points is and the geometric mean over the levels meets the bar itself. A run of SGLang's
own adaptive mode is held to the same bars beside it: its gain over its own reference, on the reference of the claims'
run. The last line is JSON.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

import msgspec
import numpy as np
from scipy import stats

from harness.errors import UserError
from harness.records import LevelRow, PointKey, Variant
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
    rows, reference = _measured(run), reference_in(run)
    known = {row.variant for row in rows}
    name = run.path.resolve().name
    found: list[Claim | None] = []
    if {"forced_off", reference} <= known:
        found += off_claims(name, rows, reference)
    if {"dynamic", "eagle3", reference} <= known:
        both = (reference, "eagle3")
        found.append(_claim(name, "dynamic", "output_tok_per_s", DYNAMIC_THROUGHPUT, rows, "dynamic", both))
        alone = [row for row in rows if row.concurrency == 1]
        found.append(_claim(name, "dynamic, alone", "tpot_p50_s", DYNAMIC_TPOT_C1, alone, "dynamic", ("eagle3",)))
    if claims := [claim for claim in found if claim is not None]:
        return claims
    raise UserError(f"{run.path} has no repeat with {reference} and forced_off, or dynamic; sweep with these variants")


def off_claims(run: str, rows: Sequence[LevelRow], reference: Variant) -> list[Claim]:
    """The claims on `forced_off` against its reference; none where no repeat holds both."""
    bars: tuple[tuple[Metric, float], ...] = (("output_tok_per_s", OFF_THROUGHPUT), ("tpot_p50_s", OFF_TPOT))
    found = [_claim(run, "off", metric, bar, rows, "forced_off", (reference,)) for metric, bar in bars]
    return [claim for claim in found if claim is not None]


def upstream_beside(run: RunFolder, upstream: RunFolder) -> list[Claim]:
    """The claims on `dynamic`, of SGLang's own adaptive mode.

    Args:
        run: the claims' own, with its reference and eagle3.
        upstream: its reference, and under eagle3 a server with --speculative-adaptive.

    Raises:
        UserError: one of them was not measured, or is another run than that.
    """
    rows, others = _measured(run), _measured(upstream)
    played = upstream.manifest.variants.get("eagle3")
    server = upstream.manifest.servers.get(played.server_run) if played else None
    if server is None or "--speculative-adaptive" not in server.arguments:
        raise UserError(
            f"{upstream.path} has no server with --speculative-adaptive; give a run of an -upstream- config"
        )
    reference = reference_in(run)
    ours, theirs = ({row.key: row for row in of} for of in (rows, others))
    moved = []
    for row in others:
        mine, its_own = (
            of.get(PointKey(name, row.concurrency, row.repeat))
            for of, name in ((ours, reference), (theirs, reference_in(upstream)))
        )
        if row.variant == "eagle3" and mine is not None and its_own is not None:
            moved.append(msgspec.structs.replace(_moved(row, mine, its_own), variant="dynamic"))
    both, name = (reference, "eagle3"), upstream.path.resolve().name
    kept = [row for row in rows if row.variant in both] + moved
    alone = [row for row in kept if row.concurrency == 1]
    found = (
        _claim(name, "upstream", "output_tok_per_s", DYNAMIC_THROUGHPUT, kept, "dynamic", both),
        _claim(name, "upstream, alone", "tpot_p50_s", DYNAMIC_TPOT_C1, alone, "dynamic", ("eagle3",)),
    )
    if claims := [claim for claim in found if claim is not None]:
        return claims
    raise UserError(f"{upstream.path} and {run.path} share no level and repeat; resume them")


def reference_in(run: RunFolder) -> Variant:
    """What the run's speculative variants are judged against."""
    eagle = run.manifest.variants.get("eagle3")
    return (eagle.reference if eagle else None) or "baseline"


def _measured(run: RunFolder) -> list[LevelRow]:
    if run.manifest.source != "measured":
        raise UserError(f"{run.path} is {run.manifest.source}; claims are made from measured runs only")
    return usable(run.levels())


def _moved(row: LevelRow, mine: LevelRow, its_own: LevelRow) -> LevelRow:
    """The row as it would be on another machine's reference: its gain over its own reference stays."""
    scaled = {
        name: value * ours / theirs
        for name in get_args(Metric)
        if (value := getattr(row, name)) and (ours := getattr(mine, name)) and (theirs := getattr(its_own, name))
    }
    return msgspec.structs.replace(row, **dict.fromkeys(get_args(Metric)) | scaled)


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
    parser.add_argument("--upstream", type=Path, help="a run of SGLang's adaptive mode, beside the first run's claims")
    parser.add_argument("-o", "--out", type=Path, help="also write the JSON document to this file")
    asked = parser.parse_args(arguments)
    try:
        claims = [claim for path in asked.runs for claim in claims_of(RunFolder(path))]
        if asked.upstream:
            claims += upstream_beside(RunFolder(asked.runs[0]), RunFolder(asked.upstream))
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
