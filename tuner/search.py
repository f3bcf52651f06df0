"""The tuning itself, free of servers: measure curves, try thresholds live, decide, confirm.

Measurements come from a callable, so that real servers, simulated ones and the benchmark's worlds are tuned by the
same code. Every measurement is appended to `rows`, so a search that is given the rows of an interrupted one goes on
where that stopped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import msgspec
import optuna
from optuna.trial import TrialState

from harness.records import LevelRow, Variant
from patched_worker.policy import Policy
from tuner import objective
from tuner.asked import Reason
from tuner.curves import Pivot, pivot
from tuner.hysteresis import Ranked
from tuner.judging import judge, latency_excess, trial_levels
from tuner.levels import usable
from tuner.objective import Curves
from tuner.replicas import blind_above, missing, next_round, sharp, spoilt
from tuner.study import LATENCY, Trial, enqueue, keep, recover, search_range, trials_of
from tuner.words import change, name, span

Measure = Callable[[Variant, Policy | None, int, int], LevelRow]
Left = Callable[[], float]
Note = Callable[[str], None]

TRIAL_REPEATS = 1000  # repeats of trial n are (n + 1) * TRIAL_REPEATS + r, so that no two trials share a point
CONFIRMATION = TRIAL_REPEATS - 1  # repeat of the last check of what is kept
ATTEMPTS = 2  # at a point of the first pass that is not usable
MOST_ATTEMPTS = 4  # where the largest level lacks a pair: no answer of the lower ones holds there
TRIAL_SHARE = 0.25  # of the budget that is left after the first pass


def one(concurrency: int) -> float:
    """Every point costs alike."""
    return 1.0


class Aim(msgspec.Struct, frozen=True):
    """What is tuned, and how far.

    Attributes:
        concurrency: levels that count for the score.
        reference: what an operator would otherwise run; None where it is not measured.
        trials: most trials of the study.
        slack: of the latency constraint.
        weights: traffic histogram; None counts every level alike.
        seed: of Optuna's sampler and of the bootstrap.
        cost: of a point at a concurrency, in what the budget is counted in; by default that is points.
    """

    concurrency: tuple[int, ...]
    reference: Variant | None = "baseline"
    trials: int = 8
    slack: float = 0.05
    weights: Mapping[int, float] | None = None
    seed: int = 0
    cost: Callable[[int], float] = one

    def costs(self, levels: Iterable[int]) -> float:
        """What so many points cost together."""
        return sum(map(self.cost, levels))

    def curves(self, rows: Iterable[LevelRow], fit: Pivot) -> Curves:
        """Rows arranged for judging thresholds; levels that were added between others carry no weight."""
        weights = self.weights or objective.even_weights(fit, self.concurrency)
        return objective.curves(rows, fit.off, self.reference or fit.off, weights)


class Task(msgspec.Struct, frozen=True):
    """What a search works with, from its first point to its last.

    Attributes:
        measure: takes one point: variant, policy, concurrency, repeat.
        aim: what is tuned.
        rows: earlier measurements; grows.
        left: what the budget still allows, in the unit of `aim.cost`.
        note: told of each stage.
        mine: this tuner's name among those that share the study.
    """

    measure: Measure
    aim: Aim
    rows: list[LevelRow]
    left: Left
    note: Note = lambda line: None
    mine: str = "tuner"

    @property
    def pivot(self) -> Pivot | None:
        """That of the curves measured so far."""
        return pivot(self.rows, self.aim.reference, self.aim.seed)


class Found(msgspec.Struct, frozen=True):
    """How a search ended.

    Attributes:
        threshold: what is kept.
        fit: pivot of the replicated curves.
        trials: the live trials.
        beaten: whether one of them beat the crossing by more than noise.
        confirmed: (gain, standard error) of a last live measurement of what is kept against what its curves promise,
            in log score; None where the budget did not reach for it.
        reason: what ended the search; behind where `still` said no.
        hysteresis: how resume points and dwells were ranked; None where they were not.
    """

    threshold: int | None
    fit: Pivot
    trials: tuple[Trial, ...]
    beaten: bool
    confirmed: tuple[float, float] | None
    reason: Reason
    hysteresis: Ranked | None = None


def search(task: Task, study: optuna.Study, still: Callable[[Pivot], bool] = lambda fit: True) -> Found | None:
    """Tune.

    Args:
        task: what is tuned, and by which means.
        study: see `study.open_study`.
        still: whether to go on with curves that are known so far.

    Returns:
        What was found; None where the measurements allow no judgement.
    """
    aim = task.aim
    recovered = recover(study, task.mine)
    if recovered:
        task.note(f"{recovered} interrupted trials are queued again")
    first = aim.costs(level for _, level, _ in missing(aim.concurrency, aim.reference, task.rows))
    spare = max(0.0, task.left() - first)
    fit, reason = replicate(task, aim.costs(aim.concurrency) + (TRIAL_SHARE * spare if aim.trials else 0.0), still)
    if fit is None:
        return None
    if reason == "behind":
        return Found(fit.threshold, fit, (), False, None, reason)
    task.note(f"pivot by the curves: {name(fit.threshold)}, 90 % {span(*fit.interval)}")
    return settle(task, study, fit, reason)


def settle(task: Task, study: optuna.Study, fit: Pivot, reason: Reason) -> Found:
    """From replicated curves, ended for `reason`, to what is kept: live trials, the decision, the last check."""
    if fit.threshold:
        reason = run_trials(task, study, fit)
    threshold, beaten = keep(fit, trials_of(study))
    confirmed = confirm(task, fit, threshold) if threshold else None
    return Found(threshold, fit, trials_of(study), beaten, confirmed, reason)


def fixed_policy(variant: Variant) -> Policy | None:
    """The policy of a variant that has no free threshold."""
    return {"eagle3": Policy.from_threshold(None), "forced_off": Policy.from_threshold(0)}.get(variant)


def replicate(
    task: Task, reserve: float, still: Callable[[Pivot], bool] = lambda fit: True
) -> tuple[Pivot | None, Reason]:
    """One pass over all levels, then replicas around the pivot until it is sharp or only `reserve` is left.

    Returns:
        The pivot (None where nothing can be fitted), and what ended it.
    """
    aim, rows = task.aim, task.rows
    for attempt in range(MOST_ATTEMPTS):
        todo = missing(aim.concurrency, aim.reference, rows)
        if attempt >= ATTEMPTS and not blind_above(aim.concurrency, rows):
            break
        if attempt and todo:
            task.note(spoilt(todo, rows))
        for variant, level, repeat in todo:
            if task.left() < aim.cost(level):
                return task.pivot, "budget"
            rows.append(task.measure(variant, fixed_policy(variant), level, repeat))
    while (fit := task.pivot) is not None:
        if not still(fit):
            return fit, "behind"
        if _noise_is_known(fit) and sharp(fit):
            return fit, "sharp"
        wanted = next_round(fit, rows)
        if task.left() - reserve < 2 * aim.costs(wanted):
            return fit, "budget"
        task.note(f"replicas at C={', '.join(map(str, wanted))}: the pivot lies in {span(*fit.interval)}")
        taken = _round(task.measure, wanted, rows)
        if not usable(taken):
            return fit, "nothing usable"
    return None, "nothing usable"


def run_trials(task: Task, study: optuna.Study, fit: Pivot) -> Literal["trials", "budget"]:
    """Ask, measure, tell, until the trials or the budget are spent; returns which."""
    aim = task.aim
    enqueue(study, fit)
    curves = aim.curves(task.rows, fit)
    low, high = search_range(fit)
    promised = objective.score(curves, fit.threshold)
    while len(trials_of(study)) < aim.trials:
        if task.left() - aim.costs(aim.concurrency) < aim.costs(trial_levels(curves, fit, high)):
            return "budget"
        trial = study.ask()
        trial.set_user_attr("tuner", task.mine)
        threshold = trial.suggest_int("threshold", low, high, log=True)
        first = TRIAL_REPEATS * (trial.number + 1) + 1
        task.note(f"trial {trial.number + 1} of at most {aim.trials}: threshold {threshold} live, where it may differ")
        policy = Policy.from_threshold(threshold)
        measured = [task.measure("dynamic", policy, level, first) for level in trial_levels(curves, fit, threshold)]
        task.rows.extend(measured)
        outcome = judge(curves, fit, fit.threshold, measured)
        if outcome is None:
            study.tell(trial, state=TrialState.FAIL)
            _once_more(study, trial)
            continue
        trial.set_user_attr("gain", outcome[0])
        trial.set_user_attr("se", outcome[1])
        trial.set_constraint(LATENCY, latency_excess(curves, threshold, aim.slack))
        study.tell(trial, promised * math.exp(outcome[0]))
        task.note(f"trial {trial.number + 1}: threshold {threshold}, {change(*outcome)}")
    return "trials"


def confirm(task: Task, fit: Pivot, threshold: int | None) -> tuple[float, float] | None:
    """Measure what is kept once more, live, at every level that counts; None where the budget does not allow it."""
    aim, rows = task.aim, task.rows
    curves = aim.curves(rows, fit)
    done = {row.concurrency: row for row in usable(rows) if row.repeat == CONFIRMATION and row.threshold == threshold}
    todo = [level for level in aim.concurrency if level not in done and level in curves.batches]
    if task.left() < aim.costs(todo):
        return None
    if todo:
        task.note(f"last check: threshold {threshold} live, at every level")
    policy = Policy.from_threshold(threshold)
    fresh = [task.measure("dynamic", policy, level, CONFIRMATION) for level in todo]
    rows.extend(fresh)
    good = [row for row in usable([*done.values(), *fresh]) if row.concurrency in curves.batches]
    return judge(curves, fit, threshold, good) if good else None


def _round(measure: Measure, wanted: Sequence[int], rows: list[LevelRow]) -> list[LevelRow]:
    """One more eagle3 and off at each level, in turning order, all with the next repeat's number."""
    repeat = 1 + max(row.repeat for row in rows if row.repeat < CONFIRMATION)
    taken: list[LevelRow] = []
    for turn, level in enumerate(wanted):
        pair: list[Variant] = ["eagle3", "forced_off"]
        for variant in pair if turn % 2 else reversed(pair):
            taken.append(measure(variant, fixed_policy(variant), level, repeat))
            rows.append(taken[-1])
    return taken


def _once_more(study: optuna.Study, trial: optuna.Trial) -> None:
    """Queue the value of a trial whose points were not usable again, once."""
    if trial.user_attrs.get("source") != "again":
        study.enqueue_trial(trial.params, user_attrs={"source": "again"})


def _noise_is_known(fit: Pivot) -> bool:
    """Whether the interval rests on repeats rather than on an assumed noise."""
    return sum(ratio.repeats - 1 for ratio in fit.ratios) >= 4
