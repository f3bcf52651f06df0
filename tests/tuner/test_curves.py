"""Curves and pivot: known crossings are found, and every shape is an answer."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.records import LevelRow
from tests.tuner.runs import LEVELS, baseline, eagle3, forced_off, rows
from tuner.curves import as_threshold, cross, fall, log_ratios, pivot
from tuner.levels import levels, table

TRUE_PIVOT = 113.6  # where eagle3 meets forced_off


def test_pivot_is_found_in_decode_batches() -> None:
    """Without noise the crossing lies within interpolation error of the true one, in decode batches, not in C."""
    found = pivot(rows(noise=1e-6))
    assert found is not None
    assert found.shape == "crossover"
    assert found.batch == pytest.approx(TRUE_PIVOT, rel=0.03)
    assert found.threshold == math.floor(found.batch or 0)
    assert found.off == "forced_off"
    assert found.warnings == ()


def test_interval_holds_the_true_pivot_and_narrows_with_repeats() -> None:
    """Noise gives an interval around the truth; more repeats make it narrower."""
    few, many = pivot(rows(noise=0.03, repeats=3)), pivot(rows(noise=0.03, repeats=24))
    assert few is not None
    assert many is not None
    (a, b), (c, d) = few.interval, many.interval
    assert a is not None
    assert b is not None
    assert c is not None
    assert d is not None
    assert a <= TRUE_PIVOT <= b
    assert d - c < 0.7 * (b - a)


def test_always_on_and_always_off() -> None:
    """Curves that never cross say so: None is never disable, 0 is never speculate."""
    faster = pivot(rows({"eagle3": lambda b: 1.5 * forced_off(b), "forced_off": forced_off}))
    slower = pivot(rows({"eagle3": lambda b: 0.8 * forced_off(b), "forced_off": forced_off}))
    assert faster is not None
    assert slower is not None
    assert (faster.shape, faster.threshold, faster.batch, faster.interval) == ("always_on", None, None, (None, None))
    assert (slower.shape, slower.threshold, slower.batch, slower.interval) == ("always_off", 0, None, (0, 0))


def test_not_monotone_takes_the_best_single_threshold() -> None:
    """A clear loss below a clear win is reported, with the threshold that gains most over the levels."""
    found = pivot(
        rows({"eagle3": lambda b: forced_off(b) * (0.9 if b < 3 else 1.3 if b < 40 else 0.7), "forced_off": forced_off})
    )
    assert found is not None
    assert found.shape == "not_monotone"
    assert found.threshold is not None
    assert 0.95 * 32 <= found.threshold < 0.95 * 64


def test_noise_alone_is_not_a_reversal() -> None:
    """Equal curves with noise stay out of not_monotone."""
    shapes = [pivot(rows({"eagle3": forced_off, "forced_off": forced_off}, noise=0.03, seed=s)) for s in range(40)]
    assert sum(found is not None and found.shape == "not_monotone" for found in shapes) <= 4


def test_reference_stands_in_for_forced_off_with_a_warning() -> None:
    """Without forced_off the named reference is used, and the answer says what that hides."""
    found = pivot(
        rows({"eagle3": eagle3, "baseline": baseline, "baseline_no_overlap": forced_off}), "baseline_no_overlap"
    )
    assert found is not None
    assert found.off == "baseline_no_overlap"
    assert "forced_off was not measured" in found.warnings[0]


def test_concurrency_stands_in_for_an_unreported_batch() -> None:
    """Without decode_batch_mean the pivot is in C, and that is said."""
    found = pivot(rows(batch=None, noise=1e-6))
    assert found is not None
    assert [ratio.batch for ratio in found.ratios] == pytest.approx(LEVELS)
    assert any("concurrency stands in" in warning for warning in found.warnings)


def test_points_of_different_repeats_are_said_to_be_apart() -> None:
    """Where each repeat of a level has lost one of its two points, the ratio is of what drifted too."""
    top = LEVELS[-1]
    kept = [row for row in rows(noise=1e-6) if row.concurrency != top or (row.variant == "eagle3") == (row.repeat == 1)]
    found = pivot(kept)
    assert found is not None
    assert [warning.split(":")[0] for warning in found.warnings] == [f"C={top}"]


def again(rows: Iterable[LevelRow], server_run: str, *places: tuple[str, int, int]) -> list[LevelRow]:
    """The rows, those at `places` measured by another server that was half as fast."""
    return [
        msgspec.structs.replace(row, server_run=server_run, output_tok_per_s=(row.output_tok_per_s or 0.0) / 2)
        if (row.variant, row.concurrency, row.repeat) in places
        else msgspec.structs.replace(row, server_run="7@0.0")
        for row in rows
    ]


def test_pairs_of_two_sittings_are_left_out() -> None:
    """A point measured again by a server that started hours later changes nothing but the number of pairs, and is
    told; one that started minutes later, or nobody knows when, counts."""
    place = ("forced_off", 64, 1)
    before, after = pivot(rows(noise=1e-6)), pivot(again(rows(noise=1e-6), "50@7202.5", place))
    assert before is not None
    assert after is not None
    assert after.threshold == before.threshold
    assert [ratio.repeats for ratio in after.ratios if ratio.concurrency == 64] == [
        ratio.repeats - 1 for ratio in before.ratios if ratio.concurrency == 64
    ]
    assert [warning.split(";")[0] for warning in after.warnings] == [
        "C=64: pairs of eagle3 and forced_off from servers that started hours apart are left out where there are others"
    ]
    for near in ("50@900.0", "http://user@host:30000", ""):
        found = pivot(again(rows(noise=1e-6), near, place))
        assert found is not None
        assert found.warnings == ()
        assert found.ratios != before.ratios


def test_a_concurrency_with_no_other_pair_keeps_those_of_two_sittings() -> None:
    """Servers that do not fit together are measured one after the other, maybe for hours: that is said, and counts."""
    every = [(row.variant, row.concurrency, row.repeat) for row in rows() if row.variant == "eagle3"]
    before, found = pivot(rows(noise=1e-6)), pivot(again(rows(noise=1e-6), "50@7202.5", *every))
    assert before is not None
    assert found is not None
    lost = [ratio.log_ratio - now.log_ratio for ratio, now in zip(before.ratios, found.ratios, strict=True)]
    assert lost == pytest.approx([math.log(2)] * len(LEVELS))
    assert "hold what drifted between them" in found.warnings[0]


def test_one_repeat_is_said_to_be_one() -> None:
    """A single repeat still gives an interval, from the points' own, and a warning."""
    found = pivot(rows(repeats=1))
    assert found is not None
    assert found.interval[0] != found.interval[1]
    assert any("one repeat only" in warning for warning in found.warnings)


