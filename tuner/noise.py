"""How far level means may be off, from the repeats of the run itself.

Model: log value of concurrency i in repeat r = mean_i + shift_r + noise_ir. A shift is what one pass over the levels
has in common (clocks, temperature, a neighbour); noise is each point's own. Both variances are estimated over all
levels at once, since three repeats of one level say little by themselves. The points' variance is drawn anew in each
bootstrap draw, so that few repeats give wide intervals; the shifts' is taken as estimated: it rests on too few passes,
and drawing it too made intervals cover more than they claim (benchmarks/tuner.py shows the coverage).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Table = Mapping[int, Mapping[int, float]]  # concurrency -> repeat -> value

CONFIDENCE = 0.90  # of every interval of a pivot or a score
DRAWS = 1000
ASSUMED_SD = 0.03  # relative noise of a point where there is one repeat and its rows give no interval


class Noise(msgspec.Struct, frozen=True):
    """Standard deviations of the model, and the degrees of freedom behind the points'."""

    point_sd: float
    point_df: int
    shift_sd: float


def single_repeat_only(table: Table) -> bool:
    """Whether no level has a second repeat to learn the noise from."""
    return all(len(values) < 2 for values in table.values())


def estimate(table: Table) -> Noise | None:
    """The noise of a table; None where nothing was repeated."""
    level, repeat, value = _flat(table)
    n, levels, repeats = len(value), level.max() + 1, repeat.max() + 1
    point_df = n - levels - (repeats - 1)
    if point_df < 1:
        return None
    shift, residual = _two_way(level, repeat, value)
    point_variance = float(residual @ residual) / point_df
    per_repeat = np.bincount(repeat, minlength=repeats)
    spread = float(shift.var(ddof=1)) if repeats > 1 else 0.0
    shift_variance = max(0.0, spread - point_variance * float(np.mean(1 / per_repeat)))
    return Noise(point_variance**0.5, int(point_df), shift_variance**0.5)


def draw_means(table: Table, own_sd: Mapping[int, float] | None = None, draws: int = DRAWS, seed: int = 0) -> Floats:
    """Bootstrap draws of the level means, one row per draw, one column per concurrency in the table's order.

    Args:
        table: values by concurrency and repeat, as logarithms.
        own_sd: relative spread of a point by concurrency, used where nothing was repeated.
        draws: number of rows.
        seed: of the generator.
    """
    rng = np.random.default_rng(seed)
    level, repeat, value = _flat(table)
    count = np.bincount(level)
    means = np.bincount(level, weights=value) / count
    noise = estimate(table)
    if noise is None:
        sd = np.array([(own_sd or {}).get(c) or ASSUMED_SD for c in table])
        drawn: Floats = means + rng.standard_normal((draws, len(count))) * sd / np.sqrt(count)
        return drawn
    point_sd = _redrawn(noise.point_sd, noise.point_df, draws, rng)
    error = rng.standard_normal((draws, len(value))) * point_sd[:, None]
    error += (rng.standard_normal((draws, repeat.max() + 1)) * noise.shift_sd)[:, repeat]
    average = np.eye(len(count))[level] / count
    return np.asarray(means + error @ average, dtype=float)


def _redrawn(sd: float, df: int, draws: int, rng: np.random.Generator) -> Floats:
    """Standard deviations that would have given the estimate `sd` with `df` degrees of freedom."""
    if df < 1 or sd == 0:
        return np.full(draws, sd)
    return np.asarray(sd * np.sqrt(df / rng.chisquare(df, draws)), dtype=float)


def _flat(table: Table) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats]:
    repeats = {r: i for i, r in enumerate(sorted({r for values in table.values() for r in values}))}
    cells = [(i, repeats[r], v) for i, values in enumerate(table.values()) for r, v in values.items()]
    level, repeat, value = zip(*cells, strict=True)
    return np.array(level), np.array(repeat), np.array(value, dtype=float)


def _two_way(level: NDArray[np.int64], repeat: NDArray[np.int64], value: Floats) -> tuple[Floats, Floats]:
    """Least-squares shifts (mean zero) and residuals of level + repeat effects."""
    levels, repeats = level.max() + 1, repeat.max() + 1
    design = np.zeros((len(value), levels + repeats))
    design[np.arange(len(value)), level] = 1
    design[np.arange(len(value)), levels + repeat] = 1
    effects = np.linalg.lstsq(design, value, rcond=None)[0]
    shift = effects[levels:]
    return shift - shift.mean(), value - design @ effects
