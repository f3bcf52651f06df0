"""The figure of the live trials."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from harness.errors import UserError
from tests.tuner.runs import manifest, write_run
from tuner.recommend import recommend
from tuner.study import Trial, open_study, storage_of
from tuner.trial_plots import figure, save, trials

TRIED = (
    Trial(0, 113, 0.001, 0.004, True, "crossing"),
    Trial(1, 80, -0.012, 0.005, True, "neighbour"),
    Trial(2, 150, -0.02, 0.006, False, "sampler"),
)


def test_every_trial_is_drawn_with_its_error(tmp_path: Path) -> None:
    """Positions are threshold and gain; infeasible ones are hollow and explained; the simulation is marked."""
    run = write_run(tmp_path / "run")
    made = figure(run, recommend(run), TRIED)
    axes = made.axes[0]
    assert [float(bar.lines[0].get_xdata()[0]) for bar in axes.containers] == [113, 80, 150]
    assert [text.get_text() for text in made.legends[0].get_texts()] == [
        "the crossing",
        "its neighbours",
        "sampled by Optuna",
        "breaks the latency constraint",
    ]
    assert any("SIMULATED" in text.get_text() for text in made.texts)


def test_measured_runs_are_not_marked(tmp_path: Path) -> None:
    """The word is on simulated figures only."""
    run = write_run(tmp_path / "run", made=manifest("measured"))
    assert not figure(run, recommend(run), TRIED).texts


def test_files_and_their_absence(tmp_path: Path) -> None:
    """PNG and SVG where there were trials, nothing where there were none."""
    run = write_run(tmp_path / "run")
    recommend(run)
    assert [file.name for file in save(run, tmp_path, TRIED)] == ["trials.png", "trials.svg"]
    assert save(run, tmp_path, ()) == []


def test_trials_come_from_the_study_in_the_folder(tmp_path: Path) -> None:
    """Judged trials are read back from the journal; a folder without one is named."""
    run = write_run(tmp_path / "run")
    with pytest.raises(UserError, match="no study"):
        trials(run)
    study = open_study(storage_of(run.path / "study.journal"), "specpivot", 1)
    asked = study.ask()
    asked.suggest_int("threshold", 113, 113)
    asked.set_user_attr("gain", 0.001)
    asked.set_user_attr("se", 0.004)
    asked.set_constraint("latency_c1", 0.0)
    study.tell(asked, 0.99)
    assert trials(run) == (msgspec.structs.replace(TRIED[0], source="sampler"),)
