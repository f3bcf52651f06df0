"""Presets inverted from run folders: the round trip through a known world."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from harness.errors import UserError
from harness.records import (
    SCHEMA_VERSION,
    TICK_S,
    VARIANTS,
    LevelRow,
    Manifest,
    RequestRecord,
    ServerRecord,
    Settings,
    Variant,
    VariantRecord,
    Workload,
)
from harness.runfolder import RunWriter
from harness.sim import inversion
from harness.sim.calibrate import main, make_preset, prediction_errors
from harness.sim.points import read_measured, undisturbed_s
from harness.sim.predict import simulate_closed_loop
from harness.sim.preset import Preset, costs_of, load_preset
from harness.sim.steptime import TaxTable
from tests.harness.sim.worlds import world

PLAYED: tuple[Variant, ...] = ("baseline", "baseline_no_overlap", "eagle3", "forced_off")
CALIBRATED, HELD_OUT = (1, 4, 16), (2, 8)
# Shorter answers than a real run's: the inversion is the same, and the test is quick.
LENGTHS = 64, 64


def write_run(
    path: Path,
    preset: Preset,
    levels: Iterable[int],
    variants: Sequence[Variant] = PLAYED,
    source: str = "measured",
    output_tokens: int = LENGTHS[1],
    range_ratio: float = 0.0,
    requests: int = 40,
    version: str = "0.5.12.post1",
    env: dict[str, str] | None = None,
    **changes: Any,
) -> Path:
    """A run folder as if a sweep had measured `preset`'s world; `changes` replace columns of every row."""
    arguments = {"speculative_num_steps": 3, "max_running_requests": 256, "max_total_num_tokens": 100_000}
    server = ServerRecord("s", "http://x", version=version, server_args={**arguments, "model_path": "model"})
    server = msgspec.structs.replace(server, env=env or {})
    manifest = Manifest(
        schema=SCHEMA_VERSION,
        source="measured" if source == "measured" else "simulated",
        created_at="2026-01-01T00:00:00+00:00",
        command=(),
        specpivot_version="0",
        settings=Settings(tuple(variants), tuple(levels), 1, 1.0, warmup_s=2.0),
        config={},
        workload=Workload("random", LENGTHS[0], output_tokens, 0, "0", range_ratio=range_ratio),
        environment={"gpus": [{"name": "A GPU"}]},
        variants={variant: VariantRecord(server_run="s") for variant in VARIANTS},
        servers={"s": server},
    )
    with RunWriter.create(path, manifest) as run:
        for variant in variants:
            for level in levels:
                result = simulate_closed_loop(
                    preset,
                    variant,
                    level,
                    LENGTHS[0],
                    output_tokens,
                    seed=9,
                    min_requests=requests,
                    spread_s=1.0,
                    range_ratio=range_ratio,
                )
                row = LevelRow(
                    variant,
                    level,
                    1,
                    "done",
                    "ok",
                    output_tok_per_s=result.output_tok_per_s,
                    ttft_p50_s=result.ttft_p50_s,
                    accept_len=result.accept_len,
                )
                run.put_row(msgspec.structs.replace(row, **changes))
                run.add_requests([undisturbed(preset, variant, level, output_tokens)])
    return path


