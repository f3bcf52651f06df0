"""Several runs in one figure: what speculation gains in each, and how two of them differ point by point.

Runs of different sources are refused: a simulated line beside a measured one would be read as a measurement.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from harness.errors import UserError
from harness.records import LevelRow, Source, Variant
from harness.runfolder import RunFolder
from tuner.compare import METRICS, Comparison, Difference, difference
from tuner.levels import usable
from tuner.style import FAINT, INK, LOOKS, log_concurrency, mark_simulated

RUN_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#222222")  # Okabe and Ito's, safe for all
RUN_MARKERS = ("o", "s", "^", "D", "v", "P")
LABELS = {"output_tok_per_s": "output throughput", "tpot_p50_s": "time per output token (median)"}


def gains(runs: Sequence[RunFolder]) -> Figure:
    """Throughput of eagle3 over that of its reference against concurrency, one line per run.

    Raises:
        UserError: no run has both, more runs than can be told apart, or measured and simulated ones together.
    """
    if len(runs) > len(RUN_COLOURS):
        raise UserError(f"{len(runs)} runs are more than one figure can tell apart; give {len(RUN_COLOURS)} or fewer")
    source = _one_source(runs)
    lines = {run.path.resolve().name: gain for run in runs if (gain := _gain(run))}
    if not lines:
        raise UserError("none of these runs has usable points of eagle3 and of its reference at the same concurrency")
    made, axes = _figure("What speculation gains", "EAGLE-3 over its reference in the same run; bars: 95 %", source)
    for place, (name, gain) in enumerate(lines.items()):
        _line(axes, gain, RUN_COLOURS[place], RUN_MARKERS[place], name, _beside(place, len(lines)))
    axes.set_ylabel("output throughput, EAGLE-3 over reference")
    _finish(axes, [point.concurrency for gain in lines.values() for point in gain])
    return made


def differences(found: Comparison, metric: str = METRICS[0]) -> Figure:
    """One metric of the second run over that of the first, one line per variant; hollow where it may be chance."""
    title = f"{LABELS.get(metric, metric).capitalize()}: two runs"
    note = f"{found.run_b} over {found.run_a}; bars: 95 %, hollow: not clearly different from 1"
    made, axes = _figure(title, note, found.source)
    listed = [one for one in found.differences if one.metric == metric]
    variants = list(dict.fromkeys(one.variant for one in listed))
    for place, variant in enumerate(variants):
        look, points = LOOKS[variant], [one for one in listed if one.variant == variant]
        _line(axes, points, look.colour, look.marker, look.label, _beside(place, len(variants)))
    axes.set_ylabel(f"{LABELS.get(metric, metric)}, ratio")
    _finish(axes, [one.concurrency for one in listed])
    return made


def _one_source(runs: Sequence[RunFolder]) -> Source:
    sources = {run.manifest.source for run in runs}
    if len(sources) != 1:
        raise UserError("measured and simulated runs do not belong into one figure; give runs of one source")
    return sources.pop()


def _gain(run: RunFolder) -> list[Difference]:
    record = run.manifest.variants.get("eagle3")
    reference: Variant = (record.reference if record else None) or "baseline"
    rows = usable(run.levels())
    on, off = _by_level(rows, "eagle3"), _by_level(rows, reference)
    shared = sorted(on.keys() & off.keys())
    found = [difference("output_tok_per_s", off[level], on[level]) for level in shared]
    return [one for one in found if one is not None]


def _by_level(rows: Sequence[LevelRow], variant: Variant) -> dict[int, list[LevelRow]]:
    levels: dict[int, list[LevelRow]] = {}
    for row in rows:
        if row.variant == variant:
            levels.setdefault(row.concurrency, []).append(row)
    return levels


def _figure(title: str, note: str, source: Source) -> tuple[Figure, Axes]:
    made = Figure(figsize=(8.4, 4.8), layout="constrained")
    FigureCanvasAgg(made)
    axes = made.add_subplot()
    axes.set_title(f"{title}\n", color=INK)
    axes.text(0, 1.025, note, transform=axes.transAxes, color=FAINT, fontsize=9)
    axes.axhline(1, color=LOOKS["baseline"].colour, linewidth=1)
    if source == "simulated":
        mark_simulated(made)
    return made, axes


def _beside(place: int, lines: int) -> float:
    """By how much a line's points move sideways, so that bars of one concurrency stand beside one another."""
    return float(2 ** (0.07 * (place - (lines - 1) / 2)))


def _line(axes: Axes, points: Sequence[Difference], colour: str, marker: str, label: str, moved: float) -> None:
    x, y = [one.concurrency * moved for one in points], [one.ratio for one in points]
    axes.plot(x, y, "-", color=colour, zorder=2)
    ends = np.array([(one.low or one.ratio, one.high or one.ratio) for one in points])
    axes.vlines(x, ends[:, 0], ends[:, 1], color=colour, linewidth=1.1, alpha=0.8)
    for one in points:
        axes.plot(
            one.concurrency * moved, one.ratio, marker, color=colour, markerfacecolor=colour if one.clear else "white"
        )
    axes.plot([], [], marker, linestyle="-", color=colour, label=label)


def _finish(axes: Axes, levels: list[int]) -> None:
    """Axes that the means fill: an interval from two repeats can be wider than any figure."""
    # The stubs of matplotlib call line data ArrayLike, which has no length.
    shown = [float(line.get_ydata()[0]) for line in axes.lines if len(line.get_ydata()) == 1]  # type: ignore[index,arg-type]
    axes.set_ylim(min(0.5, 0.8 * min(shown)), max(1.5, 1.25 * max(shown)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    log_concurrency(axes, sorted(set(levels)))
    made = axes.get_figure()
    assert made is not None
    entries = len(axes.get_legend_handles_labels()[0])
    made.legend(loc="outside lower center", ncols=2 if entries == 4 else 3)  # four in threes would leave one alone
