"""Figures of a run: throughput and tpot against concurrency, throughput against the speed one user sees.

Each function takes a prepared View and returns a figure; `save_plots` writes them all as PNG and SVG. Points that are
not usable are left out and counted in a note; a simulated run says so across every figure.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from harness.errors import UserError
from harness.records import VARIANTS, Source, Variant
from harness.runfolder import RunFolder
from tuner.curves import Pivot, pivot
from tuner.levels import Level, levels, reference_in
from tuner.style import BAND, FAINT, INK, LOOKS, log_concurrency, log_rate, mark_simulated, styled
from tuner.words import name, span


class View(msgspec.Struct, frozen=True):
    """What the figures of one run show.

    Attributes:
        curves: level means per variant, in the order of VARIANTS.
        fit: the pivot; None where the run cannot be judged.
        reference: the variant that the lower panel compares with; None where no baseline was measured.
        left_out: number of points that are not usable.
    """

    title: str
    source: Source
    curves: dict[Variant, list[Level]]
    fit: Pivot | None
    reference: Variant | None
    left_out: int


def view(run: RunFolder) -> View:
    """Prepare a run for plotting.

    Raises:
        UserError: it has no usable point.
    """
    rows = run.levels()
    found = levels(rows)
    if not found:
        raise UserError(f"{run.path} has no usable point to plot; see the verdicts in {run.path / 'levels.csv'}")
    reference = reference_in(run.manifest, found) or ("forced_off" if "forced_off" in found else None)
    return View(
        title=run.path.resolve().name,
        source=run.manifest.source,
        curves={variant: found[variant] for variant in VARIANTS if variant in found},
        fit=pivot(rows, reference),
        reference=reference,
        left_out=sum(not row.usable for row in rows),
    )


def save_plots(run: RunFolder, out_dir: Path) -> list[Path]:
    """Write every figure of a run as PNG and SVG.

    Args:
        run: the run folder.
        out_dir: made if it does not exist.

    Raises:
        UserError: no usable point, or the folder cannot be written.
    """
    shown = view(run)
    written: list[Path] = []
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        for stem, draw in FIGURES.items():
            with styled():
                figure = draw(shown)
                for suffix in ("png", "svg"):
                    file = out_dir / f"{stem}.{suffix}"
                    figure.savefig(file, metadata={"Date": None} if suffix == "svg" else None)
                    written.append(file)
    except OSError as error:
        raise UserError(f"cannot write plots to {out_dir}: {error.strerror}; give another folder") from error
    return written


def throughput(shown: View) -> Figure:
    """Output throughput against concurrency, and below it each variant as a share of the reference."""
    figure, (top, low) = _figure(shown, "Output throughput", (8.4, 6.6), (2.1, 1.0))
    for variant, curve in shown.curves.items():
        _line(top, variant, curve, [(lv.tok_per_s, lv.tok_per_s_low, lv.tok_per_s_high) for lv in curve])
    log_rate(top)
    top.set_ylabel("output tokens per second")
    _relative(low, shown)
    for axes in (top, low):
        _pivot_band(axes, shown, label=axes is top)
    log_concurrency(top, _ticks(shown))
    log_concurrency(low, _ticks(shown))
    top.set_xlabel("")
    top.tick_params(labelbottom=False)
    _legend(top, "upper left")
    return figure


def tpot(shown: View) -> Figure:
    """Time per output token (median over requests) against concurrency."""
    figure, (axes,) = _figure(shown, "Time per output token (median)", (8.4, 4.6))
    for variant, curve in shown.curves.items():
        known = [lv for lv in curve if lv.tpot_s is not None]
        scaled = [
            tuple(1e3 * (v or lv.tpot_s or 0.0) for v in (lv.tpot_s, lv.tpot_s_low, lv.tpot_s_high)) for lv in known
        ]
        _line(axes, variant, known, [(v[0], v[1], v[2]) for v in scaled])
    axes.set_ylabel("milliseconds per token, one request")
    axes.set_ylim(bottom=0)
    _pivot_band(axes, shown)
    log_concurrency(axes, _ticks(shown))
    _legend(axes, "upper left")
    return figure


def user_speed(shown: View) -> Figure:
    """Throughput of the server against the speed that one user sees; up and to the right is better."""
    figure, (axes,) = _figure(shown, "Server throughput against user speed", (8.4, 5.2))
    for variant, curve in shown.curves.items():
        known = [lv for lv in curve if lv.tpot_s or lv.user_tok_per_s]
        speeds = [lv.user_tok_per_s or 1 / (lv.tpot_s or 1.0) for lv in known]
        rates = [lv.tok_per_s for lv in known]
        look = LOOKS[variant]
        axes.plot(speeds, rates, look.line, color=look.colour, marker=look.marker, label=look.label)
        if variant in ("eagle3", shown.reference):
            rival: Variant | None = shown.reference if variant == "eagle3" else "eagle3"
            others = shown.curves.get(rival, []) if rival else []
            beaten = {level.concurrency for level in known for other in others if _behind(level, other)}
            _label_levels(axes, variant, known, speeds, rates, beaten)
    log_rate(axes)
    axes.set_xlim(left=0)
    axes.margins(y=0.09)
    axes.set_xlabel("tokens per second that one user sees (numbers at the points: concurrency)")
    axes.set_ylabel("output tokens per second, whole server")
    _legend(axes, "upper right")
    return figure


FIGURES: dict[str, Callable[[View], Figure]] = {"throughput": throughput, "tpot": tpot, "user_speed": user_speed}


def _figure(
    shown: View, title: str, size: tuple[float, float], heights: tuple[float, ...] = (1.0,)
) -> tuple[Figure, tuple[Axes, ...]]:
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(len(heights), 1, height_ratios=heights)
    axes = tuple(figure.add_subplot(grid[i, 0]) for i in range(len(heights)))
    axes[0].set_title(f"{title}\n", color=INK)
    axes[0].text(0, 1.025, shown.title + _note(shown), transform=axes[0].transAxes, color=FAINT, fontsize=9)
    if shown.source == "simulated":
        mark_simulated(figure)
    return figure, axes


def _note(shown: View) -> str:
    if not shown.left_out:
        return ""
    return f"  ·  {shown.left_out} {'point' if shown.left_out == 1 else 'points'} left out: not valid"


def _line(axes: Axes, variant: Variant, curve: list[Level], values: list[tuple[float, float, float]]) -> None:
    """A variant's means with their 95 % intervals as bars."""
    if not curve:
        return
    look = LOOKS[variant]
    mean, low, high = np.array(values).T
    x = [lv.concurrency for lv in curve]
    axes.plot(x, mean, look.line, color=look.colour, marker=look.marker, label=look.label)
    reach = [np.maximum(mean - low, 0), np.maximum(high - mean, 0)]
    axes.errorbar(x, mean, yerr=reach, fmt="none", ecolor=look.colour, elinewidth=1.1, capsize=2.5)


