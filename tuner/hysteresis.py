"""Which resume point and which dwell to keep, ranked where they matter: under load that rises and falls.

A closed loop hardly ever crosses the threshold, so it cannot tell them apart. Here all candidates meet the same ramps
and the same bursts around the threshold: the same requests at the same times. What counts is how long requests stay;
with equal arrivals that is, by Little's law, the mean number in flight. The default is kept unless another candidate
beats it by more than noise, counting how many were tried.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import Literal, get_args

import msgspec
import numpy as np
import optuna
import scipy
from optuna.distributions import IntDistribution

from harness.records import LevelRow
from patched_worker.policy import DEFAULT_MIN_DWELL_STEPS, Policy, default_resume_at
from tuner.knobs import HYSTERESIS, MAX_VALUE, Search
from tuner.words import error

Wave = Literal["ramp", "burst"]
WAVES: tuple[Wave, ...] = get_args(Wave)
# Policy, wave, round from 0, candidate from 0 (the default).
MeasureWave = Callable[[Policy, Wave, int, int], LevelRow]

FEWEST_ROUNDS, MOST_ROUNDS = 3, 6
RISK = 0.05  # of leaving the default for what is not better, over all candidates together
DWELLS = (1, 4, 64, 256)


class Candidate(msgspec.Struct, frozen=True):
    """How a threshold is to be left and taken up again."""

    resume_at: int
    min_dwell: int

    def policy(self, threshold: int) -> Policy:
        return Policy.from_threshold(threshold, self.resume_at, self.min_dwell)


class Tried(msgspec.Struct, frozen=True):
    """What became of a candidate.

    Attributes:
        gain: log of how much longer requests stayed with the default, mean over rounds; 0 for the default itself.
        se: its standard error.
        switches: per point, on average.
        rounds: that counted.
    """

    resume_at: int
    min_dwell: int
    gain: float
    se: float
    switches: float
    rounds: int


class Ranked(msgspec.Struct, frozen=True):
    """How the ranking ended.

    Attributes:
        tried: the default first.
        kept: which of them.
    """

    tried: tuple[Tried, ...]
    kept: int

    @property
    def default(self) -> Tried:
        return self.tried[0]

    @property
    def chosen(self) -> Tried:
        return self.tried[self.kept]


def design(threshold: int, search: Search, most: int) -> tuple[Candidate, ...]:
    """The candidates: the default, then, most different from it first, what may beat it.

    Args:
        threshold: which they serve.
        search: whether resume_at, min_dwell or both are free, and values to try.
        most: how many beside the default.
    """
    default = Candidate(default_resume_at(threshold), DEFAULT_MIN_DWELL_STEPS)
    resumes = search.get("resume_at") or (threshold // 2, threshold, threshold - threshold // 8)
    dwells = search.get("min_dwell") or DWELLS
    asked = tuple(bool(search.get(knob)) for knob in HYSTERESIS)
    free_resumes = resumes if "resume_at" in search else ()
    free_dwells = dwells if "min_dwell" in search else ()
    if any(asked):
        made = [
            Candidate(*pair)
            for pair in product(free_resumes or (default.resume_at,), free_dwells or (default.min_dwell,))
        ]
    else:
        made = [Candidate(default.resume_at, dwell) for dwell in free_dwells]
        made += [Candidate(resume, default.min_dwell) for resume in free_resumes]
        if free_dwells and free_resumes:
            made.insert(0, Candidate(threshold // 2, 64))
            made.insert(1, Candidate(threshold, 1))
    fit = [c for c in made if 1 <= c.resume_at <= threshold and c != default]
    return (default, *tuple(dict.fromkeys(fit))[:most])


def point_number(wave: Wave, round_: int, candidate: int) -> int:
    """The repeat under which a point is filed: unlike for any two points."""
    return 1000 * (candidate + 1) + 2 * round_ + WAVES.index(wave)


def place_of(number: int) -> tuple[Wave, int]:
    """Wave and round of a point: equal ones send equal requests, whichever candidate."""
    return WAVES[number % 2], number % 1000 // 2


def points_needed(candidates: int) -> int:
    """Points of the fewest rounds."""
    return FEWEST_ROUNDS * len(WAVES) * candidates


def rank(
    measure: MeasureWave,
    threshold: int,
    candidates: Sequence[Candidate],
    rows: list[LevelRow],
    left: Callable[[], float],
    note: Callable[[str], None] = lambda line: None,
) -> Ranked | None:
    """Measure candidates round by round, dropping those that are clearly worse; None where the budget ends first.

    Args:
        measure: takes one point.
        threshold: that all of them serve.
        candidates: the default first.
        rows: earlier measurements; grows.
        left: how many points the budget still allows.
        note: told of each round.
    """
    fit = max(0, int(left() + len(rows)) // points_needed(1))
    racing = list(range(min(len(candidates), fit)))
    if len(racing) < 2:
        return None
    for round_ in range(MOST_ROUNDS):
        todo = [(c, wave) for c in _turned(racing, round_) for wave in WAVES if not _done(rows, wave, round_, c)]
        if left() < len(todo):
            break
        rows.extend(measure(candidates[c].policy(threshold), wave, round_, c) for c, wave in todo)
        found = judged(candidates, rows)
        note(f"round {round_ + 1}: {_told(found, racing)}")
        if round_ + 1 >= FEWEST_ROUNDS:
            racing = [c for c in racing if c == 0 or not _clearly_worse(found, c)]
            if len(racing) < 2:
                break
    return judged(candidates, rows)


def judged(candidates: Sequence[Candidate], rows: Iterable[LevelRow]) -> Ranked:
    """Gains over the default, paired by wave and round, and which candidate to keep."""
    stays, switches = _figures(rows)
    paired = {
        c: [stays[0][at] - stays[c][at] for at in sorted(stays[0].keys() & stays[c].keys())]
        for c in range(len(candidates))
        if c in stays and 0 in stays
    }
    # Waves of one round are two readings of one moment: their mean is what repeats.
    df = sum(len(values) - 1 for c, values in paired.items() if c and len(values) > 1)
    squares = sum(float(np.var(values) * len(values)) for c, values in paired.items() if c)
    sd = math.sqrt(squares / df) if df else math.inf
    tried = []
    for c, candidate in enumerate(candidates):
        values = paired.get(c, [])
        gain = float(np.mean(values)) if values else 0.0
        se = 0.0 if c == 0 else sd / math.sqrt(len(values)) if values else math.inf
        often = float(np.mean(switches[c])) if switches.get(c) else 0.0
        tried.append(Tried(candidate.resume_at, candidate.min_dwell, gain, se, often, len(values)))
    return Ranked(tuple(tried), _kept(tried, df))


def record(study: optuna.Study, ranked: Ranked, threshold: int) -> None:
    """Put the candidates into a study as complete trials; those that it holds already are left as they are."""
    have = [trial.params for trial in study.get_trials(deepcopy=False)]
    for tried in ranked.tried:
        params = {"threshold": threshold, "resume_at": tried.resume_at, "min_dwell": tried.min_dwell}
        if params not in have and tried.rounds:
            study.add_trial(
                optuna.create_trial(
                    params=params,
                    distributions={name: IntDistribution(0, max(MAX_VALUE, value)) for name, value in params.items()},
                    value=tried.gain,
                    user_attrs={"se": tried.se, "switches": tried.switches, "rounds": tried.rounds},
                )
            )


def in_words(ranked: Ranked) -> str:
    """What was kept and why, in a sentence or two."""
    default, chosen = ranked.default, ranked.chosen
    others = [t for t in ranked.tried[1:] if t.rounds]
    if not others:
        return ""
    if ranked.kept:
        return (
            f"Resume at {chosen.resume_at} and stay off for {chosen.min_dwell} steps at least: under ramps and bursts"
            f" requests stayed {_shorter(chosen)} than with the default ({default.resume_at} and {default.min_dwell}),"
            f" with {chosen.switches:.0f} switches per point instead of {default.switches:.0f}."
        )
    best = max(others, key=lambda tried: tried.gain)
    which = "the other one" if len(others) == 1 else f"the best of {len(others)} others"
    return (
        f"The default hysteresis stays (resume at {default.resume_at}, {default.min_dwell} steps): under ramps and"
        f" bursts requests stayed {_shorter(best)} with {which} ({best.resume_at} and"
        f" {best.min_dwell}), which is not more than noise; {best.switches:.0f} switches per point, the default"
        f" {default.switches:.0f}."
    )


def _kept(tried: Sequence[Tried], df: int) -> int:
    others = [c for c, t in enumerate(tried) if c and t.rounds >= FEWEST_ROUNDS]
    if not others or not df:
        return 0
    beats = float(scipy.stats.t.ppf(1 - RISK / len(others), df))
    best = max(others, key=lambda c: tried[c].gain)
    return best if tried[best].gain > beats * tried[best].se else 0


def _clearly_worse(found: Ranked, c: int) -> bool:
    return found.tried[c].gain + 2 * found.tried[c].se < 0


def _figures(rows: Iterable[LevelRow]) -> tuple[dict[int, dict[int, float]], dict[int, list[int]]]:
    """log of the mean number in flight by candidate and round (mean over its waves), and switches by candidate."""
    logs: dict[tuple[int, int], list[float]] = {}
    switches: dict[int, list[int]] = {}
    for row in rows:
        c = row.repeat // 1000 - 1
        if row.usable and row.in_flight_mean:
            logs.setdefault((c, place_of(row.repeat)[1]), []).append(math.log(row.in_flight_mean))
            switches.setdefault(c, []).append(row.switches or 0)
    stays: dict[int, dict[int, float]] = {}
    for (c, round_), values in logs.items():
        if len(values) == len(WAVES):
            stays.setdefault(c, {})[round_] = sum(values) / len(values)
    return stays, switches


def _done(rows: Iterable[LevelRow], wave: Wave, round_: int, candidate: int) -> bool:
    return any(row.usable and row.repeat == point_number(wave, round_, candidate) for row in rows)


def _turned(racing: Sequence[int], round_: int) -> list[int]:
    """Another one begins each round, so that a drift of the machine falls on all alike."""
    turn = round_ % len(racing)
    return [*racing[turn:], *racing[:turn]]


def _told(found: Ranked, racing: Sequence[int]) -> str:
    best = max(racing, key=lambda c: found.tried[c].gain)
    tried = found.tried[best]
    if not best:
        return f"no candidate is ahead of the default, which has {tried.switches:.0f} switches per point"
    return f"ahead is resume at {tried.resume_at}, {tried.min_dwell} steps: requests stay {_shorter(tried)}"


def _shorter(tried: Tried) -> str:
    saved = -math.expm1(-tried.gain)
    return f"{100 * abs(saved):.1f} % {'shorter' if saved > 0 else 'longer'} ({error(tried.se)})"
