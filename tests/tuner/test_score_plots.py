"""The figure of why: its three panels are the objective's own numbers."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.tuner.runs import manifest, rows, write_run
from tuner import objective
from tuner.recommend import analyse, recommend
from tuner.score_plots import figure


def test_panels_show_what_the_objective_says(tmp_path: Path) -> None:
    """Score and peak throughput of every candidate, in order, with units on the axes."""
    run = write_run(tmp_path / "run")
    made = figure(run, recommend(run))
    curves = analyse(run).curves
    tried = objective.candidates(curves)
    top, middle, low = made.axes
    scores = top.containers[0].lines[0].get_ydata()
    assert list(scores) == pytest.approx([objective.score(curves, one) for one in tried])
    peaks = [max(objective.throughput(curves, one, level) for level in curves.batches) for one in tried]
    assert list(middle.lines[0].get_ydata()) == pytest.approx(peaks)
    assert "tokens per second" in middle.get_ylabel()
    assert "(ms)" in low.get_ylabel()
    assert "requests" in low.get_xlabel()
    assert low.get_xticklabels()[0].get_text() == "never\nspeculate"


def test_a_broken_constraint_is_hollow(tmp_path: Path) -> None:
    """Never speculating makes a lone user twice as slow: that point alone is hollow, above the line."""
    run = write_run(tmp_path / "run")
    low = figure(run, recommend(run)).axes[2]
    points = [line for line in low.lines if line.get_marker() == "o"]
    hollow = [line for line in points if line.get_markerfacecolor() == "white"]
    assert len(points) > 2
    assert [float(line.get_xdata()[0]) for line in hollow] == [0.0]
    bound = next(float(line.get_ydata()[0]) for line in low.lines if line.get_linestyle() == "--")
    assert float(hollow[0].get_ydata()[0]) > bound


def test_only_simulated_runs_are_marked(tmp_path: Path) -> None:
    """The word is on simulated figures only."""
    for source in ("simulated", "measured"):
        run = write_run(tmp_path / source, made=manifest(source))
        texts = [text.get_text() for text in figure(run, recommend(run)).texts]
        assert any("SIMULATED" in text for text in texts) == (source == "simulated")


def test_no_latency_is_said(tmp_path: Path) -> None:
    """Where requests had one token, the third panel says so."""
    bare = [msgspec.structs.replace(row, tpot_p50_s=None, user_tok_per_s=None) for row in rows(repeats=2)]
    run = write_run(tmp_path / "run", bare)
    low = figure(run, recommend(run)).axes[2]
    assert any("no time per token" in text.get_text() for text in low.texts)
