"""From the levels of a run to the pivot, with its interval.

The pivot is where log(throughput on / throughput off) crosses zero. Speculation's gain falls with the batch, so the
ratio is fitted by a falling isotonic regression over log2 of the measured decode batch and interpolated between
levels. Intervals come from a bootstrap over repeats: a repeat moves all its levels together and each point moves by
itself, both as large as this run's own repeats show.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np
import scipy

from harness.records import LevelRow, Variant
from harness.sittings import apart
from tuner.levels import decode_batches, reference_among, table, usable
from tuner.noise import CONFIDENCE, Floats, Table, draw_means, single_repeat_only

Shape = Literal["crossover", "always_on", "always_off", "not_monotone"]

REVERSAL_Z = 2.33  # one-sided 1 %: how clear a loss below a win must be before one threshold is not enough
REVERSAL_GAIN = math.log(1.01)  # and how large


class Ratio(msgspec.Struct, frozen=True):
    """log(throughput on / throughput off) at one concurrency.

    Attributes:
        log_ratio: mean over repeats; above 0 speculation wins.
        fitted: the same after the monotone fit.
        se: standard error of `log_ratio`.
    """

    concurrency: int
    batch: float
    log_ratio: float
    fitted: float
    se: float
    repeats: int


class Pivot(msgspec.Struct, frozen=True):
    """Where speculation turns from gain to loss.

    Attributes:
        shape: crossover; always_on or always_off where the sign never changes over the measured levels;
            not_monotone where speculation clearly loses at a smaller batch and clearly wins at a larger one.
        batch: the crossing, in requests of the decode batch; None unless the shape is crossover.
        threshold: largest decode batch that should speculate; 0 never, None always.
        interval: 90 % interval of the threshold; 0 and None at its ends as in `threshold`.
        off: the variant that stood for "speculation off".
        ratios: the fitted points, smallest batch first.
        warnings: what weakens the answer, in words.
    """

    shape: Shape
    batch: float | None
    threshold: int | None
    interval: tuple[int | None, int | None]
    off: Variant
    ratios: tuple[Ratio, ...]
    warnings: tuple[str, ...] = ()


def off_variant(rows: Sequence[LevelRow], reference: Variant | None = None) -> tuple[Variant, tuple[str, ...]]:
    """Which variant stands for "off", and the warnings that go with the choice.

    Args:
        rows: usable rows.
        reference: the variant that eagle3 is judged against, as the manifest names it.
    """
    measured = {row.variant for row in rows}
    if "forced_off" in measured:
        return "forced_off", ()
    chosen: Variant = reference or reference_among(measured) or "baseline_no_overlap"
    return chosen, (
        f"forced_off was not measured: {chosen} stands in for it, so what the patched server loses while off is"
        " not in the pivot, and the true pivot may be higher",
    )


def pivot(rows: Iterable[LevelRow], reference: Variant | None = None, seed: int = 0) -> Pivot | None:
    """The pivot of eagle3 against off; None where the two share no usable concurrency.

    Args:
        rows: rows of levels.csv; those that are not usable are ignored.
        reference: what to take for "off" where forced_off was not measured.
        seed: of the bootstrap.
    """
    good = usable(rows)
    off, warnings = off_variant(good, reference)
    good, torn = _of_one_sitting(good, off)
    on, without = table(good, "eagle3"), table(good, off)
    paired = log_ratios(on, without)
    if not paired:
        return None
    batches, measured = decode_batches(good, ("eagle3", off))
    x = np.log2([batches[c] for c in paired])
    y = np.array([np.mean(list(values.values())) for values in paired.values()])
    weights = np.array([len(values) for values in paired.values()], dtype=float)
    draws = draw_means(paired, own_sd=_own_sd(good, ("eagle3", off)), seed=seed)
    se = draws.std(axis=0)
    shape, crossing, crossings = _cross(x, y, weights, se, draws)
    fitted = fall(y, weights)
    ratios = tuple(
        Ratio(c, float(2 ** x[i]), float(y[i]), float(fitted[i]), float(se[i]), len(values))
        for i, (c, values) in enumerate(paired.items())
    )
    return Pivot(
        shape=shape,
        batch=crossing if shape == "crossover" else None,
        threshold=as_threshold(crossing),
        interval=_interval(crossings),
        off=off,
        ratios=ratios,
        warnings=(
            *warnings,
            *_never_together(paired, on, without, off),
            *torn,
            *_batch_unknown(paired, measured),
            *_one_repeat(paired),
        ),
    )


def _never_together(paired: Iterable[int], on: Table, without: Table, off: Variant) -> list[str]:
    apart = [str(c) for c in paired if not on[c].keys() & without[c].keys()]
    if not apart:
        return []
    return [
        f"C={', '.join(apart)}: no repeat has a usable point of both eagle3 and {off}, so whatever drifted between"
        " repeats counts there; --resume measures again what is not usable"
    ]


def _of_one_sitting(rows: Sequence[LevelRow], off: Variant) -> tuple[list[LevelRow], list[str]]:
    """The rows without pairs whose halves were measured hours apart, and a warning of them.

    A concurrency that has no other pair keeps them: servers that do not fit together are measured one after the other.
    """
    pairs = [row for row in rows if row.variant in ("eagle3", off)]
    torn = apart(pairs)
    if not torn:
        return list(rows), []
    whole = {place for place, halves in Counter((r.concurrency, r.repeat) for r in pairs).items() if halves == 2} - torn
    kept = {level for level, _ in whole}
    levels = sorted({level for level, _ in torn})
    fate = "are left out where there are others" if kept & set(levels) else "hold what drifted between them"
    warning = (
        f"C={', '.join(map(str, levels))}: pairs of eagle3 and {off} from servers that started hours apart {fate};"
        " --resume measures them again"
    )
    return [row for row in rows if (row.concurrency, row.repeat) not in torn or row.concurrency not in kept], [warning]


def _batch_unknown(paired: Iterable[int], measured: Mapping[int, bool]) -> list[str]:
    if all(measured[c] for c in paired):
        return []
    return ["the server did not report its decode batch everywhere: the concurrency stands in for it there"]


def _one_repeat(paired: dict[int, dict[int, float]]) -> list[str]:
    if not single_repeat_only(paired):
        return []
    return ["one repeat only: the interval rests on the points' own spread and misses drift between repeats"]


def log_ratios(on: Table, off: Table) -> dict[int, dict[int, float]]:
    """on - off at every shared concurrency, paired by repeat so that drift common to both cancels.

    Where a concurrency shares no repeat, its repeats are paired in the order they were measured.
    """
    paired: dict[int, dict[int, float]] = {}
    for c in sorted(on.keys() & off.keys()):
        shared = sorted(on[c].keys() & off[c].keys())
        pairs = [(r, r) for r in shared] or list(zip(sorted(on[c]), sorted(off[c]), strict=False))
        paired[c] = {a: on[c][a] - off[c][b] for a, b in pairs}
    return paired


def fall(y: Floats, weights: Floats) -> Floats:
    """The closest falling sequence (weighted least squares; pool adjacent violators)."""
    return np.asarray(scipy.optimize.isotonic_regression(y, weights=weights, increasing=False).x, dtype=float)


def cross(x: Floats, fitted: Floats) -> float:
    """Decode batch at which a falling curve over log2(batch) reaches zero; inf if it never does, 0 if it starts there.

    Args:
        x: log2 of the decode batch, rising.
        fitted: falling values.
    """
    if fitted[-1] > 0:
        return math.inf
    if fitted[0] <= 0:
        return 0.0
    i = int(np.argmax(fitted <= 0)) - 1
    share = fitted[i] / (fitted[i] - fitted[i + 1])
    return float(2 ** (x[i] + share * (x[i + 1] - x[i])))


def as_threshold(crossing: float) -> int | None:
    """The largest whole decode batch at or below a crossing; None where it never comes, 0 where it is 0.

    Any other crossing is at least 1: a lone request decodes in a batch of 1, however short the mean falls of it.
    """
    if math.isinf(crossing):
        return None
    return 0 if crossing == 0 else max(1, math.floor(crossing + 1e-9))


def _cross(x: Floats, y: Floats, weights: Floats, se: Floats, draws: Floats) -> tuple[Shape, float, Floats]:
    """Shape, crossing and the crossings of the bootstrap draws."""
    if _reverses(y, se):
        return "not_monotone", _best_cut(x, y), np.array([_best_cut(x, draw) for draw in draws])
    crossing = cross(x, fall(y, weights))
    shape: Shape = "always_on" if math.isinf(crossing) else "always_off" if crossing == 0 else "crossover"
    return shape, crossing, np.array([cross(x, fall(draw, weights)) for draw in draws])


def _reverses(y: Floats, se: Floats) -> bool:
    """Whether a clear loss stands at a smaller batch than a clear win."""
    clear = np.maximum(REVERSAL_Z * se, REVERSAL_GAIN)
    losses, wins = np.flatnonzero(y < -clear), np.flatnonzero(y > clear)
    return bool(losses.size and wins.size and losses[0] < wins[-1])


def _best_cut(x: Floats, y: Floats) -> float:
    """Batch below which speculating, and above which not, gains most over the levels: the best single threshold."""
    gains = np.concatenate([[0.0], np.cumsum(y)])
    cut = int(np.argmax(gains))
    if cut == 0:
        return 0.0
    return math.inf if cut == len(y) else float(2 ** ((x[cut - 1] + x[cut]) / 2))


def _interval(crossings: Floats) -> tuple[int | None, int | None]:
    tail = (1 - CONFIDENCE) / 2
    # "lower"/"higher" take an order statistic: interpolating towards inf would give nan.
    low = float(np.quantile(crossings, tail, method="lower"))
    high = float(np.quantile(crossings, 1 - tail, method="higher"))
    return as_threshold(low), as_threshold(high)


def _own_sd(rows: Iterable[LevelRow], variants: tuple[Variant, Variant]) -> dict[int, float]:
    """Relative spread of a ratio by concurrency, from the points' own 95 % intervals."""
    squares: dict[int, float] = defaultdict(float)
    for row in rows:
        if row.variant in variants and row.output_tok_per_s_low and row.output_tok_per_s_high:
            sd = math.log(row.output_tok_per_s_high / row.output_tok_per_s_low) / (2 * 1.96)
            squares[row.concurrency] = max(squares[row.concurrency], 2 * sd**2)
    return {c: math.sqrt(square) for c, square in squares.items()}
