"""Simulated time against the wall clock, with a wall clock of our own."""

from __future__ import annotations

import pytest

from harness.sim import pacing
from harness.sim.pacing import Clock


class Wall:
    """A wall clock that moves when told."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Wall:
    wall = Wall()
    monkeypatch.setattr(pacing, "time", wall)
    return wall


def test_time_scale_is_simulated_seconds_per_second(wall: Wall) -> None:
    """At scale 10, half a second of ours is five simulated ones, and a step due at 8 is 0.3 s away."""
    clock = Clock(10.0)
    wall.now_s += 0.5
    assert clock.now_s() == pytest.approx(5.0)
    assert clock.wait_s(8.0) == pytest.approx(0.3)
    assert clock.wait_s(4.0) == pytest.approx(-0.1)


def test_slip_stops_simulated_time_and_is_kept(wall: Wall) -> None:
    """After a stall of 2 s the clock stands where the late step is due, and says for how long it did."""
    clock = Clock(10.0)
    wall.now_s += 2.5
    clock.slip(-clock.wait_s(5.0))
    assert clock.now_s() == pytest.approx(5.0)
    assert clock.wait_s(5.0) == pytest.approx(0.0)
    assert clock.slipped_s == pytest.approx(2.0)
