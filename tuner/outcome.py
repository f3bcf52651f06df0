"""What a tuning adds to the recommendation of its measured curves: the live trials, and what they say."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from harness.runfolder import RunFolder
from patched_worker.policy import default_resume_at
from tuner import objective
from tuner.hysteresis import in_words
from tuner.levels import reference_among
from tuner.recommend import Analysis, Objective, Recommendation, build, effective
from tuner.search import Found
from tuner.words import change, name

SHORTFALL = -0.02  # in log score: below this, what was confirmed is clearly less than what the curves promise


def tuned(
    run: RunFolder, found: Found, slack: float, aim: Objective, weights: Mapping[int, float] | None, seed: int
) -> Recommendation:
    """The recommendation of a tuning.

    Args:
        run: its run folder, with every point.
        found: how the search ended.
        slack: of the latency constraint.
        aim: score, or throughput (the literal objective).
        weights: traffic histogram.
        seed: of the bootstrap.
    """
    rows = run.levels()
    counted = weights or objective.even_weights(found.fit, run.manifest.settings.concurrency)
    reference = reference_among(run.manifest.settings.variants)
    curves = objective.curves(rows, found.fit.off, reference or found.fit.off, counted)
    made = build(run, Analysis(found.fit, curves), slack, aim, seed, len(found.trials))
    if aim == "score" and found.beaten:
        made = _moved(run, made, curves, found, slack, seed)
    made = _with_hysteresis(made, found)
    words = made.words | {"rejected": f"{made.words['rejected']} {trials_in_words(found)}".strip()}
    return msgspec.structs.replace(
        made,
        words=words,
        warnings=made.warnings + _shortfall(found),
        evidence=made.evidence | {"ended": found.reason, "confirmed": _share(found)},
    )


def _with_hysteresis(made: Recommendation, found: Found) -> Recommendation:
    """The recommendation with the resume point and dwell that were ranked best for its threshold."""
    ranked = found.hysteresis
    if ranked is None or made.threshold != found.threshold or made.ladder:
        return made
    return msgspec.structs.replace(
        made,
        resume_at=ranked.chosen.resume_at,
        min_dwell_steps=ranked.chosen.min_dwell,
        words=made.words | {"hysteresis": in_words(ranked)},
        evidence=made.evidence
        | {"hysteresis": [msgspec.structs.asdict(tried) for tried in ranked.tried if tried.rounds]},
    )


def trials_in_words(found: Found) -> str:
    """What the live trials said, in a sentence or two."""
    if not found.trials:
        return ""
    best = max(found.trials, key=lambda trial: trial.gain)
    gave = f"gave {change(best.gain, best.se)}"
    many = f"{len(found.trials)} thresholds were tried live; the best, {best.threshold}, {gave}"
    told = many if len(found.trials) > 1 else f"1 threshold was tried live, {best.threshold}; it {gave}"
    if found.beaten:
        return f"{told}, more than noise above the crossing {name(found.fit.threshold)}."
    return f"{told}, which is not more than noise above the crossing."


def _moved(
    run: RunFolder, made: Recommendation, curves: objective.Curves, found: Found, slack: float, seed: int
) -> Recommendation:
    """The recommendation with the trial's threshold in place of the crossing."""
    threshold = found.threshold
    return msgspec.structs.replace(
        made,
        threshold=threshold,
        effective_threshold=effective(run, threshold),
        resume_at=None if threshold is None else default_resume_at(threshold),
        score=objective.score(curves, threshold),
        score_interval=objective.score_interval(curves, threshold, seed),
        latency_c1=objective.latency_c1(curves, threshold, slack),
        words=made.words
        | {"recommended": f"Speculate up to a decode batch of {threshold}: live, it did better than the crossing."},
    )


def _shortfall(found: Found) -> tuple[str, ...]:
    if found.confirmed is None:
        return (
            ("there was no last live check of what is kept: the budget ended, or its points were not usable",)
            if found.threshold
            else ()
        )
    gain, se = found.confirmed
    if gain < SHORTFALL and gain < -1.64 * se:
        return (
            f"live, the threshold gave {-math.expm1(gain):.1%} less than the curves promise: switching itself costs"
            " here; `specpivot tune --search resume_at,min_dwell` ranks other resume points and dwells",
        )
    return ()


def _share(found: Found) -> dict[str, float] | None:
    """The last live check: share of what the curves promise, and its standard error."""
    return None if found.confirmed is None else {"of_promised": math.exp(found.confirmed[0]), "se": found.confirmed[1]}