def _relative(axes: Axes, shown: View) -> None:
    reference = {lv.concurrency: lv for lv in shown.curves.get(shown.reference, [])} if shown.reference else {}
    axes.axhline(1, color=LOOKS["baseline"].colour, linewidth=1)
    highest = 1.0
    for variant, curve in shown.curves.items():
        if variant == shown.reference:
            continue
        shared = [lv for lv in curve if lv.concurrency in reference]
        base = [reference[lv.concurrency].tok_per_s for lv in shared]
        pairs = zip(shared, base, strict=True)
        scaled = [(lv.tok_per_s / b, lv.tok_per_s_low / b, lv.tok_per_s_high / b) for lv, b in pairs]
        _line(axes, variant, shared, scaled)
        highest = max([highest, *(ratio for ratio, _, _ in scaled)])
    label = LOOKS[shown.reference].label if shown.reference else "reference"
    axes.set_ylabel(f"relative to\n{label}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    axes.set_ylim(
        0, 1.25 * highest
    )  # an interval from two repeats may leave the panel; the curve must not shrink for it


def _pivot_band(axes: Axes, shown: View, label: bool = True) -> None:
    """The interval of the pivot as a band and the pivot as a line, moved from decode batch to concurrency."""
    fit = shown.fit
    if fit is None or fit.shape in ("always_on", "always_off"):
        return
    batches = np.log2([ratio.batch for ratio in fit.ratios])
    concurrencies = np.log2([ratio.concurrency for ratio in fit.ratios])

    def at(batch: float) -> float:
        return float(2 ** np.interp(np.log2(max(batch, 1e-9)), batches, concurrencies))

    low, high = fit.interval
    right = 2 ** concurrencies[-1] if high is None else at(high)
    axes.axvspan(at(low or 0), right, color=BAND, alpha=0.22, linewidth=0, zorder=0)
    if fit.threshold:
        axes.axvline(at(fit.batch or fit.threshold), color=BAND, linewidth=1.4, zorder=1.6)  # above the grid
    if label:
        crowded = np.log2(right) > 0.7 * concurrencies[-1]
        axes.annotate(
            f"pivot: {name(fit.threshold)}\n90 %: {span(low, high)}",
            (at(low or 0) if crowded else right, 0.03), xycoords=("data", "axes fraction"),
            xytext=(-6 if crowded else 6, 0), textcoords="offset points",
            fontsize=8.5, color="#7a4f00", ha="right" if crowded else "left", va="bottom",
        )  # fmt: skip


def _behind(level: Level, other: Level) -> bool:
    return level.concurrency == other.concurrency and level.tok_per_s < other.tok_per_s


def _label_levels(
    axes: Axes, variant: Variant, curve: list[Level], x: list[float], y: list[float], beaten: set[int]
) -> None:
    """The concurrency beside each point: above and right of it, or below and left where the other curve is ahead."""
    for level, at_x, at_y in zip(curve, x, y, strict=True):
        side = -1 if level.concurrency in beaten else 1
        axes.annotate(
            str(level.concurrency), (at_x, at_y), xytext=(7 * side, 6 * side), textcoords="offset points",
            ha="left" if side > 0 else "right", va="center", fontsize=8, zorder=6,
            color=LOOKS[variant].colour, path_effects=[withStroke(linewidth=2.5, foreground="white")],
        )  # fmt: skip


def _legend(axes: Axes, place: Literal["upper left", "upper right"]) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc=place)


def _ticks(shown: View) -> list[int]:
    return sorted({lv.concurrency for curve in shown.curves.values() for lv in curve})
