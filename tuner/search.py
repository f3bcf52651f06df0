"""The tuning itself, free of servers: what to measure next, the Optuna study, and what is kept in the end.

Measurements come from a callable, so that real servers, simulated ones and the benchmark's worlds are tuned by the
same code. The crossing of replicated curves is the incumbent; the study holds it, its neighbours and a few values of
Optuna's own against each other, and the incumbent stays unless another beats it by more than noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
import optuna
from optuna.trial import FrozenTrial, TrialState

from harness.records import LevelRow, Variant
from patched_worker.policy import Policy
from tuner import objective
from tuner.curves import Pivot, pivot, usable
from tuner.objective import Curves
from tuner.replicas import next_round, sharp

Measure = Callable[[Variant, Policy | None, int, int], LevelRow]
Left = Callable[[], float]

LATENCY = "latency_c1"  # name of the Optuna constraint; <= 0 is feasible
TRIAL_REPEATS = 1000  # repeats of trial n are n * TRIAL_REPEATS + r, so that no two trials share a point
BEATS_Z = 1.64  # one-sided 5 %
STEPS_AROUND = (1.0, 2**-0.5, 2**0.5, 0.5, 2.0)
TRIAL_SHARE = 0.25  # of the load that is left after the first pass


class Aim(msgspec.Struct, frozen=True):
    """What is tuned, and how far.

    Attributes:
        concurrency: levels that count for the score.
        reference: what an operator would otherwise run; None where it is not measured.
        trials: most trials of the study.
        slack: of the latency constraint.
        weights: traffic histogram.
        seed: of Optuna's sampler and of the bootstrap.
    """

    concurrency: tuple[int, ...]
    reference: Variant | None = "baseline"
    trials: int = 8
    slack: float = 0.05
    weights: Mapping[int, float] | None = None
    seed: int = 0


class Trial(msgspec.Struct, frozen=True):
    """A threshold that was measured live.

    Attributes:
        threshold: the policy of `dynamic`; None never disables.
        gain: log of its throughput over the replayed incumbent's, weighted over the levels where they were measured.
        se: standard error of `gain`.
        score: the incumbent's score times its gain.
    """

    number: int
    threshold: int | None
    gain: float
    se: float
    score: float
    source: str


class Found(msgspec.Struct, frozen=True):
    """How a search ended.

    Attributes:
        threshold: what is kept.
        fit: pivot of the replicated curves.
        beaten: whether a trial beat the crossing by more than noise.
        reason: why the search ended: sharp, budget or trials.
    """

    threshold: int | None
    fit: Pivot
    trials: tuple[Trial, ...]
    beaten: bool
    reason: str


def first_pass(aim: Aim, repeat: int, measured: Iterable[LevelRow]) -> list[tuple[Variant, int, int]]:
    """Points of one pass over all levels that are still to be measured, variants alternating."""
    variants: list[Variant] = ["eagle3", "forced_off"]
    if aim.reference is not None and repeat == 1:
        variants.insert(0, aim.reference)
    done = {(row.variant, row.concurrency, row.repeat) for row in usable(measured)}
    points = []
    for turn, level in enumerate(aim.concurrency):
        order = [*variants[turn % len(variants) :], *variants[: turn % len(variants)]]
        points += [(variant, level, repeat) for variant in order if (variant, level, repeat) not in done]
    return points


def fixed_policy(variant: Variant) -> Policy | None:
    """The policy of a variant that has no free threshold."""
    return {"eagle3": Policy.from_threshold(None), "forced_off": Policy.from_threshold(0)}.get(variant)


def replicate(measure: Measure, aim: Aim, rows: list[LevelRow], left: Left, reserve: float) -> tuple[Pivot | None, str]:
    """Measure curves until the pivot is sharp or only `reserve` points are left; `rows` grows.

    Args:
        measure: takes one point.
        left: how many points the budget still allows.
        reserve: points to keep for the trials.

    Returns:
        The pivot so far, and why it stopped there.
    """
    for variant, level, repeat in first_pass(aim, 1, rows):
        if left() < 1:
            return pivot(rows, aim.reference, aim.seed), "budget"
        rows.append(measure(variant, fixed_policy(variant), level, repeat))
    while True:
        fit = pivot(rows, aim.reference, aim.seed)
        if fit is None:
            return None, "nothing usable"
        wanted = next_round(fit, rows)
        if _repeated(fit) and sharp(fit):
            return fit, "sharp"
        if left() - reserve < 2 * len(wanted):
            return fit, "budget"
        repeat = 1 + max(row.repeat for row in rows if row.repeat < TRIAL_REPEATS)
        for turn, level in enumerate(wanted):
            pair: list[Variant] = ["eagle3", "forced_off"]
            for variant in pair if turn % 2 else reversed(pair):
                rows.append(measure(variant, fixed_policy(variant), level, repeat))


def _repeated(fit: Pivot) -> bool:
    """Whether the noise is known from repeats rather than assumed."""
    return sum(ratio.repeats - 1 for ratio in fit.ratios) >= 4


def open_study(storage: optuna.storages.BaseStorage | str | None, name: str, aim: Aim) -> optuna.Study:
    """The study of a tuning, new or continued.

    Args:
        storage: where it lives; None keeps it in memory.
        name: equal for all tuners that share it.
        aim: its seed is the sampler's.
    """
    sampler = optuna.samplers.TPESampler(seed=aim.seed, n_startup_trials=len(STEPS_AROUND))
    return optuna.create_study(
        storage=storage, study_name=name, sampler=sampler, direction="maximize", load_if_exists=True
    )


def recover(study: optuna.Study, mine: str) -> int:
    """Tell this tuner's trials that a crash left running FAIL, and put their values back into the queue.

    Ask and tell has no heartbeat, and a sampler takes a running trial for a real one: do this before asking.

    Args:
        study: the study.
        mine: the tuner's name, as in its trials' "tuner" attribute; other tuners' trials are left alone.

    Returns:
        How many trials were recovered.
    """
    stale = [
        t for t in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)) if t.user_attrs.get("tuner") == mine
    ]
    for trial in stale:
        study.tell(trial.number, state=TrialState.FAIL)
        study.enqueue_trial(trial.params, user_attrs={"source": trial.user_attrs.get("source", "recovered")})
    return len(stale)


def search_range(fit: Pivot) -> tuple[int, int]:
    """Thresholds that the study looks at: a factor of four around the crossing, inside what was measured."""
    top = max(1, math.ceil(fit.ratios[-1].batch))
    if fit.threshold is None:
        return max(1, top // 4), top
    centre = max(1, fit.threshold)
    return max(1, centre // 4), min(top, 4 * centre)


def enqueue(study: optuna.Study, fit: Pivot) -> None:
    """Queue the crossing and its neighbours; values that were tried or queued before are skipped."""
    low, high = search_range(fit)
    centre = high if fit.threshold is None else fit.threshold
    for factor in STEPS_AROUND:
        value = round(centre * factor)
        if low <= value <= high:
            source = "crossing" if factor == 1 else "neighbour"
            study.enqueue_trial({"threshold": value}, user_attrs={"source": source}, skip_if_exists=True)


def run_trials(
    measure: Measure, aim: Aim, study: optuna.Study, fit: Pivot, rows: list[LevelRow], left: Left, mine: str = "tuner"
) -> str:
    """Ask, measure, tell, until the trials or the budget are spent; `rows` grows. Returns why it stopped."""
    enqueue(study, fit)
    curves = objective.curves(
        rows, fit.off, aim.reference or fit.off, aim.weights or dict.fromkeys(aim.concurrency, 1.0)
    )
    low, high = search_range(fit)
    while _complete(study) < aim.trials:
        if left() < len(trial_levels(curves, fit, high)):
            return "budget"
        trial = study.ask()
        trial.set_user_attr("tuner", mine)
        threshold = trial.suggest_int("threshold", low, high, log=True)
        policy = Policy.from_threshold(threshold)
        levels = trial_levels(curves, fit, threshold)
        first = TRIAL_REPEATS * (trial.number + 1)
        measured = [measure("dynamic", policy, level, first + 1) for level in levels]
        rows.extend(measured)
        outcome = judge(curves, fit, threshold, measured)
        if outcome is None:
            study.tell(trial, state=TrialState.FAIL)
            continue
        trial.set_user_attr("gain", outcome[0])
        trial.set_user_attr("se", outcome[1])
        trial.set_constraint(LATENCY, latency_excess(curves, threshold, measured, aim.slack))
        study.tell(trial, objective.score(curves, fit.threshold) * math.exp(outcome[0]))
    return "trials"


def trial_levels(curves: Curves, fit: Pivot, threshold: int | None) -> tuple[int, ...]:
    """Levels at which a threshold is measured live: the smallest, and those that it and the crossing may tell apart.

    Everywhere else a threshold does what the replicated curves already show.
    """
    ends = [value for value in (threshold, fit.threshold, *fit.interval) if value]
    low, high = min(ends, default=1), max(ends, default=1)
    counted = [c for c in curves.batches if curves.weights[c] > 0]
    inside = [c for c in counted if low * 0.75 <= curves.batches[c] <= high * 1.35]
    return tuple(dict.fromkeys([min(counted), *inside]))


def judge(curves: Curves, fit: Pivot, threshold: int, measured: Sequence[LevelRow]) -> tuple[float, float] | None:
    """Gain of a live threshold over the replayed crossing, in log score, with its standard error; None if unusable."""
    good = usable(measured)
    if len(good) < len(measured):
        return None
    noise = _point_sd(fit)
    gain = variance = 0.0
    for row in good:
        if row.output_tok_per_s is None:
            continue
        weight = curves.weights[row.concurrency]
        expected = objective.throughput(curves, fit.threshold, row.concurrency)
        gain += weight * math.log(row.output_tok_per_s / expected)
        ratio = next((r for r in fit.ratios if r.concurrency == row.concurrency), None)
        variance += weight**2 * (noise**2 + ((ratio.se if ratio else noise) ** 2) / 2)
    return gain, math.sqrt(variance)


def latency_excess(curves: Curves, threshold: int, measured: Sequence[LevelRow], slack: float) -> float:
    """By how much a lone user's time per token surely exceeds what is allowed; <= 0 is feasible.

    The replayed level's interval decides, as a single live point would falsely reject one good trial in six.
    """
    replayed = objective.latency_c1(curves, threshold, slack)
    if replayed.ok or replayed.eagle3_s is None or replayed.at_threshold_s is None:
        return 0.0
    return replayed.at_threshold_s / replayed.eagle3_s - 1 - slack


def trials_of(study: optuna.Study, score: float) -> tuple[Trial, ...]:
    """The study's complete trials that were measured against the crossing."""
    return tuple(
        Trial(
            t.number,
            t.params["threshold"],
            t.user_attrs["gain"],
            t.user_attrs["se"],
            score * math.exp(t.user_attrs["gain"]),
            t.user_attrs.get("source", "sampler"),
        )
        for t in _complete_trials(study)
    )


