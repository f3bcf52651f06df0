"""The search on worlds whose truth is known: it finds the pivot, keeps to its budget, and goes on where it stopped."""

from __future__ import annotations

import msgspec
import optuna
import pytest

from benchmarks.worlds import CONCURRENCY, GRID, Machine, World
from harness.records import LevelRow, Variant
from patched_worker.policy import Policy
from tests.tuner.runs import baseline, eagle3, forced_off
from tuner.curves import pivot
from tuner.judging import latency_excess, trial_levels
from tuner.search import CONFIRMATION, Aim, Task, search
from tuner.study import open_study


def world(noise: float = 0.0, flap_cost: float = 0.0, gain: float = 1.0) -> World:
    """The curves of the other tests as a world; the pivot is at 113 for gain 1."""
    return World(
        baseline_step_s=tuple(b / baseline(b) for b in GRID),
        off_step_s=tuple(b / forced_off(b) for b in GRID),
        on_step_s=tuple(2.5 * b / (gain * eagle3(b)) for b in GRID),
        noise_level=noise,
        noise_run=noise / 2,
        flap_cost=flap_cost,
    )


def study() -> optuna.Study:
    return open_study(None, "test", seed=1)


def test_the_pivot_is_found_in_one_go() -> None:
    """With ordinary noise the kept threshold is near the true one and inside its own interval, within the load."""
    machine = Machine(world(noise=0.02), seed=3)
    found = search(Task(machine.measure, Aim(CONCURRENCY), [], lambda: 81 - machine.points), study())
    assert found is not None
    assert machine.points <= 81
    assert found.threshold is not None
    assert machine.world.pivot is not None
    assert found.threshold == pytest.approx(machine.world.pivot, rel=0.12)
    low, high = found.fit.interval
    assert low is not None
    assert high is not None
    assert low <= machine.world.pivot <= high
    assert found.confirmed is not None
    assert found.confirmed[0] == pytest.approx(0, abs=3 * found.confirmed[1])


def test_replicas_go_to_the_pivot() -> None:
    """Load is spent where it decides: levels around the pivot get most repeats, far ones none."""
    machine, rows = Machine(world(noise=0.03), seed=5), list[LevelRow]()
    found = search(Task(machine.measure, Aim(CONCURRENCY, trials=0), rows, lambda: 81 - machine.points), study())
    assert found is not None
    replicas = {ratio.concurrency: ratio.repeats for ratio in found.fit.ratios}
    assert replicas[1] == replicas[2] == replicas[4] == 1
    assert max(replicas.values()) >= 3
    assert any(c not in CONCURRENCY for c in replicas)


def test_trials_hold_the_crossing_and_its_neighbours() -> None:
    """The study starts with what the curves say, and every trial knows its gain, error and constraint."""
    machine, made = Machine(world(noise=0.02), seed=3), study()
    found = search(Task(machine.measure, Aim(CONCURRENCY, trials=4), [], lambda: 200 - machine.points), made)
    assert found is not None
    assert found.trials[0].source == "crossing"
    assert found.trials[0].threshold == found.fit.threshold
    assert [t.source for t in found.trials[1:3]] == ["neighbour", "neighbour"]
    assert len(found.trials) == 4
    assert all(trial.constraints == {"latency_c1": 0.0} for trial in made.trials[:4])


def test_always_on_needs_no_trial() -> None:
    """Where speculation always pays nothing is tried live, and None is kept."""
    machine = Machine(world(noise=0.01, gain=1.6), seed=2)
    found = search(Task(machine.measure, Aim(CONCURRENCY), [], lambda: 81 - machine.points), study())
    assert found is not None
    assert (found.threshold, found.trials, found.reason) == (None, (), "sharp")
    assert machine.points < 60


def test_a_search_goes_on_from_its_rows() -> None:
    """Killed after any number of points, the next one repeats no usable point of the first pass."""
    machine, rows = Machine(world(noise=0.02), seed=4), list[LevelRow]()

    def dying(variant: Variant, policy: Policy | None, concurrency: int, repeat: int) -> LevelRow:
        if machine.points == 20:
            raise KeyboardInterrupt
        return machine.measure(variant, policy, concurrency, repeat)

    with pytest.raises(KeyboardInterrupt):
        search(Task(dying, Aim(CONCURRENCY), rows, lambda: 81 - machine.points), study())
    assert len(rows) == 20
    found = search(Task(machine.measure, Aim(CONCURRENCY), rows, lambda: 81 - machine.points), study())
    assert found is not None
    keys = [(row.variant, row.concurrency, row.repeat) for row in rows]
    assert len(keys) == len(set(keys))
    assert len(rows) == machine.points <= 81


