"""Load that rises and falls around a threshold: its rates, and its points on a simulated server."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.bench import Bench
from harness.config import make_config
from harness.openload import Arrivals
from harness.records import Variant, VariantRecord
from harness.runfolder import RunFolder, RunWriter
from harness.sweep import Keys, opened
from harness.variants import server_plans
from harness.verify import verify_run
from patched_worker.policy import Policy
from tests.harness.commands import CROWDED
from tests.tuner.lab import Quiet
from tests.tuner.runs import eagle3, rows
from tuner.asked import TuneOptions
from tuner.hysteresis import Wave
from tuner.session import let_play_dynamic
from tuner.shared import SharedRequests, shared_requests
from tuner.tune import tune_manifest, tuning_config
from tuner.waves import in_words, wave_bench, waves_around


def test_waves_pass_the_threshold() -> None:
    """Calm is what half of its batch takes while speculating, the crest what twice of it takes while off."""
    points = rows(noise=0.0)
    made = waves_around(points, "forced_off", 48, warmup_s=5.0, window_s=60.0)
    ramp, burst = made["ramp"].ramp, made["burst"].burst
    assert ramp is not None
    assert burst is not None
    tokens = sum((row.output_tok_per_s or 0) * row.duration_s for row in points if row.variant == "eagle3")
    tokens /= sum(row.requests for row in points if row.variant == "eagle3")
    assert ramp[0] == pytest.approx(eagle3(24) / tokens, rel=0.05)
    assert ramp[1] > 1.2 * ramp[0]
    assert ramp[2] == 65.0
    assert burst[:2] == ramp[:2]
    assert 60 / 6 <= burst[2] <= 60 / 2
    assert "requests/s" in in_words(made)


def test_a_threshold_at_the_edge_of_what_was_measured_still_has_a_crest() -> None:
    """Beyond the largest level the curve is flat; the crest stays above the calm."""
    for threshold in (1, 400):
        ramp = waves_around(rows(noise=0.0), "forced_off", threshold, 1.0, 10.0)["ramp"].ramp
        assert ramp is not None
        assert ramp[1] >= 1.3 * ramp[0] > 0


def test_waves_are_as_simulated_as_the_server_that_was_attached_to(tmp_path: Path) -> None:
    """Nobody asked for a simulation, so only the tuning's manifest knows."""
    config = tuning_config(make_config({"attach": dict.fromkeys(("eagle3", "forced_off"), "http://127.0.0.1:1")}))
    asked = tune_manifest(config, TuneOptions(), ["test"])
    assert asked.source == "measured"
    known = msgspec.structs.replace(asked, source="simulated", variants={"dynamic": VariantRecord("7@1")})
    up: dict[Variant, Any] = {"dynamic": None}
    stop = threading.Event()
    with RunWriter.create(tmp_path / "run", known) as writer:
        bench = Bench(config, writer, up, shared_requests(config), Counter(), stop)
        waves = waves_around(rows(noise=0.0), "forced_off", 48, warmup_s=5.0, window_s=60.0)
        with wave_bench(bench, waves, 48, ["test"], stop) as (under, _):
            assert RunFolder(under.writer.path).manifest.source == "simulated"


def test_points_under_waves_on_a_simulated_server(tmp_path: Path) -> None:
    """Two rules meet the same arrivals; both points are proven, and stand in a run folder that verifies."""
    settings = {"sim": "h200-llama31-8b-illustrative", "concurrency": [32], "duration": 6.0, "warmup": 1.0}
    config = tuning_config(make_config(settings | {"time_scale": 4.0, "output_tokens": 64}))
    waves: dict[Wave, Arrivals] = {
        "ramp": Arrivals(ramp=(10.0, 60.0, 7.0)),
        "burst": Arrivals(burst=(5.0, 80.0, 3.0, 1.0)),
    }
    plans = tuple(plan for plan in server_plans(config) if plan.name == "speculative")
    stop = threading.Event()
    with (
        RunWriter.create(tmp_path / "run", tune_manifest(config, TuneOptions(), ["test"])) as writer,
        opened(config, plans, writer, SharedRequests(), Quiet(), Keys(), stop) as bench,
    ):
        let_play_dynamic(bench, writer)
        with wave_bench(bench, waves, 8, ["test"], stop) as (_, measure):
            calm = measure(Policy.from_threshold(8, 4, 64), "burst", 0, 1)
            hasty = measure(Policy.from_threshold(8, 8, 1), "burst", 0, 2)
        with wave_bench(bench, {}, 8, ["test"], stop) as (under, _):  # goes on with its own waves and rows
            assert [row.key for row in under.writer.rows] == [calm.key, hasty.key]
    # A crowded machine may have limited client or server; what ran must be proven all the same.
    assert {calm.verdict, hasty.verdict} <= {*CROWDED, "ok"}
    assert calm.requests == hasty.requests > 20
    assert hasty.switches or hasty.verdict != "ok"
    assert calm.in_flight_mean
    folder = tmp_path / "run" / "hysteresis-8"
    assert verify_run(folder).problems == ()
    sent = [
        sorted((r.scheduled_s, r.planned_prompt_tokens) for r in RunFolder(folder).requests() if r.repeat == row.repeat)
        for row in (calm, hasty)
    ]
    assert sent[0][:20] == sent[1][:20]
    assert RunFolder(tmp_path / "run").levels() == []