def undisturbed(preset: Preset, variant: Variant, level: int, output_tokens: int) -> RequestRecord:
    """A request that no prefill held up."""
    drafts = preset.acceptance.num_steps if variant == "eagle3" else 0
    step = round(costs_of(preset, variant).decode_s(level, drafts) / TICK_S)
    ticks = (step,) * output_tokens
    return RequestRecord(
        variant, level, 1, 0, 0.0, 1.0, chunk_ticks=ticks, output_tokens=output_tokens, finish_reason="length"
    )


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few requests per simulated point, for tests that do not look at the tables."""
    monkeypatch.setattr(inversion, "PLAIN_REQUESTS", 40)
    monkeypatch.setattr(inversion, "DRAWN_REQUESTS", 40)


def test_round_trip_predicts_unseen_concurrencies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From C = 1, 4, 16 of a known world, the other C are predicted within 4 percent, tax included."""
    monkeypatch.setattr(inversion, "PLAIN_REQUESTS", 100)
    monkeypatch.setattr(inversion, "DRAWN_REQUESTS", 160)
    truth = msgspec.structs.replace(
        world(), patched=msgspec.structs.replace(world().patched, off_tax=TaxTable((1, 16), (0.1, 0.05)))
    )
    run = write_run(tmp_path / "run", truth, sorted((*CALIBRATED, *HELD_OUT)), range_ratio=0.5, requests=250)
    preset = make_preset([run], CALIBRATED, "round-trip")
    errors = prediction_errors(preset, read_measured([run]))
    assert {level for _, level in errors} == set(HELD_OUT)
    assert {variant for variant, _ in errors} == set(PLAYED)
    assert max(map(abs, errors.values())) < 0.04, errors
    assert preset.acceptance.mean_len == pytest.approx(truth.acceptance.mean_len, rel=0.02)
    assert preset.patched.off_tax.at(4) == pytest.approx(0.075, abs=0.02)
    assert preset.baseline.decode.at(8) == pytest.approx(truth.baseline.decode.at(8), rel=0.02)


@pytest.mark.usefixtures("quick")
def test_command_writes_a_preset_and_says_what_it_misses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command's preset names its run and points, and its last line holds the worst error; no tax is said so."""
    run = write_run(tmp_path / "some-run", world(), (1, 2, 8), variants=PLAYED[:3])
    assert main([str(run), "-o", str(tmp_path / "p.json"), "--concurrency", "8,1"]) == 0
    preset = load_preset(tmp_path / "p.json")
    assert (preset.name, preset.origin) == ("p", "measured")
    assert preset.calibration is not None
    assert (preset.calibration.runs, preset.calibration.concurrency) == (("some-run",), (1, 8))
    assert "No forced_off was measured" in preset.description
    assert (preset.gpu, preset.sglang_version, preset.patched.worker) == ("A GPU", "0.5.12.post1", "v2")
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["worst_prediction_error"] < 0.1


def test_further_runs_fill_what_the_first_lacks(tmp_path: Path) -> None:
    """A variant comes from the first run that has it: another server's baseline changes nothing, slow or quick."""
    first = write_run(tmp_path / "first", world(), (1, 8), ("baseline", "eagle3"))
    second = write_run(tmp_path / "second", world(), (1, 8), PLAYED[:2], version="0.5.16", output_tok_per_s=1.0)
    quick = write_run(tmp_path / "quick", world(), (1, 8), PLAYED[:1], version="0.5.16", output_tok_per_s=1e6)
    alone, both = read_measured([first]), read_measured([first, second, quick])
    assert both.points["baseline"] == alone.points["baseline"]
    assert both.points["baseline_no_overlap"][1].output_tok_per_s == 1.0
    assert (both.runs, both.spread_s) == (("first", "second", "quick"), 1.0)


def test_of_all_repeats_of_a_server_the_quickest_is_taken(tmp_path: Path) -> None:
    """Runs of the same server are further repeats of it; what is said of drafts matters only to a server with drafts,
    and many tokens from lucky drafts are no quick step."""
    at_2, at_3 = ({"SGLANG_SIMULATE_ACC_LEN": length, "HOME": length} for length in ("2.0", "3.0"))
    ran = write_run(tmp_path / "ran", world(), (1,), PLAYED[:3], env=at_2, output_tok_per_s=100.0, accept_len=2.0)
    quicker = write_run(tmp_path / "quicker", world(), (1,), PLAYED[:1], env=at_3, output_tok_per_s=101.0)
    other = write_run(tmp_path / "other", world(), (1,), PLAYED[2:3], env=at_3, output_tok_per_s=300.0)
    lucky = write_run(tmp_path / "lucky", world(), (1,), PLAYED[2:3], env=at_2, output_tok_per_s=103.0, accept_len=2.2)
    quick = write_run(tmp_path / "quick", world(), (1,), PLAYED[2:3], env=at_2, output_tok_per_s=102.0, accept_len=1.9)
    points = read_measured([ran, quicker, other, lucky, quick]).points
    assert points["baseline"][1].output_tok_per_s == 101.0
    assert (points["eagle3"][1].output_tok_per_s, points["eagle3"][1].accept_len) == (102.0, 1.9)
    assert read_measured([ran, other, lucky]).points["eagle3"][1].output_tok_per_s == 100.0