def test_a_dead_server_ends_the_search() -> None:
    """Points that are all unusable are tried once more, and not for ever: nothing can be judged."""
    machine = Machine(world(), seed=4)

    def broken(variant: Variant, policy: Policy | None, concurrency: int, repeat: int) -> LevelRow:
        return msgspec.structs.replace(machine.measure(variant, policy, concurrency, repeat), verdict="server_busy")

    assert search(Task(broken, Aim(CONCURRENCY), [], lambda: 1e9), study()) is None
    assert machine.points == 2 * 27


def test_a_spoilt_point_is_measured_again() -> None:
    """What the first pass could not use it takes once more before it goes on."""
    machine, spoilt = Machine(world(noise=0.02), seed=4), list[int]()

    def hiccup(variant: Variant, policy: Policy | None, concurrency: int, repeat: int) -> LevelRow:
        row = machine.measure(variant, policy, concurrency, repeat)
        if (variant, concurrency) == ("eagle3", 64) and not spoilt:
            spoilt.append(machine.points)
            return msgspec.structs.replace(row, verdict="client_limited")
        return row

    found = search(Task(hiccup, Aim(CONCURRENCY, trials=0), [], lambda: 81 - machine.points), study())
    assert found is not None
    assert 64 in {ratio.concurrency for ratio in found.fit.ratios}


def test_the_largest_level_is_tried_more_often() -> None:
    """Without it "never disable" would be the answer of the small levels alone."""
    machine, spoilt = Machine(world(noise=0.02), seed=4), list[int]()

    def crowded(variant: Variant, policy: Policy | None, concurrency: int, repeat: int) -> LevelRow:
        row = machine.measure(variant, policy, concurrency, repeat)
        if concurrency > 16 and len(spoilt) < 28:
            spoilt.append(concurrency)
            return msgspec.structs.replace(row, verdict="client_limited")
        return row

    found = search(Task(crowded, Aim(CONCURRENCY, trials=0), [], lambda: 200 - machine.points), study())
    assert found is not None
    assert found.fit.shape == "crossover"
    assert max(ratio.concurrency for ratio in found.fit.ratios) == 256


def test_rounds_without_a_usable_point_end_it_too() -> None:
    """A server that breaks after the first pass ends the search with what is known."""
    machine = Machine(world(noise=0.03), seed=4)

    def breaking(variant: Variant, policy: Policy | None, concurrency: int, repeat: int) -> LevelRow:
        row = machine.measure(variant, policy, concurrency, repeat)
        return row if machine.points <= 27 else msgspec.structs.replace(row, verdict="server_busy")

    found = search(Task(breaking, Aim(CONCURRENCY, trials=0), [], lambda: 500 - machine.points), study())
    assert found is not None
    assert machine.points < 60


def test_flapping_shows_in_the_confirmation() -> None:
    """What switching itself costs is not in the curves; the last live check shows it."""
    costly = world(noise=0.002, flap_cost=0.1)
    machine, rows = Machine(costly, seed=6), list[LevelRow]()
    found = search(Task(machine.measure, Aim(CONCURRENCY, trials=0), rows, lambda: 200 - machine.points), study())
    assert found is not None
    assert found.confirmed is not None
    live = [row for row in rows if row.repeat == CONFIRMATION]
    assert {row.concurrency for row in live} == set(CONCURRENCY)
    assert found.confirmed[0] < 0


def test_trial_levels_are_the_smallest_and_those_that_may_differ() -> None:
    """A trial near the crossing needs no level far from it, and never one that only replicas added."""
    machine, rows, aim = Machine(world(), seed=1), list[LevelRow](), Aim(CONCURRENCY)
    search(Task(machine.measure, aim, rows, lambda: 81 - machine.points), study())
    fit = pivot(rows, "baseline")
    assert fit is not None
    assert trial_levels(aim.curves(rows, fit), fit, 80) == (1, 128)


def test_latency_excess_is_signed() -> None:
    """Off at C=1 exceeds the bound by about a factor of two; a threshold of 1 does not."""
    machine, rows, aim = Machine(world(), seed=1), list[LevelRow](), Aim(CONCURRENCY)
    search(Task(machine.measure, aim, rows, lambda: 81 - machine.points), study())
    fit = pivot(rows, "baseline")
    assert fit is not None
    assert latency_excess(aim.curves(rows, fit), 0, 0.05) > 0.5
    assert latency_excess(aim.curves(rows, fit), 1, 0.05) == 0.0
