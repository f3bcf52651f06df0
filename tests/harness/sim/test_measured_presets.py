"""The presets that were made from committed runs predict the points of those runs that they have not seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.sim.calibrate import prediction_errors
from harness.sim.points import read_measured
from harness.sim.preset import load_preset, preset_names

RESULTS = Path(__file__).parents[3] / "results"
MEASURED = [name for name in preset_names() if load_preset(name).calibration is not None]


@pytest.mark.parametrize("name", MEASURED)
def test_unseen_concurrencies_are_predicted_within_five_percent(name: str) -> None:
    """On the virtual clock, throughput of every variant at each C that calibration left out is within 5 percent."""
    preset = load_preset(name)
    assert preset.calibration is not None
    measured = read_measured([RESULTS / run for run in preset.calibration.runs])
    errors = prediction_errors(preset, measured)
    assert errors, "the runs hold no point that calibration has not seen"
    assert {place: share for place, share in errors.items() if abs(share) > 0.05} == {}
