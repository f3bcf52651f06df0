"""The noise model recovers what was put in, and its draws are as wide as the means are uncertain."""

from __future__ import annotations

import numpy as np
import pytest

from tuner.noise import Table, draw_means, estimate, single_repeat_only


def noisy(rng: np.random.Generator, levels: int, repeats: int, point: float, shift: float) -> Table:
    shifts = shift * rng.standard_normal(repeats)
    return {
        2**i: {r: i + shifts[r] + point * float(rng.standard_normal()) for r in range(repeats)} for i in range(levels)
    }


def test_estimate_recovers_both_variances() -> None:
    """With many levels and repeats both standard deviations come back within 15 %."""
    found = estimate(noisy(np.random.default_rng(3), levels=40, repeats=60, point=0.03, shift=0.05))
    assert found is not None
    assert found.point_sd == pytest.approx(0.03, rel=0.15)
    assert found.shift_sd == pytest.approx(0.05, rel=0.15)


def test_nothing_repeated_gives_no_estimate_but_draws_from_own_spread() -> None:
    """A single repeat falls back on each point's own spread, and on an assumed one where that is unknown."""
    table: Table = {1: {0: 0.0}, 2: {0: 1.0}}
    assert single_repeat_only(table)
    assert estimate(table) is None
    drawn = draw_means(table, own_sd={1: 0.2}, draws=4000)
    assert drawn.std(axis=0) == pytest.approx([0.2, 0.03], rel=0.1)


def test_draws_cover_the_true_mean() -> None:
    """Over many runs of three repeats the 90 % interval of a level covers its true mean about 90 % of the time."""
    rng = np.random.default_rng(5)
    inside = []
    for seed in range(300):
        drawn = draw_means(noisy(rng, levels=8, repeats=3, point=0.03, shift=0.015), draws=400, seed=seed)
        low, high = np.quantile(drawn[:, 3], [0.05, 0.95])
        inside.append(low <= 3 <= high)
    assert 0.84 <= np.mean(inside) <= 0.97


def test_unbalanced_repeats_give_narrower_levels_where_there_are_more() -> None:
    """A level measured nine times is known better than one measured twice."""
    rng = np.random.default_rng(7)
    table = {c: {r: 0.03 * float(rng.standard_normal()) for r in range(n)} for c, n in ((1, 2), (2, 9), (4, 2))}
    spread = draw_means(table, draws=4000).std(axis=0)
    assert spread[1] < 0.75 * min(spread[0], spread[2])
