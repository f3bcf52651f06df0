"""Score, literal objective, constraint and off tax against values worked out by hand."""

from __future__ import annotations

import msgspec
import pytest

from harness.records import LevelRow, Variant
from tests.tuner.runs import rows
from tuner import objective
from tuner.objective import Curves, curves


def point(variant: Variant, c: int, rate: float, repeat: int = 0) -> LevelRow:
    tpot_s = c / rate
    return LevelRow(
        variant, c, repeat, "done", "ok", decode_batch_mean=float(c), output_tok_per_s=rate, tpot_p50_s=tpot_s
    )


def hand(weights: dict[int, float] | None = None) -> Curves:
    made = [
        point("baseline", 1, 100), point("eagle3", 1, 200), point("forced_off", 1, 90),
        point("baseline", 4, 400), point("eagle3", 4, 300), point("forced_off", 4, 360),
    ]  # fmt: skip
    return curves(made, "forced_off", "baseline", weights)


def test_score_by_hand() -> None:
    """Geometric mean of the share of the better of baseline and eagle3, for each way to switch."""
    assert objective.score(hand(), 1) == pytest.approx((1.0 * 0.9) ** 0.5)
    assert objective.score(hand(), 0) == pytest.approx((0.45 * 0.9) ** 0.5)
    assert objective.score(hand(), None) == pytest.approx((1.0 * 0.75) ** 0.5)


def test_weights_shift_the_score() -> None:
    """Traffic that only knows the small level does not see what happens at the large one; counts take the nearest."""
    assert objective.score(hand({1: 3.0}), None) == pytest.approx(1.0)
    assert objective.score(hand({1: 1.0, 5: 2.0, 3: 1.0, 0: 9.0}), None) == pytest.approx(0.75 ** (3 / 4))


def test_literal_objective_and_its_indifference() -> None:
    """Peak throughput under the constraint takes the smallest threshold that keeps a lone user fast."""
    answer = objective.literal(hand(), slack=0.05)
    assert answer.threshold == 1
    assert answer.tok_per_s == pytest.approx(360)
    assert objective.literal(hand(), slack=1.5).threshold == 0
    indifferent = objective.literal(curves(rows(noise=1e-6), "forced_off", "baseline", None), slack=0.05)
    assert indifferent.within_half_percent[0] == 1
    assert (indifferent.within_half_percent[1] or 0) > 100


def test_latency_constraint_needs_a_clear_violation() -> None:
    """Off at C=1 breaks the constraint; an interval that reaches the bound does not."""
    assert objective.latency_c1(hand(), 0, 0.05).ok is False
    assert objective.latency_c1(hand(), 1, 0.05).ok is True
    made = [msgspec.structs.replace(point("forced_off", 1, 188), tpot_p50_s_low=1 / 200, tpot_p50_s_high=1 / 180)]
    close = curves([point("eagle3", 1, 200), *made], "forced_off", "baseline", None)
    assert objective.latency_c1(close, 0, 0.05).ok is True


def test_off_tax() -> None:
    """forced_off against its reference, by concurrency; nothing to say where forced_off was not measured."""
    assert objective.off_tax(hand()) == pytest.approx({"1": 0.1, "4": 0.1})
    assert (
        objective.off_tax(curves([point("eagle3", 1, 2), point("baseline", 1, 1)], "baseline", "baseline", None)) == {}
    )


def test_score_interval_holds_the_score() -> None:
    """The interval of the score is around it, and narrow where noise is small."""
    c = curves(rows(noise=0.01), "forced_off", "baseline", None)
    low, high = objective.score_interval(c, 60)
    assert low < objective.score(c, 60) < high
    assert high - low < 0.03


def test_candidates_split_the_levels() -> None:
    """There is one candidate per way of splitting the levels."""
    assert objective.candidates(hand()) == [0, 1, None]
