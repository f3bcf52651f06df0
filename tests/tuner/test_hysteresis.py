"""Hysteresis is ranked under ramps and bursts, on a simulated machine whose switching cost is known."""

from __future__ import annotations

import msgspec
import pytest

from benchmarks.worlds import OpenMachine
from harness.openload import Arrivals
from harness.records import LevelRow
from harness.sim.noise import Noise
from harness.sim.steptime import StepTable
from patched_worker.policy import Policy
from tests.harness.sim.worlds import DECODE, SPECULATIVE, world
from tuner import hysteresis
from tuner.hysteresis import Candidate, Ranked, Wave, design, in_words, place_of, point_number, points_needed, rank
from tuner.study import open_study

THRESHOLD = 24
WAVES: dict[Wave, Arrivals] = {
    "ramp": Arrivals(ramp=(24.0, 46.0, 12.0)),
    "burst": Arrivals(burst=(24.0, 46.0, 3.2, 1.1)),
}
EVEN = StepTable((1, 24, 256), (0.0075, 2.8 * DECODE.at(24), 0.06))  # on and off are worth the same at the threshold


def machine(switch_cost_s: float, seed: int = 1, speculative: StepTable = SPECULATIVE) -> OpenMachine:
    """A machine that loses so much at each switch."""
    preset = world()
    patched = msgspec.structs.replace(preset.patched, switch_cost_s=switch_cost_s, speculative={3: speculative})
    return OpenMachine(
        msgspec.structs.replace(preset, patched=patched), Noise(0.02, 0.01), seed, (64, 96), window_s=10, warmup_s=2
    )


def ranked(truth: OpenMachine, most: int = 3, points: float = 400, rows: list[LevelRow] | None = None) -> Ranked | None:
    """The ranking of the usual candidates on a machine."""

    def measure(policy: Policy, wave: Wave, round_: int, candidate: int) -> LevelRow:
        return truth.measure(policy, WAVES[wave], round_, point_number(wave, round_, candidate))

    candidates = design(THRESHOLD, {"resume_at": (), "min_dwell": ()}, most)
    taken = [] if rows is None else rows
    return rank(measure, THRESHOLD, candidates, taken, lambda: points - truth.points)


def test_where_switching_is_dear_a_calmer_rule_wins() -> None:
    """At a third of a second per switch another candidate is kept; it switches less, and the words say by how much."""
    found = ranked(machine(0.3))
    assert found is not None
    assert found.kept
    assert found.chosen.switches < found.default.switches
    assert found.chosen.gain > 2 * found.chosen.se
    assert f"Resume at {found.chosen.resume_at}" in in_words(found)
    assert "shorter" in in_words(found)


@pytest.mark.parametrize("seed", [1, 2])
def test_where_switching_is_free_the_default_stays(seed: int) -> None:
    """Differences are noise then, and the words say so."""
    found = ranked(machine(0.0, seed, EVEN))
    assert found is not None
    assert found.kept == 0
    assert "The default hysteresis stays (resume at 18, 16 steps)" in in_words(found)


def test_the_same_requests_for_every_candidate() -> None:
    """Common random numbers: wave and round decide what is sent, the candidate does not; no two points share a name."""
    points = [(w, r, c) for w in WAVES for r in range(hysteresis.MOST_ROUNDS) for c in range(9)]
    assert len({point_number(*point) for point in points}) == len(points)
    assert all(place_of(point_number(w, r, c)) == (w, r) for w, r, c in points)


def test_a_short_budget_tries_fewer_and_none_at_all() -> None:
    """It never spends more than there is, and gives up where two candidates do not fit."""
    truth = machine(0.3)
    found = ranked(truth, points=points_needed(2))
    assert found is not None
    assert truth.points == points_needed(2)
    assert [t.rounds for t in found.tried] == [3, 3, 0, 0]
    assert ranked(machine(0.3), points=points_needed(2) - 1) is None


def test_it_goes_on_from_its_rows() -> None:
    """What an interrupted ranking has measured is not measured again."""
    rows: list[LevelRow] = []
    first = machine(0.3)
    whole = ranked(first, most=2, rows=rows)
    again = machine(0.3)
    assert ranked(again, most=2, rows=rows) == whole
    assert again.points == 0


def test_unusable_points_decide_nothing() -> None:
    """A candidate without usable points has no gain and is never kept."""
    candidates = (Candidate(18, 16), Candidate(12, 64))
    spoilt = [
        LevelRow("dynamic", 64, point_number(w, r, c), "invalid", "client_limited", in_flight_mean=9.0 - 5 * c)
        for w in WAVES
        for r in range(3)
        for c in range(2)
    ]
    found = hysteresis.judged(candidates, spoilt)
    assert found.kept == 0
    assert [t.rounds for t in found.tried] == [0, 0]
    assert in_words(found) == ""


def test_candidates_are_what_was_asked() -> None:
    """One knob alone, both, given values; the default is always the first, and nothing is tried twice."""
    assert {c.resume_at for c in design(24, {"min_dwell": ()}, 8)} == {18}
    assert {c.min_dwell for c in design(24, {"resume_at": ()}, 8)} == {16}
    given = design(24, {"resume_at": (12, 99), "min_dwell": (8, 16)}, 8)
    assert given == (Candidate(18, 16), Candidate(12, 8), Candidate(12, 16))
    for threshold in (1, 2, 3):
        made = design(threshold, {"resume_at": (), "min_dwell": ()}, 8)
        assert len(set(made)) == len(made)
        assert all(1 <= c.resume_at <= threshold for c in made)
    assert len(design(24, {"resume_at": (), "min_dwell": ()}, 2)) == 3


def test_the_study_keeps_what_was_tried_once() -> None:
    """Recorded again, as after a resumption, it holds each candidate once, the default at 0."""
    found = ranked(machine(0.3), most=2)
    assert found is not None
    study = open_study(None, "hysteresis", seed=1)
    for _ in range(2):
        hysteresis.record(study, found, THRESHOLD)
    assert [t.params["resume_at"] for t in study.trials] == [t.resume_at for t in found.tried]
    assert study.trials[0].value == 0.0
    assert study.best_params == {"threshold": THRESHOLD, "resume_at": found.chosen.resume_at} | {
        "min_dwell": found.chosen.min_dwell
    }
