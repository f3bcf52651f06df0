"""recommendation.json: the contract's keys, the words, and clear refusals."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest

from harness.errors import UserError
from harness.records import LevelRow, Settings, VariantRecord
from harness.runfolder import RunFolder
from patched_worker.policy import Gate
from tests.tuner.runs import LEVELS, SERVER, baseline, eagle3, forced_off, manifest, rows, write_run
from tuner.recommend import Recommendation, read, recommend

CONTRACT = {
    "schema", "threshold", "interval", "effective_threshold", "resume_at", "min_dwell_steps", "shape", "score",
    "score_interval", "best_by_throughput", "latency_c1", "off_tax", "source", "evidence", "warnings",
}  # fmt: skip


def test_recommendation_is_written_and_read_back(tmp_path: Path) -> None:
    """The file holds every key of the contract and reads back as what was returned."""
    run = write_run(tmp_path / "run")
    found = recommend(run)
    written = json.loads((run.path / "recommendation.json").read_text())
    assert set(written) >= CONTRACT
    assert set(written["latency_c1"]) >= {"eagle3_s", "at_threshold_s", "slack", "ok"}
    assert written["source"] == "simulated"
    assert written["evidence"] == {"run": "run", "points": 81, "trials": 0}
    assert read(run) == found
    assert [file.name for file in run.path.iterdir() if file.name.endswith(".new")] == []


def test_the_crossing_is_recommended_with_its_words(tmp_path: Path) -> None:
    """Threshold, resume point and dwell agree with the policy, and the words name the threshold and its interval."""
    found = recommend(write_run(tmp_path / "run"))
    assert found.shape == "crossover"
    assert found.threshold is not None
    assert 100 < found.threshold < 128
    assert found.resume_at == found.threshold - found.threshold // 4
    assert found.policy.threshold == found.threshold
    assert found.latency_c1.ok
    assert str(found.threshold) in found.words["recommended"]
    assert str(found.interval[0]) in found.words["confidence"]
    assert "ever speculate" in found.words["rejected"]
    assert found.score > 0.95
    assert set(found.off_tax) == {str(c) for c in LEVELS}


def test_literal_objective_is_offered(tmp_path: Path) -> None:
    """With the throughput objective the threshold is the literal answer; with the score it stands beside ours."""
    run = write_run(tmp_path / "run")
    literal, ours = recommend(run, objective="throughput"), recommend(run)
    assert literal.threshold == literal.best_by_throughput.threshold == ours.best_by_throughput.threshold == 1
    assert ours.threshold != 1


@pytest.mark.parametrize(("factor", "shape", "threshold"), [(1.4, "always_on", None), (0.7, "always_off", 0)])
def test_always_and_never_are_answers(tmp_path: Path, factor: float, shape: str, threshold: int | None) -> None:
    """Curves that never cross give a policy that never switches."""
    points = rows({"eagle3": lambda b: factor * forced_off(b), "forced_off": forced_off})
    found = recommend(write_run(tmp_path / "run", points))
    assert (found.shape, found.threshold) == (shape, threshold)
    gate = Gate(found.policy, num_steps=3)
    assert {gate.decide(b) for b in (1, 64, 500)} == ({3} if threshold is None else {0})


def test_a_reversal_gives_a_ladder(tmp_path: Path) -> None:
    """Where one threshold is not enough the ladder speculates exactly in the winning band."""
    points = rows(
        {"eagle3": lambda b: forced_off(b) * (0.8 if b < 3 else 1.3 if b < 40 else 0.7), "forced_off": forced_off}
    )
    found = recommend(write_run(tmp_path / "run", points))
    assert found.shape == "not_monotone"
    assert found.ladder is not None
    steps = {batch: Gate(found.policy, num_steps=3).decide(batch) for batch in (1, 4, 30, 60, 200)}
    assert steps == {1: 0, 4: 3, 30: 3, 60: 0, 200: 0}
    assert "ladder" in found.words["recommended"]


def test_effective_threshold_only_where_the_server_rounds(tmp_path: Path) -> None:
    """The patched worker rounds nothing; SGLang's own adaptive mode rounds to captured sizes."""
    points = rows(
        {"eagle3": lambda b: forced_off(b) * (2 - b / 30), "forced_off": forced_off}, levels=(1, 8, 16, 32, 48)
    )
    patched = recommend(write_run(tmp_path / "patched", points))
    args = SERVER.server_args | {"speculative_adaptive": True}
    upstream = manifest(servers={SERVER.server_run: msgspec.structs.replace(SERVER, server_args=args)})
    rounded = recommend(write_run(tmp_path / "upstream", points, upstream))
    assert patched.threshold == patched.effective_threshold == rounded.threshold
    assert 24 < (patched.threshold or 0) < 32
    assert rounded.effective_threshold == 24


