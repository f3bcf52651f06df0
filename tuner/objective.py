"""What a threshold is worth: our score, the literal objective, and what being off costs.

A threshold is replayed on the measured curves: a level whose decode batch is at or below it has eagle3's throughput,
any other has the off variant's. So one measured pair of curves judges every threshold, and the difference between
two thresholds carries the noise of only the levels that they treat differently.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import msgspec
import numpy as np

from harness.records import LevelRow, Variant
from tuner.curves import Pivot
from tuner.levels import Level, decode_batches, levels, table, usable
from tuner.noise import CONFIDENCE, draw_means

TIE = 0.005  # thresholds whose peak throughput is this close are not told apart by the literal objective


class Curves(msgspec.Struct, frozen=True):
    """The usable rows of a run, arranged for judging thresholds.

    Attributes:
        rows: usable rows.
        off: the variant that stands for "off".
        reference: the variant an operator would otherwise run.
        by_variant: level means.
        batches: mean decode batch by concurrency.
        weights: weight by concurrency, summing to 1.
    """

    rows: tuple[LevelRow, ...]
    off: Variant
    reference: Variant
    by_variant: dict[Variant, list[Level]]
    batches: dict[int, float]
    weights: dict[int, float]

    def level(self, variant: Variant, concurrency: int) -> Level | None:
        return next((lv for lv in self.by_variant.get(variant, ()) if lv.concurrency == concurrency), None)

    def speculates(self, threshold: int | None, concurrency: int) -> bool:
        return threshold is None or self.batches[concurrency] <= threshold


class LiteralAnswer(msgspec.Struct, frozen=True):
    """The answer of the literal objective: peak throughput under the latency constraint.

    Attributes:
        threshold: smallest threshold that reaches the peak.
        tok_per_s: that peak, over all levels.
        within_half_percent: smallest and largest threshold whose peak is within 0.5 % of it: how little it decides.
    """

    threshold: int | None
    tok_per_s: float
    within_half_percent: tuple[int | None, int | None]


class LatencyC1(msgspec.Struct, frozen=True):
    """The constraint: a lone user must not become slower than with static EAGLE-3, but for the slack.

    Attributes:
        eagle3_s: time per output token of eagle3 at the smallest concurrency, in seconds.
        at_threshold_s: the same at the threshold.
        slack: what is allowed, as a share.
        ok: False only where the excess is beyond both the slack and the noise.
        concurrency: the level it was taken at.
    """

    eagle3_s: float | None
    at_threshold_s: float | None
    slack: float
    ok: bool
    concurrency: int


def curves(rows: Iterable[LevelRow], off: Variant, reference: Variant, weights: Mapping[int, float] | None) -> Curves:
    """Arrange rows for judging; only concurrencies that eagle3 and `off` share take part.

    Args:
        rows: rows of levels.csv.
        off: the variant that stands for "off".
        reference: what an operator would otherwise run; `off` where it was not measured.
        weights: traffic histogram, weight by number of concurrent requests; each entry counts for the nearest level.
    """
    good = usable(rows)
    by_variant = levels(good)
    shared = sorted(table(good, "eagle3").keys() & table(good, off).keys())
    batches, _ = decode_batches(good, ("eagle3", off))
    return Curves(
        rows=tuple(good),
        off=off,
        reference=reference if reference in by_variant else off,
        by_variant=by_variant,
        batches={c: batches[c] for c in shared},
        weights=level_weights(shared, weights),
    )


def candidates(c: Curves) -> list[int | None]:
    """One threshold for each way of splitting the levels: never, up to each level, always."""
    return [0, *sorted({math.ceil(batch) for batch in c.batches.values()})[:-1], None]


def throughput(c: Curves, threshold: int | None, concurrency: int) -> float:
    """Replayed output throughput, in tokens per second."""
    variant: Variant = "eagle3" if c.speculates(threshold, concurrency) else c.off
    level = c.level(variant, concurrency)
    return level.tok_per_s if level else math.nan


def shares(c: Curves, threshold: int | None) -> dict[int, dict[int, float]]:
    """log(throughput at the threshold / the better of reference and eagle3), by concurrency and repeat.

    Which of the two is better is decided on the means: taking it repeat by repeat would favour the noisier one.
    """
    eagle3, off, reference = (table(c.rows, v) for v in ("eagle3", c.off, c.reference))
    found: dict[int, dict[int, float]] = {}
    for n in c.weights:
        chosen = eagle3[n] if c.speculates(threshold, n) else off[n]
        best = max((eagle3[n], reference.get(n, off[n])), key=lambda values: float(np.mean(list(values.values()))))
        paired = chosen.keys() & best.keys()
        mean_best = float(np.mean(list(best.values())))
        found[n] = {r: chosen[r] - (best[r] if r in paired else mean_best) for r in chosen}
    return found


def score(c: Curves, threshold: int | None) -> float:
    """Weighted geometric mean over C of throughput(C) / max(reference(C), eagle3(C)); 1 is the best of both.

    Args:
        threshold: largest decode batch that speculates; 0 never, None always.
    """
    logs = {n: float(np.mean(list(values.values()))) for n, values in shares(c, threshold).items()}
    return math.exp(sum(c.weights[n] * value for n, value in logs.items()))


def score_interval(c: Curves, threshold: int | None, seed: int = 0) -> tuple[float, float]:
    """90 % bootstrap interval of `score` over repeats."""
    found = shares(c, threshold)
    weights = np.array([c.weights[n] for n in found])
    drawn = np.exp(draw_means(found, seed=seed) @ weights)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail])
    return float(low), float(high)


def literal(c: Curves, slack: float) -> LiteralAnswer:
    """The literal objective: the highest throughput at any level, subject to the latency at the smallest one."""
    allowed = [t for t in candidates(c) if latency_c1(c, t, slack).ok] or [None]
    peaks = [max(throughput(c, t, n) for n in c.batches) for t in allowed]
    peak = max(peaks)
    close = [t for t, value in zip(allowed, peaks, strict=True) if value >= peak * (1 - TIE)]
    return LiteralAnswer(allowed[peaks.index(peak)], peak, (close[0], close[-1]))


def latency_c1(c: Curves, threshold: int | None, slack: float) -> LatencyC1:
    """Time per output token at the smallest concurrency, with the threshold against eagle3.

    Args:
        slack: allowed relative excess over eagle3.
    """
    n = min(c.batches)
    eagle3 = c.level("eagle3", n)
    chosen = eagle3 if c.speculates(threshold, n) else c.level(c.off, n)
    if eagle3 is None or chosen is None or eagle3.tpot_s is None or chosen.tpot_s is None:
        return LatencyC1(None, None, slack, True, n)
    surely = chosen.tpot_s if chosen.tpot_s_low is None else chosen.tpot_s_low
    ok = chosen is eagle3 or min(chosen.tpot_s, surely) <= (1 + slack) * eagle3.tpot_s
    return LatencyC1(eagle3.tpot_s, chosen.tpot_s, slack, ok, n)


def off_tax(c: Curves) -> dict[str, float]:
    """What being off costs: 1 - forced_off / reference, by concurrency; {} where either was not measured."""
    if c.off != "forced_off" or c.reference == "forced_off":
        return {}
    tax: dict[str, float] = {}
    for level in c.by_variant["forced_off"]:
        reference = c.level(c.reference, level.concurrency)
        if reference:
            tax[str(level.concurrency)] = 1 - level.tok_per_s / reference.tok_per_s
    return tax


def even_weights(fit: Pivot, concurrency: Iterable[int]) -> dict[int, float]:
    """Equal weights for the levels that were asked for and measured; those added between them count nothing."""
    measured = {ratio.concurrency for ratio in fit.ratios}
    return {c: 1.0 for c in concurrency if c in measured}


def level_weights(concurrencies: list[int], histogram: Mapping[int, float] | None) -> dict[int, float]:
    """A traffic histogram as weights of the measured levels, summing to 1; each entry counts for the nearest level."""
    if not histogram:
        return {c: 1 / len(concurrencies) for c in concurrencies}
    weights = dict.fromkeys(concurrencies, 0.0)
    for count, weight in histogram.items():
        if count > 0:  # an idle server is neither on nor off
            nearest = min(concurrencies, key=lambda c: abs(math.log(c) - math.log(count)))
            weights[nearest] += weight
    total = sum(weights.values())
    return {c: weight / total for c, weight in weights.items()}
