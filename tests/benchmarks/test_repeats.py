"""Spread of repeats: what two variants share, which pairs come from two sittings, and time without a decode step."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.repeats import held_s, main, repeats_of
from harness.errors import UserError
from harness.records import LevelRow, RequestRecord, Variant
from harness.runfolder import RunFolder
from tests.tuner import runs

LEVELS = (1, 8, 64)
DRIFT = (1.0, 0.8, 1.25)  # of the machine, by repeat
Speed = Callable[[Variant, int, int], float]


def write_run(path: Path, speed: Speed, late: tuple[tuple[Variant, int, int], ...] = ()) -> RunFolder:
    """A run of both sides at that many tokens per second; points in `late` have a server of some hours later."""
    points = [
        LevelRow(
            variant,
            level,
            repeat,
            "done",
            "ok",
            server_run="9@36000.5" if (variant, level, repeat) in late else "1@1.5",
            output_tok_per_s=speed(variant, level, repeat),
        )
        for variant in ("baseline", "eagle3")
        for level in LEVELS
        for repeat in (1, 2, 3)
    ]
    return runs.write_run(path, points)


def gain(variant: Variant, level: int) -> float:
    """1.5 up to C=8, 0.8 above."""
    return (1.5 if level <= 8 else 0.8) if variant == "eagle3" else 1.0


def test_what_both_sides_share_does_not_scatter_their_ratio(tmp_path: Path) -> None:
    """A machine that drifts between repeats spreads both sides and leaves the gain exact."""
    found = repeats_of(write_run(tmp_path / "run", lambda v, c, r: 100 * c * gain(v, c) * DRIFT[r - 1]))
    assert [point.gain for point in found.points] == pytest.approx([1.5, 1.5, 0.8])
    for scatter in found.scatter.values():
        assert scatter.on == pytest.approx(scatter.off) == pytest.approx(math.log(1.25))
        assert scatter.gain == pytest.approx(0, abs=1e-12)
        assert scatter.independent == pytest.approx(math.sqrt(2) * math.log(1.25))
    assert set(found.scatter) == {"all", "up to C=16", "above C=16"}
    assert found.late_over_early is None


def test_what_one_side_has_alone_scatters_the_ratio_as_much(tmp_path: Path) -> None:
    """The negative control: nothing shared."""
    found = repeats_of(
        write_run(tmp_path / "run", lambda v, c, r: 100 * c * gain(v, c) * (DRIFT[r - 1] if v == "eagle3" else 1))
    )
    assert found.scatter["all"].off == pytest.approx(0, abs=1e-12)
    assert found.scatter["all"].gain == pytest.approx(found.scatter["all"].on) == pytest.approx(math.log(1.25))


def test_pairs_of_two_sittings_are_counted_and_left_out(tmp_path: Path) -> None:
    """A baseline that was measured again on a machine half as fast makes a gain that the other pairs do not have."""
    again: tuple[tuple[Variant, int, int], ...] = (("baseline", 64, 1), ("baseline", 64, 2))
    found = repeats_of(
        write_run(tmp_path / "run", lambda v, c, r: 100 * c * gain(v, c) * (0.5 if (v, c, r) in again else 1), again)
    )
    last = found.points[-1]
    assert (last.apart, last.off.late, last.on.late) == ((1, 2), (1, 2), ())
    assert (last.pairs, last.gain) == ([3], pytest.approx(0.8))
    assert found.late_over_early == pytest.approx(0.5)
    assert found.pivot.startswith("threshold ")


def test_time_without_a_step_per_request() -> None:
    """8 at once, 1000 tok/s: 125 steps of 6 ms take 0.75 s of each, ten requests begin in it: 25 ms for one."""
    row = LevelRow("baseline", 8, 1, "done", "ok", decode_batch_mean=8.0, output_tok_per_s=1000.0, window_start_s=4.0)
    records = [
        RequestRecord("baseline", 8, 1, index, start_s=4.0 + index, end_s=5.0 + index, output_tokens=tokens)
        for index, tokens in enumerate((50, 150))
    ]
    assert held_s(row, records, 0.006) == pytest.approx(0.025)
    assert held_s(row, [], 0.006) is None


def test_the_command_prints_a_table_and_one_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The gain stands in both; a folder without eagle3 is refused in one line."""
    run = write_run(tmp_path / "run", lambda v, c, r: 100 * c * gain(v, c) * DRIFT[r - 1])
    assert main([str(run.path)]) == 0
    out, err = capsys.readouterr()
    assert [point["concurrency"] for point in json.loads(out)["runs"][0]["points"]] == list(LEVELS)
    assert "| 8 | 1.500 | 3 (0) |" in err
    alone = runs.write_run(tmp_path / "alone", [row for row in run.levels() if row.variant == "baseline"])
    with pytest.raises(UserError, match="eagle3"):
        repeats_of(alone)
    assert main([str(alone.path)]) == 2
    assert capsys.readouterr().err.startswith("error: ")
