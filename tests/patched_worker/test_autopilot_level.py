"""A level's mean, its error, what it forgets and when it breaks."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from patched_worker.autopilot_evidence import ACCEPT
from patched_worker.autopilot_level import Kind, Level

KIND = Kind(half_life_s=100.0, unit_sd=1.0, break_runs=(3,), break_sigmas=5.0, break_size=0.1)


def test_without_observations_nothing_is_known() -> None:
    """An infinite error, never a small one."""
    assert Level(KIND).variance() == math.inf


def test_error_is_the_observations_own() -> None:
    """Whatever was assumed at the start, it is near the truth after 400 observations."""
    source = random.Random(1)
    level = Level(Kind(1e9, 10.0, (3,), 5.0, 0.1))
    for second in range(400):
        level.add(source.gauss(2.0, 0.5), 4.0, second)

    # an observation of weight 4 has variance 0.25, so one of weight 1 has 1
    assert level.variance() == pytest.approx(1.0 / (400 * 4.0), rel=0.5)
    assert abs(level.mean - 2.0) < 4 * math.sqrt(level.variance())


def test_neighbours_that_follow_one_another_widen_the_error() -> None:
    """Blocks that share their requests are worth less than independent ones."""
    source = random.Random(2)
    free, bound, value = Level(KIND), Level(KIND), 0.0
    for second in range(300):
        value = 0.7 * value + math.sqrt(1 - 0.49) * source.gauss(0, 1)
        bound.add(value, 1.0, second)
        free.add(source.gauss(0, 1), 1.0, second)

    assert bound.scatter.inflation > 2.0 > 1.3 > free.scatter.inflation


def test_what_is_old_counts_half_after_its_half_life() -> None:
    """One observation of weight 8, a half-life later, weighs 4."""
    level = Level(KIND)
    level.add(1.0, 8.0, 0.0)
    level.add(1.0, 1.0, 100.0)

    assert level.weight == pytest.approx(5.0)


def filled(value: float = 2.0) -> Level:
    """A level after 50 observations around `value`."""
    source, level = random.Random(3), Level(Kind(1e9, 0.05, (3,), 5.0, 0.1))
    for second in range(50):
        level.add(source.gauss(value, 0.05), 1.0, second)
    return level


def test_one_wild_value_hardly_moves_it() -> None:
    """A step that waited for a garbage collection is no news."""
    level = filled()
    assert not level.add(20.0, 1.0, 51.0)

    assert level.mean == pytest.approx(2.0, abs=0.03)


def test_a_run_on_one_side_is_a_break() -> None:
    """Three values far off in a row: what was before does not count any more."""
    level = filled()
    broke = [level.add(3.0 + 0.01 * index, 1.0, 51.0 + index) for index in range(3)]

    assert broke == [False, False, True]
    assert level.mean == pytest.approx(3.01)
    assert level.count == 3


def test_a_small_shift_is_followed_without_a_break() -> None:
    """Less than the break's size is drift."""
    level = filled()

    assert not any(level.add(2.05, 1.0, 51.0 + index) for index in range(20))
    assert level.mean > 2.005


def swinging(mean: float, spread: float, blocks: int, level: Level, start: int = 0) -> int:
    """Breaks while a level swings around `mean` for so many blocks, four a second, each swing some 8 s long."""
    source, swing, breaks = random.Random(5), 0.0, 0
    for index in range(start, start + blocks):
        swing = 0.97 * swing + math.sqrt(1 - 0.97**2) * source.gauss(0, spread)
        breaks += level.add(mean + swing + source.gauss(0, 0.06), 384.0, index / 4)
    return breaks


def test_which_requests_happen_to_run_is_no_break_and_a_change_is_one() -> None:
    """Half an hour of swings of 3 % passes, from the first minute on; a drop by a fifth does not."""
    level = Level(ACCEPT)

    assert swinging(2.0, 0.06, 7200, level) == 0
    assert abs(level.mean - 2.0) < 4 * math.sqrt(level.variance())
    assert swinging(1.6, 0.06, 40, level, 7200) == 1
    assert level.mean == pytest.approx(1.6, abs=0.1)


def test_many_observations_within_one_swing_are_hardly_more_than_one() -> None:
    """A minute of four in a second, then a minute of one in five seconds: the later one counts for about as much."""
    level = Level(replace(ACCEPT, half_life_s=math.inf, break_sigmas=math.inf))
    swinging(2.0, 0.06, 240, level)
    before = level.mean
    for index in range(12):
        level.add(before - 0.1, 384.0, 65.0 + 5 * index)

    assert 0.03 < before - level.mean < 0.07
