"""Comparing runs: what may be compared, and differences with honest intervals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.errors import UserError
from harness.records import VariantRecord, Workload
from tests.tuner.runs import CURVES, LEVELS, SERVER, baseline, eagle3, manifest, rows, write_run
from tuner.compare import compare


def test_a_difference_is_found_and_noise_is_not(tmp_path: Path) -> None:
    """A variant that is 10 % faster is clear at every level; the same curve with other noise is mostly not."""
    a = write_run(tmp_path / "a", rows(noise=0.01, seed=1))
    b = write_run(tmp_path / "b", rows({**CURVES, "eagle3": lambda n: 1.1 * eagle3(n)}, noise=0.01, seed=2))
    found = compare(a, b)
    rates = [d for d in found.differences if d.metric == "output_tok_per_s"]
    assert all(d.clear and d.ratio == pytest.approx(1.1, rel=0.03) for d in rates if d.variant == "eagle3")
    assert sum(d.clear for d in rates if d.variant == "baseline") <= 2
    assert all(d.ratio < 1 for d in found.differences if d.metric == "tpot_p50_s" and d.variant == "eagle3")
    assert found.pivots["b"]["threshold"] > found.pivots["a"]["threshold"]


def test_interval_is_welchs(tmp_path: Path) -> None:
    """Equal runs give a ratio of 1 with an interval around it; single repeats give none."""
    run = write_run(tmp_path / "a")
    assert all(d.ratio == 1 and not d.clear for d in compare(run, run).differences)
    once = write_run(tmp_path / "once", rows(repeats=1))
    assert all(d.low is None and not d.clear for d in compare(once, run).differences)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"source": "measured"}, "one is simulated, the other measured"),
        ({"workload": Workload("random", 2048, 128, 1, "b" * 64)}, "requests differ"),
        ({"environment": {"gpus": [{"name": "NVIDIA B200"}]}}, "GPUs differ"),
        ({"simulation": {"preset": "other"}}, "presets differ"),
    ],
)
def test_what_must_not_be_compared_is_refused_with_the_reason(
    tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    """Each reason is named, together with both runs."""
    a = write_run(tmp_path / "a")
    b = write_run(tmp_path / "b", made=manifest(**changes))
    with pytest.raises(UserError, match=f"must not be compared.*{says}"):
        compare(a, b)


def test_references_of_two_generations_are_compared(tmp_path: Path) -> None:
    """Runs without a baseline in common: each one's own reference, and a note; with one in common, that alone."""
    v2 = write_run(tmp_path / "v2", rows({"baseline": baseline, "eagle3": eagle3}, noise=1e-6))
    slower = rows({"baseline_no_overlap": lambda n: 0.9 * baseline(n), "eagle3": eagle3}, noise=1e-6)
    records = {"eagle3": VariantRecord(SERVER.server_run, "baseline_no_overlap")}
    v1 = write_run(tmp_path / "v1", slower, manifest(variants=records))
    found = compare(v2, v1)
    rates = {(d.variant, d.concurrency): d.ratio for d in found.differences if d.metric == "output_tok_per_s"}
    assert [rates["baseline", level] for level in LEVELS] == pytest.approx([0.9] * len(LEVELS), rel=1e-3)
    assert [rates["eagle3", level] for level in LEVELS] == pytest.approx([1.0] * len(LEVELS), rel=1e-3)
    assert found.not_shared == 0
    assert "reference: baseline and baseline_no_overlap, told as baseline" in found.notes
    assert not [note for note in compare(v2, v2).notes if note.startswith("reference")]
    both = write_run(tmp_path / "both", [*slower, *rows({"baseline": baseline})], manifest(variants=records))
    assert not [note for note in compare(v2, both).notes if note.startswith("reference")]


def test_nothing_shared_is_refused(tmp_path: Path) -> None:
    """Runs of different levels have nothing to compare."""
    a = write_run(tmp_path / "a", rows({"baseline": baseline}, levels=(1, 2)))
    b = write_run(tmp_path / "b", rows({"baseline": baseline}, levels=(4, 8)))
    with pytest.raises(UserError, match="share no usable point"):
        compare(a, b)


def test_what_else_differs_is_named(tmp_path: Path) -> None:
    """Another release and another variable are what one compares: they are noted, not refused."""
    a = write_run(tmp_path / "a")
    newer = msgspec.structs.replace(SERVER, version="0.5.23", env={"SGLANG_SIMULATE_ACC_LEN": "2.8"})
    b = write_run(tmp_path / "b", made=manifest(servers={SERVER.server_run: newer}))
    text = " ".join(compare(a, b).notes)
    assert "eagle3: version: 0.5.16 and 0.5.23" in text
    assert "SGLANG_SIMULATE_ACC_LEN: not set and 2.8" in text
