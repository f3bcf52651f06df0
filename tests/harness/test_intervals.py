"""Intervals of quantiles and ratios: wider where samples move together, none from too few."""

import numpy as np
import pytest
from scipy import stats

from harness.intervals import NO_INTERVAL, in_order, quantile, quantile_interval, ratio_interval, spans


def test_independent_samples_have_the_interval_of_order_statistics() -> None:
    """Without groups it is scipy's quantile test; the upper end of p99 needs 368 samples."""
    for size, share in ((6, 0.5), (101, 0.5), (1000, 0.99)):
        values = np.random.default_rng(size).exponential(size=size)
        found = stats.quantile_test(values, p=share).confidence_interval(0.95)
        assert quantile_interval(values, np.sort(values), share, ()) == pytest.approx((found.low, found.high))
    for size, bounded in ((367, False), (368, True)):
        values = np.arange(size, dtype=float)
        low, high = quantile_interval(values, values, 0.99, ())
        assert low is not None
        assert (high is not None) is bounded
    assert quantile_interval(np.arange(5.0), np.arange(5.0), 0.5, ()) == NO_INTERVAL


def test_samples_that_move_together_are_worth_less() -> None:
    """A hundred copies of each of 40 values tell no more than the 40; the naive interval of 4000 is far narrower."""
    values = np.random.default_rng(3).exponential(size=40)
    copies = np.repeat(values, 100)
    owner = np.repeat(np.arange(40), 100)
    ordered = np.sort(copies)
    naive = quantile_interval(copies, ordered, 0.5, ())
    grouped = quantile_interval(copies, ordered, 0.5, (owner,))
    single = quantile_interval(values, np.sort(values), 0.5, ())
    assert None not in (*naive, *grouped, *single)
    width = {name: ends[1] - ends[0] for name, ends in (("n", naive), ("g", grouped), ("s", single))}  # type: ignore[operator]  # not None
    assert width["n"] < 0.3 * width["g"]
    assert width["g"] == pytest.approx(width["s"], rel=0.25)


def test_the_worse_grouping_counts() -> None:
    """Samples that differ by moment only are caught by the grouping in time, though requests look alike."""
    rng = np.random.default_rng(5)
    moments_s = rng.uniform(0.0, 10.0, 4000)
    in_time = spans(moments_s)
    values = rng.exponential(size=4000) + in_time % 2  # every other twentieth is slow
    owner = rng.integers(0, 200, 4000)
    ordered = np.sort(values)
    by_request = quantile_interval(values, ordered, 0.5, (owner,))
    both = quantile_interval(values, ordered, 0.5, (owner, in_time))
    assert both[1] - both[0] > 2 * (by_request[1] - by_request[0])  # type: ignore[operator]  # not None


@pytest.mark.parametrize("kind", ["independent", "by_request", "by_moment"])
def test_intervals_hold_the_truth_as_often_as_they_say(kind: str) -> None:
    """Of 200 samples of known distributions, about 95 % of the intervals of the median do; naive ones would not."""
    rng = np.random.default_rng(7)
    held = {"naive": 0, "grouped": 0}
    for _ in range(200):
        owner = np.repeat(np.arange(60), 40)
        moments_s = np.repeat(rng.uniform(0, 7, 60), 40) + np.tile(np.arange(40) * 0.075, 60)
        luck = {"independent": np.zeros(2400), "by_request": rng.normal(size=60)[owner] * 0.4}
        luck["by_moment"] = rng.normal(size=40)[(moments_s * 4).astype(int) % 40] * 0.4
        values = luck[kind] + rng.normal(size=2400)
        ordered = np.sort(values)
        for name, groupings in (("naive", ()), ("grouped", (owner, spans(moments_s)))):
            low, high = quantile_interval(values, ordered, 0.5, groupings)
            assert low is not None
            assert high is not None
            held[name] += low <= 0.0 <= high
    assert held["grouped"] >= 180
    assert (held["naive"] >= 180) == (kind == "independent")


def test_too_few_groups_say_nothing() -> None:
    """One long request, however many gaps it has, bounds nothing; nor does a ratio over five requests."""
    values = np.arange(1000.0)
    assert quantile_interval(values, values, 0.5, (np.zeros(1000, dtype=np.int64),)) == NO_INTERVAL
    assert quantile_interval(values[:0], values[:0], 0.5, ()) == NO_INTERVAL
    five = np.arange(5)
    assert ratio_interval(np.arange(5.0), np.ones(5), (five,)) == NO_INTERVAL
    assert ratio_interval(np.zeros(0), np.zeros(0), (np.zeros(0, dtype=np.int64),)) == NO_INTERVAL


def test_a_ratio_is_bounded_by_its_residuals() -> None:
    """Ten requests of 10 steps with 20 tokens, one more or one less: half-width t(9) * sqrt(10 / 9 * 10) / 100."""
    tokens = 20.0 + np.array([1.0, -1.0] * 5)
    low, high = ratio_interval(tokens, np.full(10, 10.0), (np.arange(10),))
    half = float(stats.t.ppf(0.975, 9)) * (10 / 9 * 10) ** 0.5 / 100
    assert (low, high) == pytest.approx((2.0 - half, 2.0 + half))


def test_sorting_by_counting_is_sorting() -> None:
    """Small numbers are counted, sparse ones sorted; quantiles are numpy's."""
    rng = np.random.default_rng(1)
    for top in (50, 2**31 - 1):
        ticks = rng.integers(0, top, 1000, dtype=np.int32)
        ordered = in_order(ticks)
        assert ordered.tolist() == sorted(ticks.tolist())
        for share in (0.0, 0.5, 0.99, 1.0):
            assert quantile(ordered, share) == pytest.approx(float(np.quantile(ticks, share)))
    assert quantile(in_order(ticks[:0]), 0.5) is None


def test_moments_fall_into_twentieths_of_their_span() -> None:
    """The last moment belongs to the last span; one moment is one span."""
    assert spans(np.array([5.0, 5.49, 5.5, 15.0])).tolist() == [0, 0, 1, 19]
    assert spans(np.array([3.0, 3.0])).tolist() == [0, 0]
    assert spans(np.zeros(0)).tolist() == []