def keep(fit: Pivot, trials: Sequence[Trial]) -> tuple[int | None, bool]:
    """The crossing, unless a trial beats the live crossing by more than noise; ties go to the crossing.

    The crossing's own live trial is the opponent where there is one: what switching itself costs is in it.
    """
    own = [t for t in trials if t.threshold == fit.threshold]
    base_gain = sum(t.gain for t in own) / len(own) if own else 0.0
    base_variance = sum(t.se**2 for t in own) / len(own) ** 2 if own else 0.0
    best, margin = fit.threshold, 0.0
    for trial in trials:
        ahead = trial.gain - base_gain - BEATS_Z * math.sqrt(trial.se**2 + base_variance)
        if ahead > margin:
            best, margin = trial.threshold, ahead
    return best, best != fit.threshold


def search(
    measure: Measure, aim: Aim, study: optuna.Study, rows: list[LevelRow], left: Left, mine: str = "tuner"
) -> Found | None:
    """Tune: replicate curves, run the study, decide. `rows` may hold earlier measurements and grows.

    Returns:
        What was found; None where the measurements allow no judgement.
    """
    recover(study, mine)
    reserve = TRIAL_SHARE * max(0.0, left() - 3 * len(aim.concurrency))
    fit, reason = replicate(measure, aim, rows, left, reserve if aim.trials else 0.0)
    if fit is None:
        return None
    if fit.shape == "crossover" or fit.shape == "not_monotone":
        reason = run_trials(measure, aim, study, fit, rows, left, mine)
    curves = objective.curves(
        rows, fit.off, aim.reference or fit.off, aim.weights or dict.fromkeys(aim.concurrency, 1.0)
    )
    trials = trials_of(study, objective.score(curves, fit.threshold))
    threshold, beaten = keep(fit, trials)
    return Found(threshold, fit, trials, beaten, reason)


def _point_sd(fit: Pivot) -> float:
    """Noise of one point, from the standard errors of the ratios: two points make a pair."""
    squares = [ratio.se**2 * ratio.repeats / 2 for ratio in fit.ratios]
    return math.sqrt(sum(squares) / len(squares))


def _complete_trials(study: optuna.Study) -> list[FrozenTrial]:
    done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    return [t for t in done if {"gain", "se"} <= t.user_attrs.keys()]


def _complete(study: optuna.Study) -> int:
    return len(_complete_trials(study))
