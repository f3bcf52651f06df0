"""The claims on an off and a dynamic server: ratios by repeat, intervals, and a server that fails them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import msgspec
import pytest

from benchmarks.claims import Claim, claims_of, intervals, main, upstream_beside
from harness.errors import UserError
from harness.records import LevelRow, ServerRecord, Source, Variant, VariantRecord
from harness.runfolder import RunFolder
from tests.tuner import runs

DRIFT = (1.0, 0.7, 1.2)  # of the machine, common to all variants of a repeat
LEVELS = (1, 32, 128)


def write_run(path: Path, factors: dict[Variant, dict[int, float]], source: Source = "measured") -> RunFolder:
    """A run in which each variant has its factor of 1000 tok/s per user at each level, whatever the machine does."""
    points = [
        LevelRow(variant, level, repeat, "done", "ok", output_tok_per_s=speed, tpot_p50_s=1 / speed)
        for variant, levels in factors.items()
        for level, factor in levels.items()
        for repeat, drift in enumerate(DRIFT, start=1)
        if (speed := 1000 * level * factor * drift)
    ]
    return runs.write_run(path, points, runs.manifest(source))


def even(factor: float) -> dict[int, float]:
    return dict.fromkeys(LEVELS, factor)


def found(run: RunFolder) -> dict[tuple[str, str], Claim]:
    return {(claim.claim, claim.metric): claim for claim in claims_of(run)}


def test_drift_of_the_machine_cancels(tmp_path: Path) -> None:
    """Repeats that differ by 70 percent leave a ratio of 0.98 exact, without an interval to speak of."""
    run = write_run(tmp_path / "run", {"baseline": even(1.0), "eagle3": even(1.0), "forced_off": even(0.98)})
    throughput, tpot = found(run)["off", "output_tok_per_s"], found(run)["off", "tpot_p50_s"]
    assert [point.concurrency for point in throughput.points] == list(LEVELS)
    for point in throughput.points:
        assert (point.ratio, point.low, point.high) == pytest.approx((0.98, 0.98, 0.98))
        assert (point.against, point.repeats, point.met) == ("baseline", 3, True)
    assert (throughput.met, tpot.met) == (True, True)
    assert tpot.geometric_mean == pytest.approx(1 / 0.98)


def test_an_off_server_that_costs_is_told(tmp_path: Path) -> None:
    """One level at 0.90 is a level and a claim not met, whatever the others are; 0.96 everywhere fails by the mean."""
    slow_once = {"baseline": even(1.0), "eagle3": even(1.0), "forced_off": even(1.05) | {32: 0.90}}
    claim = found(write_run(tmp_path / "once", slow_once))["off", "output_tok_per_s"]
    assert [point.met for point in claim.points] == [True, False, True]
    assert (claim.geometric_mean > claim.bar, claim.met) == (True, False)
    slow = found(write_run(tmp_path / "slow", slow_once | {"forced_off": even(0.96)}))
    assert not slow["off", "output_tok_per_s"].met
    assert not slow["off", "tpot_p50_s"].met


def test_a_dynamic_server_is_held_to_the_better_of_two(tmp_path: Path) -> None:
    """To eagle3 where that is faster, else to the baseline; a lone user's time per token to eagle3's."""
    eagle3 = {1: 1.8, 32: 1.1, 128: 0.8}
    run = write_run(
        tmp_path / "run", {"baseline": even(1.0), "eagle3": eagle3, "dynamic": {1: 1.8, 32: 1.1, 128: 0.99}}
    )
    claims = found(run)
    assert [point.against for point in claims["dynamic", "output_tok_per_s"].points] == ["eagle3", "eagle3", "baseline"]
    assert (claims["dynamic", "output_tok_per_s"].met, claims["dynamic, alone", "tpot_p50_s"].met) == (True, True)
    late = write_run(tmp_path / "late", {"baseline": even(1.0), "eagle3": eagle3, "dynamic": even(0.99)})
    assert [point.met for point in found(late)["dynamic", "output_tok_per_s"].points] == [False, False, True]
    assert not found(late)["dynamic, alone", "tpot_p50_s"].met


def test_upstream_stands_beside_ours(tmp_path: Path) -> None:
    """On a machine half as fast its gain over its own baseline counts: 0.5 of it is 0.5 of ours, and a lone user's
    gain of 1.7 is short of 1.8. A run of another server is refused."""
    eagle3 = {1: 1.8, 32: 1.1, 128: 0.8}
    run = write_run(tmp_path / "run", {"baseline": even(1.0), "eagle3": eagle3, "dynamic": even(1.0)})
    upstream = write_run(tmp_path / "up", {"baseline": even(0.5), "eagle3": {1: 0.85, 32: 0.55, 128: 0.25}})
    with pytest.raises(UserError, match="no server with --speculative-adaptive"):
        upstream_beside(run, upstream)
    upstream = adaptive(upstream)
    throughput, alone = upstream_beside(run, upstream)
    assert [point.ratio for point in throughput.points] == pytest.approx([1.7 / 1.8, 1.0, 0.5])
    assert (throughput.run, throughput.claim, throughput.met) == ("up", "upstream", False)
    assert alone.geometric_mean == pytest.approx(1.8 / 1.7)
    assert not alone.met
    assert main([str(run.path), "--upstream", str(upstream.path)]) == 0


def adaptive(run: RunFolder) -> RunFolder:
    """The run with SGLang's adaptive mode on its EAGLE-3 server."""
    server = ServerRecord("1@2", "http://127.0.0.1:1", arguments=("--speculative-adaptive",))
    changed = msgspec.structs.replace(
        run.manifest,
        servers={"1@2": server},
        variants=run.manifest.variants | {"eagle3": VariantRecord("1@2", "baseline")},
    )
    (run.path / "manifest.json").write_bytes(msgspec.json.encode(changed))
    return RunFolder(run.path)


def test_scatter_is_that_of_all_levels() -> None:
    """By hand: pairs of 0 and 2 in two levels have a standard deviation of sqrt(2) with 2 degrees of freedom."""
    assert intervals([[0.0, 2.0], [5.0, 7.0], [1.0]]) == pytest.approx(
        [4.3027, 4.3027, 4.3027 * math.sqrt(2)], rel=1e-4
    )
    assert intervals([[1.0], [2.0]]) == [None, None]


def test_the_command_writes_and_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The document is on the last line and in the file; a run without an off server gets one line."""
    run = write_run(tmp_path / "run", {"baseline": even(1.0), "eagle3": even(1.0), "forced_off": even(0.98)})
    assert main([str(run.path), "-o", str(tmp_path / "claims.json")]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out.splitlines()[-1]) == json.loads((tmp_path / "claims.json").read_text())
    assert "| run | off: output_tok_per_s | all | | 0.980 | | >= 0.97 | yes |" in printed.err
    bare = write_run(tmp_path / "bare", {"baseline": even(1.0), "eagle3": even(1.0)})
    assert main([str(bare.path)]) == 2
    assert "has no repeat with baseline and forced_off" in capsys.readouterr().err
    simulated = write_run(tmp_path / "simulated", {"baseline": even(1.0), "forced_off": even(1.0)}, "simulated")
    with pytest.raises(UserError, match="measured runs only"):
        claims_of(simulated)
