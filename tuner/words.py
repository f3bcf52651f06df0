"""The recommendation in words: what, how sure, what was rejected and why, what would change it."""

from __future__ import annotations

import math

from tuner import objective
from tuner.curves import Pivot
from tuner.objective import Curves, LatencyC1, LiteralAnswer

BESIDE = ("combination", "contexts", "ladder", "hysteresis")  # paragraphs that only some tunings have


def words(
    fit: Pivot,
    curves: Curves,
    threshold: int | None,
    literal: LiteralAnswer,
    aim: str,
    latency: LatencyC1,
    blind: bool = False,
) -> dict[str, str]:
    """Four short paragraphs for people, keyed recommended, confidence, rejected, would_change.

    `blind`: larger levels were planned and have no usable pair.
    """
    return {
        "recommended": _recommended(fit, threshold, aim, blind),
        "confidence": _confidence(fit),
        "rejected": _rejected(curves, threshold, literal, latency),
        "would_change": (
            "Acceptance moves the pivot most: drafts that are accepted more often pay up to larger batches. Longer"
            " contexts, another GPU count or model length, other prompts, or a new SGLang release move it too: measure"
            " again after such a change."
        ),
    }


def name(threshold: int | None) -> str:
    """A threshold in words."""
    if threshold is None:
        return "never disable"
    return "never speculate" if threshold == 0 else f"threshold {threshold}"


def span(low: int | None, high: int | None) -> str:
    """An interval of thresholds in words."""
    if low == high:
        return name(low)
    ends = ("never speculating" if low == 0 else low, "never disabling" if high is None else high)
    return f"{ends[0]} to {ends[1]}"


def change(gain: float, se: float) -> str:
    """A gain in log score, with its standard error, as a share."""
    return f"{100 * math.expm1(gain):+.1f} % of score ({error(se)})"


def error(se: float) -> str:
    """A standard error of a logarithm, as a share."""
    return f"standard error {100 * se:.1f} %" if math.isfinite(se) else "error not known yet"


def _recommended(fit: Pivot, threshold: int | None, aim: str, blind: bool) -> str:
    if aim == "throughput":
        return f"{name(threshold).capitalize()}: it reaches the highest throughput that keeps the latency constraint."
    small, large = fit.ratios[0], fit.ratios[-1]
    if fit.shape == "always_on" and blind:
        return (
            f"Not known: speculation gains {_gain(large.fitted)} at decode batch {large.batch:.0f}, but no larger level"
            " that was planned could be used. Measure those before you rely on never disabling it."
        )
    if fit.shape == "always_on":
        return (
            f"Never disable speculation: it still gains {_gain(large.fitted)} at decode batch {large.batch:.0f},"
            " the largest measured."
        )
    if fit.shape == "always_off":
        return (
            f"Do not speculate: it loses {_loss(small.fitted)} already at decode batch {small.batch:.0f},"
            " the smallest measured."
        )
    if fit.shape == "not_monotone":
        return (
            f"One threshold is not the answer: speculation loses at a smaller batch and wins at a larger one. Use the"
            f" ladder; if it must be one threshold, {name(threshold)} loses least."
        )
    return (
        f"Speculate up to a decode batch of {threshold}, and not above. At batch {small.batch:.0f} speculation gains"
        f" {_gain(small.fitted)}; at {large.batch:.0f} it loses {_loss(large.fitted)} against {fit.off}."
    )


def _confidence(fit: Pivot) -> str:
    repeats = sum(ratio.repeats for ratio in fit.ratios)
    return (
        f"90 % interval: {span(*fit.interval)}, from {repeats} pairs of eagle3 and {fit.off} at"
        f" {len(fit.ratios)} levels."
    )


def _rejected(curves: Curves, threshold: int | None, literal: LiteralAnswer, latency: LatencyC1) -> str:
    mine = objective.score(curves, threshold)
    others = [t for t in (0, None) if t != threshold]
    parts = [
        f"{name(t)} scores {objective.score(curves, t):.3f} against {mine:.3f}"
        + ("" if objective.latency_c1(curves, t, latency.slack).ok else " and slows a lone user too much")
        for t in others
    ]
    low, high = literal.within_half_percent
    parts.append(
        f"the literal objective would take {name(literal.threshold)}, but cannot tell {span(low, high)} apart"
        if low != high
        else f"the literal objective takes {name(literal.threshold)}"
    )
    text = "; ".join(parts)
    return text[0].upper() + text[1:] + "."


def _gain(log_ratio: float) -> str:
    return f"{100 * math.expm1(log_ratio):.0f} %"


def _loss(log_ratio: float) -> str:
    return f"{-100 * math.expm1(log_ratio):.0f} %"
