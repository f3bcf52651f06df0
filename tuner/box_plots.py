"""Figures of a plan for a box of several GPUs; all of it is simulated, and every figure says so."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from harness.records import Variant
from tuner.box import Box
from tuner.style import BAND, FAINT, INK, LOOKS, log_concurrency, mark_simulated
from tuner.words import name

SHOWN: tuple[Variant, ...] = ("baseline", "eagle3", "dynamic")


def capacity(box: Box, totals: Sequence[int]) -> Figure:
    """Throughput of the box relative to its baseline, against requests in flight on the whole box.

    Dotted: the same with a router that does not look at load.
    """
    made = Figure(figsize=(8.4, 4.8), layout="constrained")
    FigureCanvasAgg(made)
    axes = made.add_subplot()
    axes.set_title(f"{box.replicas} replicas, accept length {box.accept_len:g}\n", color=INK)
    note = f"each replica: {name(box.fit.threshold)}; solid: even routing, dotted: random routing"
    axes.text(0, 1.025, note, transform=axes.transAxes, color=FAINT, fontsize=9)
    base = {total: box.throughput("baseline", total) for total in totals}
    for variant in SHOWN:
        look = LOOKS[variant]
        even = [box.throughput(variant, total) / base[total] for total in totals]
        random = [box.throughput(variant, total, "random") / base[total] for total in totals]
        axes.plot(totals, even, "-", color=look.colour, marker=look.marker, label=look.label)
        axes.plot(totals, random, ":", color=look.colour)
    if box.fit.batch is not None:
        axes.axvline(box.fit.batch * box.replicas, color=BAND, linewidth=6, alpha=0.35, zorder=0, label="pivot")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    axes.set_ylabel("output throughput of the box, over that\nof baselines evenly loaded")
    log_concurrency(axes, list(totals))
    axes.set_xlabel(f"requests in flight on the whole box ({box.replicas} GPUs)")
    axes.legend(loc="lower left", ncols=2)
    mark_simulated(made)
    return made


def pivots(boxes: Sequence[Box]) -> Figure:
    """The pivot of a replica against accept length, with its interval; an arrow where it lies beyond the levels."""
    made = Figure(figsize=(8.4, 4.2), layout="constrained")
    FigureCanvasAgg(made)
    axes = made.add_subplot()
    axes.set_title("Pivot against acceptance, one replica\n", color=INK)
    axes.text(
        0,
        1.025,
        "bars: 90 % intervals; arrows: no pivot up to there",
        transform=axes.transAxes,
        color=FAINT,
        fontsize=9,
    )
    colour = LOOKS["dynamic"].colour
    top = max(ratio.batch for box in boxes for ratio in box.fit.ratios)
    for box in boxes:
        if box.fit.batch is None:
            marker, height = ("^", top) if box.fit.threshold is None else ("v", 1.0)
            axes.plot(box.accept_len, height, marker, color=colour, markersize=9)
            continue
        low, high = box.fit.interval
        axes.vlines(box.accept_len, max(1, low or 1), top if high is None else high, color=colour, linewidth=1.4)
        axes.plot(box.accept_len, box.fit.batch, "o", color=colour)
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("accept length (tokens per verify step)")
    axes.set_ylabel("decode batch of the pivot (requests)")
    mark_simulated(made)
    return made