def test_stream_interval_is_taken_out_of_the_gaps(tmp_path: Path) -> None:
    """Where a server puts eight decode steps in a chunk, the gap counts for one; speculative chunks count by steps."""
    truth = world()
    run = write_run(tmp_path / "run", truth, (1,), ("baseline",), tokens_per_chunk=8.0, accept_len=None)
    drafted = write_run(tmp_path / "drafted", truth, (1,), ("eagle3",), tokens_per_chunk=8.0, accept_len=2.7)
    points = read_measured([run, drafted]).points
    assert points["baseline"][1].step_s == pytest.approx(costs_of(truth, "baseline").decode_s(1, 0) / 8, rel=1e-3)
    assert points["eagle3"][1].step_s == pytest.approx(costs_of(truth, "eagle3").decode_s(1, 3) / 3, rel=1e-3)


@pytest.mark.parametrize("requests_per_s", [0.5, 20.0, 60.0])
def test_a_step_is_told_from_gaps_that_hold_prefills(requests_per_s: float) -> None:
    """Steps of 10 ms with jitter, and 15 ms more for each request that came meanwhile: the step is found, whatever the
    load, within 3 percent; the median of all gaps is far off at the highest."""
    rng = np.random.default_rng(1)
    steps_s = 0.010 * (1 + 0.02 * rng.standard_normal(20_000))
    gaps_s = steps_s + 0.015 * (rng.poisson(requests_per_s * steps_s) > 0)
    assert undisturbed_s(gaps_s, requests_per_s) == pytest.approx(0.010, rel=0.03)
    if requests_per_s == 60.0:
        busier = steps_s + 0.015 * (rng.poisson(2 * requests_per_s * steps_s) > 0)
        assert np.median(busier) > 0.02
        assert undisturbed_s(busier, 2 * requests_per_s) == pytest.approx(0.010, rel=0.03)


@pytest.mark.usefixtures("quick")
def test_unfit_runs_are_refused(tmp_path: Path) -> None:
    """Simulated runs, other lengths, missing points, missing acceptance: one line that says which and what to do."""
    preset, levels = world(), (1, 8)
    good = write_run(tmp_path / "good", preset, levels, PLAYED[:3])
    with pytest.raises(UserError, match=r"good; name a run that has it too"):
        make_preset([good], (1, 4))
    simulated = write_run(tmp_path / "sim", preset, levels, PLAYED[:1], source="simulated")
    with pytest.raises(UserError, match="is simulated; a preset is made from measured runs only"):
        make_preset([good, simulated], levels)
    longer = write_run(tmp_path / "long", preset, levels, PLAYED[:1], output_tokens=50)
    with pytest.raises(UserError, match="request lengths"):
        make_preset([good, longer], levels)
    begun = write_run(tmp_path / "begun", preset, levels, PLAYED[:1])
    manifest = json.loads((begun / "manifest.json").read_text())
    manifest["workload"]["under_way"] = True
    (begun / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="under way True"):
        make_preset([good, begun], levels)
    silent = write_run(tmp_path / "silent", preset, levels, PLAYED[2:3], accept_len=None)
    base = write_run(tmp_path / "base", preset, levels, PLAYED[:2])
    with pytest.raises(UserError, match="eagle3 has no accept_len"):
        make_preset([base, silent], levels)
    invalid = write_run(tmp_path / "invalid", preset, levels, PLAYED[:1], verdict="client_limited")
    with pytest.raises(UserError, match="no usable baseline point at C=1"):
        make_preset([invalid, silent], levels)
    with pytest.raises(UserError, match="no run folder was given"):
        make_preset([])


@pytest.mark.usefixtures("quick")
def test_points_that_cannot_be_are_refused(tmp_path: Path) -> None:
    """A throughput that no step time explains (a first token later than the whole answer) ends in a message."""
    run = write_run(tmp_path / "run", world(), (1, 8), PLAYED[:3], ttft_p50_s=30.0)
    with pytest.raises(UserError, match="cannot be brought to what was measured"):
        make_preset([run], (1, 8))
