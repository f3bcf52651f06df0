"""Sweeps and tunings on the virtual clock are simulated, repeat exactly, and are read as any run is."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import UserError
from harness.runfolder import RunFolder
from harness.sim.preset import Preset, load_preset
from tuner import recommend, virtual
from tuner.curves import pivot
from tuner.search import Aim
from tuner.trial_plots import trials
from tuner.virtual import Load

NAME = "h200-llama31-8b-accept-1.8-illustrative"
LOAD = Load(duration_s=3.0)


@pytest.fixture(scope="module")
def preset() -> Preset:
    return load_preset(NAME)


def tune(preset: Preset, folder: Path) -> RunFolder:
    return virtual.tuning(preset, NAME, folder, Aim((1, 8, 64), trials=2, seed=1), LOAD, points=24)


def test_a_tuning_is_a_simulated_run_folder(preset: Preset, tmp_path: Path) -> None:
    """It has rows, trials and a recommendation, all marked simulated; the budget is kept, the same seed repeats it."""
    run, again = (tune(preset, tmp_path / name) for name in ("a", "b"))
    found = recommend.read(run)
    assert run.manifest.source == found.source == "simulated"
    assert run.manifest.simulation == {"preset": NAME, "clock": "virtual"}
    assert 9 <= len(run.levels()) <= 24
    assert {row.variant for row in run.levels()} >= {"baseline", "eagle3", "forced_off"}
    assert found.evidence["trials"] == len(trials(run))
    assert recommend.read(again).threshold == found.threshold
    assert again.levels() == run.levels()


def test_a_folder_is_not_tuned_twice(preset: Preset, tmp_path: Path) -> None:
    """What is there stays."""
    run = tune(preset, tmp_path / "run")
    before = run.levels()
    with pytest.raises(UserError, match="already holds a run"):
        tune(preset, tmp_path / "run")
    assert RunFolder(run.path).levels() == before


def test_a_sweep_has_every_point_and_a_pivot(preset: Preset) -> None:
    """Variants, levels and repeats are all there; repeats differ by noise; speculation wins alone and loses loaded."""
    rows = virtual.sweep(preset, (1, 128), 2, LOAD)
    assert len({row.key for row in rows}) == len(rows) == 3 * 2 * 2
    alone = [row.output_tok_per_s for row in rows if row.variant == "baseline" and row.concurrency == 1]
    assert alone[0] != alone[1]
    fit = pivot(rows, "baseline")
    assert fit is not None
    assert fit.shape == "crossover"


def test_the_patched_variants_have_their_policy(preset: Preset) -> None:
    """eagle3 never switches, forced_off never speculates, the baseline has no threshold."""
    rows = {row.variant: row for row in virtual.sweep(preset, (4,), 1, LOAD)}
    assert [rows[variant].threshold for variant in ("baseline", "eagle3", "forced_off")] == [None, -1, 0]
    assert rows["eagle3"].steps_off == 0
    assert rows["forced_off"].steps_on == 0
