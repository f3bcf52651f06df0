"""Figures of several runs: ratios are those of the comparison, sources are not mixed."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import UserError
from tests.tuner.runs import CURVES, manifest, rows, write_run
from tuner.compare import compare
from tuner.compare_plots import RUN_COLOURS, differences, gains
from tuner.levels import levels


def test_gains_are_eagle3_over_its_reference(tmp_path: Path) -> None:
    """One line per run, named after it, at the ratio of the level means."""
    run = write_run(tmp_path / "one")
    other = write_run(tmp_path / "two", rows(noise=0.02, seed=2))
    made = gains([run, other])
    curves = levels(run.levels())
    expected = [on.tok_per_s / off.tok_per_s for on, off in zip(curves["eagle3"], curves["baseline"], strict=True)]
    line = next(line for line in made.axes[0].lines if len(line.get_xdata()) == len(expected))
    assert list(line.get_ydata()) == pytest.approx(expected)
    assert [text.get_text() for text in made.legends[0].get_texts()] == ["one", "two"]
    assert "over reference" in made.axes[0].get_ylabel()
    assert any("SIMULATED" in text.get_text() for text in made.texts)


def test_differences_are_those_of_the_comparison(tmp_path: Path) -> None:
    """A variant that is 1.5 times as fast is drawn there, filled; one that is not stays hollow at 1."""
    faster = {**CURVES, "eagle3": lambda batch: 1.5 * CURVES["eagle3"](batch)}
    a = write_run(tmp_path / "a", made=manifest("measured"))
    b = write_run(tmp_path / "b", rows(faster, seed=2), manifest("measured"))
    made = differences(compare(a, b))
    filled = [line for line in made.axes[0].lines if line.get_marker() == "^" and len(line.get_xdata()) == 1]
    assert filled
    for line in filled:
        assert float(line.get_ydata()[0]) == pytest.approx(1.5, rel=0.05)
        assert line.get_markerfacecolor() != "white"
    assert not made.texts


def test_what_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    """Sources together, more runs than colours, and runs without a reference."""
    simulated = write_run(tmp_path / "s")
    with pytest.raises(UserError, match="one source"):
        gains([simulated, write_run(tmp_path / "m", made=manifest("measured"))])
    with pytest.raises(UserError, match="more than one figure"):
        gains([simulated] * (len(RUN_COLOURS) + 1))
    alone = write_run(tmp_path / "alone", [row for row in rows(repeats=1) if row.variant == "eagle3"])
    with pytest.raises(UserError, match="reference"):
        gains([alone])