def test_unusable_rows_do_not_count() -> None:
    """A point with another verdict changes nothing, however wrong its value is."""
    good = rows()
    spoilt = msgspec.structs.replace(good[-1], repeat=9, output_tok_per_s=1.0, verdict="client_limited")
    partial = msgspec.structs.replace(good[-1], repeat=8, output_tok_per_s=1.0, status="partial")
    assert pivot([*good, spoilt, partial]) == pivot(good)
    assert levels([*good, spoilt, partial]) == levels(good)


def test_nothing_shared_is_no_pivot() -> None:
    """eagle3 and off at different concurrencies cannot be compared."""
    on = [row for row in rows() if row.variant == "eagle3" and row.concurrency < 8]
    off = [row for row in rows() if row.variant == "forced_off" and row.concurrency >= 8]
    assert pivot(on + off) is None
    assert pivot(on) is None


def test_level_means_carry_student_intervals() -> None:
    """The mean is geometric and its interval widens with the spread between repeats."""

    def point(repeat: int, rate: float) -> LevelRow:
        return LevelRow("baseline", 4, repeat, "done", "ok", output_tok_per_s=rate, decode_batch_mean=3.5)

    (level,) = levels([point(0, 90.0), point(1, 100.0), point(2, 110.0)])["baseline"]
    assert level.tok_per_s == pytest.approx((90 * 100 * 110) ** (1 / 3))
    half = 4.303 * np.log([90, 100, 110]).std(ddof=1) / math.sqrt(3)
    assert level.tok_per_s_high / level.tok_per_s == pytest.approx(math.exp(half), rel=1e-3)
    assert (level.batch, level.batch_measured, level.repeats) == (3.5, True, 3)


def test_a_latency_without_an_interval_is_not_given_one() -> None:
    """Rows of older runs have none of ttft; one that another repeat's row has is not borrowed either."""
    old = LevelRow("baseline", 4, 1, "done", "ok", output_tok_per_s=90.0, ttft_p50_s=0.05, tpot_p50_s=0.01)
    (level,) = levels([old])["baseline"]
    assert (level.ttft_s, level.tpot_s) == (pytest.approx(0.05), pytest.approx(0.01))
    assert (level.ttft_s_low, level.ttft_s_high, level.tpot_s_low, level.tpot_s_high) == (None, None, None, None)
    empty = LevelRow("baseline", 4, 1, "done", "ok", output_tok_per_s=90.0)
    new = msgspec.structs.replace(old, repeat=2, ttft_p50_s_low=0.04, ttft_p50_s_high=0.06)
    (level,) = levels([empty, new])["baseline"]
    assert (level.ttft_s_low, level.ttft_s_high) == (0.04, 0.06)


def test_ratios_pair_repeats() -> None:
    """Drift that both variants share in a repeat cancels; repeats that never meet are paired in order."""
    assert log_ratios({4: {0: 5.0, 1: 7.0}}, {4: {0: 4.0, 1: 6.0}, 8: {0: 1.0}}) == {4: {0: 1.0, 1: 1.0}}
    assert log_ratios({4: {3: 5.0}}, {4: {5: 4.0}}) == {4: {3: 1.0}}


@given(
    st.floats(0.5, 7.5),
    st.floats(0.05, 2.0),
    st.floats(-3, 3),
)
@settings(deadline=None)
def test_a_straight_falling_ratio_crosses_where_it_must(at: float, slope: float, extra: float) -> None:
    """On a line in log2(batch) the crossing is exact, whatever the slope and the units of the ratio."""
    x = np.arange(9.0)
    assert cross(x, slope * math.exp(extra) * (at - x)) == pytest.approx(2**at)


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=12))
@settings(deadline=None)
def test_fitted_ratios_fall_and_thresholds_are_whole(values: list[float]) -> None:
    """Whatever was measured, the fit falls and keeps the mean, and the threshold is None, 0 or a whole batch."""
    fitted = fall(np.array(values), np.ones(len(values)))
    assert (np.diff(fitted) <= 1e-12).all()
    assert fitted.mean() == pytest.approx(np.mean(values), abs=1e-9)
    threshold = as_threshold(cross(np.arange(float(len(values))), fitted))
    assert threshold is None or 0 <= threshold <= 2 ** len(values)


def test_table_keeps_repeats_apart() -> None:
    """A table holds the logarithm of each usable point under its concurrency and repeat."""
    found = table(rows(repeats=2), "eagle3")
    assert set(found) == set(LEVELS)
    assert set(found[8]) == {1, 2}
    assert found[8][1] == pytest.approx(math.log(eagle3(7.6)), abs=0.05)
