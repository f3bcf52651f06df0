"""How figures look: one colour and one marker per variant everywhere, safe for the colour-blind (Okabe and Ito)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import matplotlib
import msgspec
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from harness.records import Variant

INK, FAINT, BAND = "#222222", "#8a8a8a", "#e69f00"


class Look(msgspec.Struct, frozen=True):
    """Colour, marker, line and label of a variant."""

    label: str
    colour: str
    marker: str
    line: str = "-"


LOOKS: dict[Variant, Look] = {
    "baseline": Look("baseline", "#444444", "o"),
    "baseline_no_overlap": Look("baseline, overlap off", "#999999", "s", "--"),
    "eagle3": Look("EAGLE-3, static", "#0072b2", "^"),
    "forced_off": Look("patched, forced off", "#009e73", "v", "--"),
    "dynamic": Look("patched, dynamic", "#d55e00", "D"),
}

_RC = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.7,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 5.5,
    "svg.hashsalt": "specpivot",  # the same figure gives the same file
    "svg.fonttype": "path",
    "savefig.dpi": 160,
    "figure.constrained_layout.h_pad": 0.08,
    "figure.constrained_layout.w_pad": 0.08,
}


@contextmanager
def styled() -> Iterator[None]:
    """Draw and save inside this."""
    with matplotlib.rc_context(_RC):  # type: ignore[arg-type]  # its stubs name each key
        yield


def log_concurrency(axes: Axes, ticks: list[int]) -> None:
    """A log2 axis of concurrency with the measured levels as ticks, thinned where they would touch."""
    axes.set_xscale("log", base=2)
    kept: list[int] = []
    for tick in ticks:
        if not kept or tick / kept[-1] >= 1.4:
            kept.append(tick)
    axes.set_xticks(kept, [str(tick) for tick in kept])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("concurrency (requests in flight)")


def log_rate(axes: Axes) -> None:
    """A log y axis in steps of 1, 2 and 5, as plain numbers with thousands separators."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_minor_locator(NullLocator())


def mark_simulated(figure: Figure) -> None:
    """Say on the figure, unmissably and without hiding the data, that nothing was measured."""
    figure.text(
        0.5, 0.5, "SIMULATED", rotation=24, fontsize=58, fontweight="bold", color="#d55e00", alpha=0.11,
        ha="center", va="center", zorder=10,
    )  # fmt: skip
    figure.text(
        0.985, 0.982, "SIMULATED, not measured", fontsize=9, fontweight="bold", color="white", ha="right", va="top",
        bbox={"facecolor": "#b34700", "edgecolor": "none", "boxstyle": "round,pad=0.35"},
    )  # fmt: skip
