"""Why this threshold: what every threshold is worth by the score, by the literal objective, and to a lone user.

Thresholds that treat every measured level alike are one candidate; the axis has one place for each. Everything is
replayed on the measured curves, as `tuner.objective` does it.
"""

from __future__ import annotations

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from harness.runfolder import RunFolder
from tuner import objective
from tuner.objective import Curves
from tuner.recommend import Recommendation, analyse
from tuner.style import BAND, FAINT, INK, LOOKS, mark_simulated
from tuner.words import name

Threshold = int | None


def figure(run: RunFolder, found: Recommendation) -> Figure:
    """Three panels over the candidates: score, highest throughput, a lone user's time per token.

    Args:
        run: with the measured curves.
        found: its recommendation, which is marked.

    Raises:
        UserError: the run cannot be judged.
    """
    curves = analyse(run).curves
    tried = objective.candidates(curves)
    made = Figure(figsize=(8.4, 7.8), layout="constrained")
    FigureCanvasAgg(made)
    top, middle, low = made.subplots(3, 1, sharex=True)
    top.set_title("Why this threshold\n", color=INK)
    note = f"{run.path.resolve().name}  ·  recommended: {name(found.threshold)}; bars are 90 % intervals"
    top.text(0, 1.04, note, transform=top.transAxes, color=FAINT, fontsize=9)
    _scores(top, curves, tried)
    _peaks(middle, curves, tried)
    _lone_user(low, curves, tried, found.latency_c1.slack)
    for axes in (top, middle, low):
        axes.axvline(_place(curves, tried, found.threshold), color=BAND, linewidth=7, alpha=0.35, zorder=0)
        axes.margins(y=0.15)
    low.set_xticks(range(len(tried)), [_label(threshold) for threshold in tried])
    low.set_xlabel("threshold (largest decode batch that speculates, requests)")
    made.align_ylabels()
    if found.source == "simulated":
        mark_simulated(made)
    return made


def _scores(axes: Axes, curves: Curves, tried: list[Threshold]) -> None:
    values = np.array([objective.score(curves, threshold) for threshold in tried])
    ends = np.array([objective.score_interval(curves, threshold) for threshold in tried])
    reach = np.maximum([values - ends[:, 0], ends[:, 1] - values], 0)
    axes.errorbar(range(len(tried)), values, yerr=reach, fmt="o-", color=LOOKS["dynamic"].colour, capsize=3)
    axes.set_ylabel("score: share of the better\nof both, mean over C")


def _peaks(axes: Axes, curves: Curves, tried: list[Threshold]) -> None:
    peaks = [max(objective.throughput(curves, threshold, level) for level in curves.batches) for threshold in tried]
    axes.plot(range(len(tried)), peaks, "s-", color=LOOKS["baseline"].colour)
    axes.set_ylim(0, 1.15 * max(peaks))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_ylabel("highest throughput at any C\n(output tokens per second)")


def _lone_user(axes: Axes, curves: Curves, tried: list[Threshold], slack: float) -> None:
    latencies = [objective.latency_c1(curves, threshold, slack) for threshold in tried]
    if latencies[0].eagle3_s is None:
        axes.text(0.5, 0.5, "no time per token at the smallest level", transform=axes.transAxes, ha="center")
        return
    milliseconds = [1e3 * (latency.at_threshold_s or math.nan) for latency in latencies]
    colour = LOOKS["eagle3"].colour
    axes.plot(range(len(tried)), milliseconds, "-", color=colour, zorder=1)
    for place, (value, latency) in enumerate(zip(milliseconds, latencies, strict=True)):
        axes.plot(place, value, "o", color=colour, markerfacecolor=colour if latency.ok else "white")
    bound = 1e3 * (1 + slack) * latencies[0].eagle3_s
    axes.axhline(bound, color=INK, linestyle="--", linewidth=1.2)
    axes.annotate(
        f"constraint: static EAGLE-3 + {100 * slack:g} % (hollow: broken)", (len(tried) - 1, bound), xytext=(0, 4),
        textcoords="offset points", ha="right", fontsize=9, color=INK,
    )  # fmt: skip
    axes.set_ylabel(f"time per output token\nat C = {latencies[0].concurrency} (ms)")


def _place(curves: Curves, tried: list[Threshold], threshold: Threshold) -> int:
    """The candidate that treats every level as `threshold` does."""
    wanted = [curves.speculates(threshold, level) for level in curves.batches]
    alike = [[curves.speculates(one, level) for level in curves.batches] for one in tried]
    return alike.index(wanted)


def _label(threshold: Threshold) -> str:
    return "never\nspeculate" if threshold == 0 else "never\ndisable" if threshold is None else str(threshold)
