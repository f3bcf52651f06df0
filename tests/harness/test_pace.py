"""How long points will take: what a guess gets right, and what measured points teach."""

from __future__ import annotations

import pytest

from harness import pace
from harness.config import make_config
from harness.pace import Pace
from harness.records import LevelRow

CONFIG = make_config({"concurrency": [1, 16, 256], "warmup": 4, "duration": 8, "output_tokens": 256})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    state = {"now": 0.0}
    monkeypatch.setattr(pace, "now_s", lambda: state["now"])
    return state


def taken(paced: Pace, clock: dict[str, float], concurrency: int, seconds: float) -> None:
    with paced.watching(concurrency):
        clock["now"] += seconds


def test_larger_loads_take_longer_to_end() -> None:
    """On an H200 with 256 tokens an answer took 1.2, 1.4 and 4.9 s: two of them follow the window."""
    guesses = [Pace(CONFIG).point_s(level) for level in (1, 16, 256)]
    assert guesses == pytest.approx([16.0, 16.5, 23.4], rel=0.04)
    assert CONFIG.point_s == pytest.approx(sum(guesses) / 3)
    assert Pace(CONFIG).mean_s == CONFIG.point_s
    twice = make_config({"concurrency": [16], "warmup": 4, "duration": 8, "output_tokens": 256, "time_scale": 2})
    assert twice.point_s == pytest.approx(1.6 + (guesses[1] - 1.6) / 2)


def test_a_measured_level_is_known(clock: dict[str, float]) -> None:
    """The mean of its points stands, whatever the guess was."""
    paced = Pace(CONFIG)
    for seconds in (20.0, 22.0):
        taken(paced, clock, 16, seconds)
    assert paced.point_s(16) == 21.0
    assert paced.points_s([16, 16]) == 42.0


def test_other_levels_are_as_much_slower_as_the_nearest_measured(clock: dict[str, float]) -> None:
    """Only what follows the window scales: warm-up and window are fixed."""
    paced = Pace(CONFIG)
    guess_s = Pace(CONFIG).point_s
    taken(paced, clock, 1, guess_s(1))
    taken(paced, clock, 64, 12 + 3 * (guess_s(64) - 12))
    assert paced.point_s(2) == pytest.approx(guess_s(2))
    assert paced.point_s(256) == pytest.approx(12 + 3 * (guess_s(256) - 12))


def test_a_point_that_raises_teaches_nothing(clock: dict[str, float]) -> None:
    """Its time says how long it took to fail."""
    paced = Pace(CONFIG)

    def fails() -> None:
        with paced.watching(1):
            clock["now"] += 900.0
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails()
    assert paced.point_s(1) == Pace(CONFIG).point_s(1)


def test_a_point_whose_server_dies_early_teaches_nothing(clock: dict[str, float]) -> None:
    """The later points would seem short, and a budget would begin what it cannot pay for."""
    paced = Pace(CONFIG)
    taken(paced, clock, 16, 3.0)
    assert paced.point_s(16) == Pace(CONFIG).point_s(16)


def test_rows_of_an_interrupted_command_are_remembered() -> None:
    """Their answers' length tells what their points took; what was not usable says nothing."""
    row = LevelRow("eagle3", 16, 1, "done", "ok", e2e_p50_s=3.0)
    spoilt = LevelRow("eagle3", 1, 1, "invalid", "server_died", e2e_p50_s=300.0)
    paced = Pace(CONFIG, [row, spoilt])
    assert paced.point_s(16) == pytest.approx(12 + 1.6 + 2 * 3.0)
    assert paced.point_s(1) < 30
