"""A short, fixed part of the autopilot's benchmark: it must keep up with the oracle here, every time the same."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.autopilot import interval, mattered, moved_after, summary, windows
from benchmarks.drifting import Outcome, Scenario, play, wandering


def test_a_drift_is_followed_and_little_is_lost() -> None:
    """Acceptance falls from 2.8 to 1.8 after a minute: the threshold goes down in time, and 97 % of the oracle stay."""
    mixed = wandering(32, 0.8, 5, 200)
    scenario = Scenario("short", mixed, lambda s: 2.8 if s < 60 else 1.8, lambda _: 128, 160.0, ((60.0, -1),))
    ours, oracle = play(scenario, "autopilot", 5), play(scenario, "oracle", 5)

    assert moved_after(ours, 60.0, -1, 160.0) <= 60.0
    assert ours.rate(100, 160) / oracle.rate(100, 160) >= 0.97
    assert 0 < ours.flipped < 0.1
    again = play(scenario, "autopilot", 5)
    assert (again.thresholds, again.tokens[-1]) == (ours.thresholds, ours.tokens[-1])


def test_gates_meet_the_same_users() -> None:
    """The oracle is at least as good as always and never; a wrong gate would not be."""
    scenario = Scenario("short", lambda s: 1 if s < 20 else 96, lambda _: 1.8, lambda _: 128, 60.0)
    oracle, always, never = (play(scenario, kind, 3).tokens[-1] for kind in ("oracle", "on", "off"))

    assert oracle >= max(always, never)
    assert always != never


def outcome(rates: list[float], thresholds: list[tuple[float, int]] | None = None) -> Outcome:
    """A gate that brings so many tokens in each second."""
    return Outcome(np.concatenate([[0.0], np.cumsum(rates)]), thresholds or [(0.0, 32)])


def test_the_worst_window_is_against_the_better_static_choice_in_it() -> None:
    """Which may be another one in every window."""
    always, never = outcome([10.0] * 120 + [20.0] * 120), outcome([20.0] * 120 + [10.0] * 120)

    assert windows(outcome([18.0] * 240), (always, never), 240.0) == pytest.approx(0.9)


def test_moves_count_only_the_right_way_and_after_the_drift() -> None:
    """A move up does not answer a drift that asks for down."""
    ours = outcome([1.0], [(0.0, 32), (40.0, 16), (70.0, 20), (90.0, 12)])

    assert moved_after(ours, 60.0, -1, 200.0) == 30.0
    assert moved_after(ours, 100.0, -1, 200.0) == math.inf


def test_a_move_matters_while_the_load_lies_between_the_two_thresholds() -> None:
    """Ten seconds of 20 users between the drift and the move from 16 to 24; the rest of the time there are 8."""
    scenario = Scenario("s", lambda s: 20 if 10 <= s < 20 else 8, lambda _: 2.0, lambda _: 128, 90.0)
    ours = outcome([1.0], [(0.0, 16), (50.0, 24)])

    assert mattered(scenario, ours, 5.0, 45.0) == 10
    assert mattered(scenario, ours, 15.0, 35.0) == 5
    assert mattered(scenario, ours, 5.0, math.inf) == math.inf


def test_the_summary_says_what_holds() -> None:
    """The worst seed decides."""
    report = summary(
        [
            ("context", 1, {"oracle_share": 0.99, "static_share": 0.98, "moved_s": 12.0}),
            ("context", 2, {"oracle_share": 0.96, "static_share": 0.98, "moved_s": 70.0}),
            ("wrong", 1, [{"inside": True, "lost_there": 0.01}, {"inside": False, "lost_there": 0.02}]),
        ]
    )

    assert (report["context"]["oracle_share"]["worst"], report["context"]["oracle_share"]["ok"]) == (0.96, False)
    assert report["context"]["static_share"]["ok"]
    assert not report["context"]["moved_s"]["ok"]
    assert report["wrong"] == {"cases": 2, "inside": 1, "lost_there": {"worst": 0.02}}
    assert interval([1.0, 1.0, 1.0])["low"] == 1.0
