"""Presets: files, tables of each variant, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from harness.errors import UserError
from harness.sim.preset import (
    DEFAULT_PRESET,
    PRESETS,
    checked_variant,
    costs_of,
    load_preset,
    preset_names,
    save_preset,
)
from harness.sim.steptime import StepTable
from tests.harness.sim.worlds import DECODE, SPECULATIVE, world


def test_preset_survives_its_file(tmp_path: Path) -> None:
    """What is saved is what is loaded."""
    save_preset(world(), tmp_path / "w.json")
    assert load_preset(tmp_path / "w.json") == world()


@pytest.mark.parametrize("name", preset_names())
def test_packaged_presets_load_and_say_where_they_come_from(name: str) -> None:
    """Each preset has its file's name; one that is not made from runs is labelled so in name and origin."""
    preset = load_preset(name)
    assert preset.name == name
    assert (preset.origin == "illustrative") == name.endswith("illustrative")


def test_off_step_costs_its_reference_and_the_tax() -> None:
    """The patched server's plain step is its reference's decode step times one plus the tax."""
    costs = costs_of(world(tax=0.25), "forced_off")
    assert costs.decode_s(16, 0) == pytest.approx(1.25 * DECODE.at(16))
    v1 = msgspec.structs.replace(world().patched, reference="baseline_no_overlap", worker="v1")
    assert costs_of(world(patched=v1), "eagle3").decode_s(16, 0) == pytest.approx(1.2 * DECODE.at(16))


def test_widths_between_measured_ones_are_interpolated_others_refused() -> None:
    """Two draft steps cost the mean of one and three; widths outside of the tables are not invented."""
    patched = msgspec.structs.replace(world().patched, speculative={1: StepTable((1,), (0.006,)), 3: SPECULATIVE})
    costs = costs_of(world(patched=patched), "dynamic")
    assert costs.decode_s(1, 2) == pytest.approx((0.006 + 0.0075) / 2)
    with pytest.raises(UserError, match=r"no step times for 5 draft steps; it has \[1, 3\]"):
        costs.decode_s(1, 5)


def test_bad_presets_and_variants_are_one_line(tmp_path: Path) -> None:
    """A missing, damaged or foreign preset and an unknown variant name the thing and the remedy."""
    with pytest.raises(UserError, match=r"no preset nowhere .*give one of .*illustrative"):
        load_preset("nowhere")
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(UserError, match=r"x\.json is damaged"):
        load_preset(tmp_path / "x.json")
    save_preset(world(schema=99), tmp_path / "y.json")
    with pytest.raises(UserError, match="schema 99"):
        load_preset(tmp_path / "y.json")
    with pytest.raises(UserError, match=r"unknown variant eagle9; give one of baseline"):
        checked_variant("eagle9")
    with pytest.raises(UserError, match="cannot write the preset"):
        save_preset(world(), tmp_path / "none" / "z.json")


@pytest.mark.parametrize(
    ("part", "changes", "words"),
    [
        ("limits", {"max_running_requests": 0}, "limits.max_running_requests is 0"),
        ("limits", {"max_total_num_tokens": -1}, "limits.max_total_num_tokens is -1"),
        ("limits", {"context_length": 10**30}, "limits.context_length"),
        ("frontend", {"delay_s": -1.0}, "frontend.delay_s is -1"),
        ("frontend", {"jitter_s": 1e300}, "frontend.jitter_s"),
        ("baseline", {"latency_s": -0.1}, "baseline.latency_s is -0.1"),
        ("patched", {"latency_s": 1e300}, "patched.latency_s"),
    ],
)
def test_a_machine_that_could_serve_nothing_is_refused(
    tmp_path: Path, part: str, changes: dict[str, float], words: str
) -> None:
    """Its requests would wait without end, and the sweep with them."""
    document = json.loads((PRESETS / f"{DEFAULT_PRESET}.json").read_text())
    document[part] = document.get(part, {}) | changes
    (tmp_path / "p.json").write_text(json.dumps(document))
    with pytest.raises(UserError, match=words):
        load_preset(tmp_path / "p.json")
