"""The figure of a tuning: every live trial's gain over the crossing, with its error, and why the crossing stands."""

from __future__ import annotations

import math
from pathlib import Path

import optuna
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from harness.errors import UserError
from harness.runfolder import RunFolder
from tuner.recommend import Recommendation, read
from tuner.study import BEATS_Z, JOURNAL, Trial, storage_of, trials_of
from tuner.style import BAND, FAINT, INK, LOOKS, mark_simulated, styled
from tuner.words import name, span

ROOM = 0.25  # between two labels, in log of the threshold
COLOURS = {"crossing": BAND, "neighbour": LOOKS["eagle3"].colour}


def trials(run: RunFolder, study: str = "specpivot") -> tuple[Trial, ...]:
    """The live trials in a run folder's own study.

    Raises:
        UserError: the folder holds no study.
    """
    journal = run.path / JOURNAL
    if not journal.exists():
        raise UserError(f"{run.path} holds no {JOURNAL}; name the folder of a tuning")
    return trials_of(optuna.load_study(study_name=study, storage=storage_of(journal)))


def save(run: RunFolder, out_dir: Path, tried: tuple[Trial, ...]) -> list[Path]:
    """Write the figure as PNG and SVG; nothing where there was no trial."""
    if not tried:
        return []
    with styled():
        made = figure(run, read(run), tried)
        files = [out_dir / f"trials.{suffix}" for suffix in ("png", "svg")]
        for file in files:
            made.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)
    return files


def figure(run: RunFolder, found: Recommendation, tried: tuple[Trial, ...]) -> Figure:
    """Gain of each trial against its threshold, with what it takes to beat the crossing.

    Args:
        run: names the figure.
        found: its threshold and interval are drawn.
        tried: at least one trial.
    """
    made = Figure(figsize=(8.4, 4.6), layout="constrained")
    FigureCanvasAgg(made)
    axes = made.add_subplot()
    axes.set_title("Thresholds tried live\n", color=INK)
    axes.text(0, 1.025, _subtitle(run, found), transform=axes.transAxes, color=FAINT, fontsize=9)
    axes.axhline(0, color=FAINT, linewidth=1)
    _interval(made, found)
    for trial in tried:
        colour = COLOURS.get(trial.source, LOOKS["dynamic"].colour)
        axes.errorbar(
            trial.threshold, 100 * trial.gain, yerr=100 * BEATS_Z * trial.se, color=colour, marker="o", capsize=3,
            elinewidth=1.2, markerfacecolor=colour if trial.feasible else "white",
        )  # fmt: skip
    _legend(made, tried)
    ticks = _ticks(tried, found)
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:+g} %" if value else "0 %"))
    axes.set_xlabel("threshold (largest decode batch that speculates, requests)")
    axes.set_ylabel("score against what the curves\npromise of the crossing, 90 % bars")
    if found.source == "simulated":
        mark_simulated(made)
    return made


def _ticks(tried: tuple[Trial, ...], found: Recommendation) -> list[int]:
    """The thresholds that were tried, and the interval's ends where their labels have room beside them."""
    ticks = {trial.threshold for trial in tried}
    for end in found.interval:
        if end and all(abs(math.log(end / tick)) > ROOM for tick in ticks):
            ticks.add(end)
    return sorted(ticks)


def _subtitle(run: RunFolder, found: Recommendation) -> str:
    return f"{run.path.resolve().name}  ·  kept: {name(found.threshold)}, 90 % {span(*found.interval)}"


def _interval(made: Figure, found: Recommendation) -> None:
    low, high = found.interval
    if low and high:
        made.axes[0].axvspan(low, high + 0.5, color=BAND, alpha=0.22, linewidth=0, zorder=0)
    if found.threshold:
        made.axes[0].axvline(found.threshold, color=BAND, linewidth=1.4, zorder=1)


def _legend(made: Figure, tried: tuple[Trial, ...]) -> None:
    labels = {"crossing": "the crossing", "neighbour": "its neighbours"}
    shown = dict.fromkeys(labels.get(trial.source, "sampled by Optuna") for trial in tried)
    for label in shown:
        source = next((key for key, text in labels.items() if text == label), "")
        made.axes[0].plot([], [], "o", color=COLOURS.get(source, LOOKS["dynamic"].colour), label=label)
    if any(not trial.feasible for trial in tried):
        made.axes[0].plot([], [], "o", color=INK, markerfacecolor="white", label="breaks the latency constraint")
    made.legend(*made.axes[0].get_legend_handles_labels(), loc="outside lower left", ncols=4)
