"""Figures: what they show is what was measured, points left out are counted, simulated runs are marked."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Annotation

from harness.errors import UserError
from tests.tuner.runs import forced_off, manifest, rows, write_run
from tuner.plots import FIGURES, save_plots, throughput, tpot, user_speed, view


def texts(figure: Figure) -> str:
    found = [text.get_text() for text in figure.texts]
    for axes in figure.axes:
        found += [text.get_text() for text in axes.texts] + [axes.get_xlabel(), axes.get_ylabel(), axes.get_title()]
    return "\n".join(found)


def test_files_are_written_and_repeat_exactly(tmp_path: Path) -> None:
    """Each figure is a PNG and an SVG, and drawing again gives the same bytes."""
    run = write_run(tmp_path / "run")
    first, second = save_plots(run, tmp_path / "a"), save_plots(run, tmp_path / "b")
    assert sorted(f.name for f in first) == sorted(f"{stem}.{s}" for stem in FIGURES for s in ("png", "svg"))
    for one, two in zip(first, second, strict=True):
        assert one.read_bytes() == two.read_bytes()
        assert one.read_bytes()[:4] in (b"\x89PNG", b"<?xm")


@pytest.mark.parametrize("stem", list(FIGURES))
def test_simulated_runs_are_marked_and_measured_ones_are_not(tmp_path: Path, stem: str) -> None:
    """The word is on every figure of a simulated run and on none of a measured one."""
    simulated = FIGURES[stem](view(write_run(tmp_path / "s")))
    measured = FIGURES[stem](view(write_run(tmp_path / "m", made=manifest("measured"))))
    assert "SIMULATED" in texts(simulated)
    assert "SIMULATED" not in texts(measured)


def test_points_that_are_not_valid_are_left_out_and_counted(tmp_path: Path) -> None:
    """A spoilt point moves nothing in the curve and appears in the note."""
    good = rows()
    spoilt = msgspec.structs.replace(good[-1], output_tok_per_s=1.0, verdict="client_limited")
    figure = throughput(view(write_run(tmp_path / "run", [*good[:-1], spoilt])))
    assert "1 point left out: not valid" in texts(figure)
    line = next(line for line in figure.axes[0].lines if line.get_label() == "patched, forced off")
    assert min(line.get_ydata()) > 100


def test_curves_show_the_means_with_units(tmp_path: Path) -> None:
    """The plotted values are the level means, and axes carry units."""
    shown = view(write_run(tmp_path / "run"))
    figure = throughput(shown)
    line = next(line for line in figure.axes[0].lines if line.get_label() == "EAGLE-3, static")
    assert list(line.get_ydata()) == pytest.approx([lv.tok_per_s for lv in shown.curves["eagle3"]])
    assert "output tokens per second" in texts(figure)
    assert "milliseconds per token" in texts(tpot(shown))
    assert "requests in flight" in texts(figure)


def test_the_pivot_is_drawn_in_concurrency(tmp_path: Path) -> None:
    """A pivot in decode batches lands at the concurrency that gives this batch, and its interval is named."""
    shown = view(write_run(tmp_path / "run"))
    assert shown.fit is not None
    figure = throughput(shown)
    position = max(float(line.get_xdata()[0]) for line in figure.axes[0].lines if len(line.get_xdata()) == 2)
    assert position == pytest.approx((shown.fit.batch or 0) / 0.95, rel=0.02)
    assert f"threshold {shown.fit.threshold}" in texts(figure)


def test_runs_without_a_pivot_are_drawn_too(tmp_path: Path) -> None:
    """Baseline alone, and curves that never cross, give figures without a band."""
    alone = write_run(tmp_path / "alone", [row for row in rows(repeats=1) if row.variant == "baseline"])
    never = write_run(tmp_path / "never", rows({"eagle3": lambda b: 2 * forced_off(b), "forced_off": forced_off}))
    for run in (alone, never):
        assert "pivot" not in texts(throughput(view(run)))
        assert save_plots(run, tmp_path / "plots")


def test_values_that_do_not_exist_leave_a_gap(tmp_path: Path) -> None:
    """Points without a time per token (one token per request) are missing from those figures only."""
    bare = [msgspec.structs.replace(row, tpot_p50_s=None, user_tok_per_s=None) for row in rows(repeats=1)]
    shown = view(write_run(tmp_path / "run", bare))
    assert all(draw(shown) for draw in FIGURES.values())


def test_a_time_per_token_without_an_interval_has_no_bar(tmp_path: Path) -> None:
    """A bar down to nothing would be an interval."""
    bare = [msgspec.structs.replace(row, tpot_p50_s_low=None, tpot_p50_s_high=None) for row in rows(repeats=1)]
    axes = tpot(view(write_run(tmp_path / "run", bare))).axes[0]
    bars = [bar for container in axes.containers for bar in container.lines[2][0].get_segments()]
    assert bars
    assert all(bar[0][1] == pytest.approx(bar[1][1]) for bar in bars)


def test_nothing_usable_and_unwritable_are_one_line(tmp_path: Path) -> None:
    """Both name the folder."""
    bad = [msgspec.structs.replace(row, verdict="unstable") for row in rows()]
    with pytest.raises(UserError, match="no usable point"):
        view(write_run(tmp_path / "bad", bad))
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write plots"):
        save_plots(write_run(tmp_path / "run"), tmp_path / "file" / "plots")


def test_levels_are_named_on_the_outer_side_of_each_curve(tmp_path: Path) -> None:
    """At each concurrency the faster variant has its number above and to the right, the slower one below and left."""
    figure = user_speed(
        view(write_run(tmp_path / "run", [row for row in rows(noise=1e-6) if row.variant != "forced_off"]))
    )
    sides: dict[str, list[int]] = {}
    for text in figure.axes[0].texts:
        if isinstance(text, Annotation) and text.get_text().isdecimal():
            sides.setdefault(text.get_text(), []).append(round(math.copysign(1, text.xyann[0] + text.xyann[1])))
    assert sides["1"] == [-1, 1]  # baseline, then eagle3
    assert sides["256"] == [1, -1]