def test_warnings_name_what_weakens_the_answer(tmp_path: Path) -> None:
    """Points left out, a dear off state, and a level above 1 for the constraint are all said."""
    points = [
        row for row in rows({"baseline": eagle3, "eagle3": eagle3, "forced_off": forced_off}) if row.concurrency > 1
    ]
    points[0] = msgspec.structs.replace(points[0], verdict="client_limited")
    text = " ".join(recommend(write_run(tmp_path / "run", points)).warnings)
    assert "1 of 72 points" in text
    assert "while off" in text
    assert "C=2" in text


def test_a_dear_off_state_tells_both_pivots(tmp_path: Path) -> None:
    """The threshold is where the server should switch; where the stock baseline would win is said beside it."""
    points = rows({"baseline": baseline, "eagle3": eagle3, "forced_off": lambda b: 0.8 * baseline(b)}, noise=1e-6)
    found = recommend(write_run(tmp_path / "run", points))
    assert found.shape == "always_on"
    (told,) = [line for line in found.warnings if line.startswith("while off")]
    assert "20%" in told
    assert int(told.rsplit(" ", 1)[1]) == pytest.approx(99.6, rel=0.03)  # 200 (1 + b / 31) = 400 (1 + b / 90)


@pytest.mark.parametrize(
    ("points", "says"),
    [
        ([], "no usable point of eagle3"),
        ([row for row in rows() if row.variant == "eagle3"], "nothing to compare"),
        ([msgspec.structs.replace(row, verdict="client_limited") for row in rows()], "client_limited"),
    ],
)
def test_a_run_that_cannot_be_judged_says_why(tmp_path: Path, points: list[LevelRow], says: str) -> None:
    """One line names what is missing."""
    with pytest.raises(UserError, match=says):
        recommend(write_run(tmp_path / "run", points))


def test_reading_without_or_with_a_damaged_file(tmp_path: Path) -> None:
    """Both name the command that mends it."""
    run = write_run(tmp_path / "run")
    with pytest.raises(UserError, match="specpivot recommend"):
        read(run)
    (run.path / "recommendation.json").write_text('{"schema": 1}')
    with pytest.raises(UserError, match="specpivot recommend"):
        read(run)


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
def test_unwritable_folder_is_one_line(tmp_path: Path) -> None:
    """A run folder that cannot be written is named."""
    run = write_run(tmp_path / "run")
    run.path.chmod(0o500)
    with pytest.raises(UserError, match="cannot write"):
        recommend(RunFolder(run.path))


def test_policy_of_never_is_the_empty_ladder(tmp_path: Path) -> None:
    """Threshold 0 is a policy without rungs."""
    points = rows({"eagle3": lambda b: 0.7 * forced_off(b), "forced_off": forced_off})
    found: Recommendation = recommend(write_run(tmp_path / "run", points))
    assert found.policy.rungs == ()


def test_levels_above_all_usable_ones_are_named(tmp_path: Path) -> None:
    """Where the upper levels are all spoilt, "never disable" is the answer of the lower ones only, and says so."""
    spoilt = [
        msgspec.structs.replace(row, status="invalid", verdict="client_limited") if row.concurrency > 16 else row
        for row in rows()
    ]
    found = recommend(write_run(tmp_path / "run", spoilt))
    assert found.threshold is None
    assert found.words["recommended"].startswith("Not known: speculation gains")
    assert any(w.startswith("nothing is known above C=16: C=32, 64, 128, 256 have no usable") for w in found.warnings)
    assert not any("nothing is known" in w for w in recommend(write_run(tmp_path / "whole")).warnings)


def test_planned_points_that_were_not_measured_are_told(tmp_path: Path) -> None:
    """An interrupted sweep is not a whole one; a variant that could not run, and a tuning's live points, are no gap."""
    planned = Settings(("baseline", "eagle3", "forced_off", "dynamic"), LEVELS, 3, 20.0, 3.0)
    some = [row for row in rows() if row.repeat < 3 or row.concurrency < 64]
    not_run = {**manifest().variants, "dynamic": VariantRecord(not_run="no patched server")}
    cut = recommend(write_run(tmp_path / "cut", some, manifest(settings=planned, variants=not_run)))
    assert any(warning.startswith("9 planned points were not measured") for warning in cut.warnings)
    tuned = manifest(settings=msgspec.structs.replace(planned, repeats=1), config={"sim": "test", "tune": {}})
    whole = recommend(write_run(tmp_path / "whole", rows(), tuned))
    assert not any("not measured" in warning for warning in whole.warnings)
