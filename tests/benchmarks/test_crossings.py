"""The oracle of switching: by hand on made runs, and one that switches badly or too often."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from benchmarks.crossings import LENGTH_S, WARMUP_S, main, waves
from benchmarks.oracle import best_level, crossings, judged
from harness.bench import Bench
from harness.crowd import Crowd, users_at
from harness.errors import UserError
from harness.records import TICK_S, LevelRow, RequestRecord, Variant
from harness.runfolder import RunFolder, RunWriter
from tests.harness.faulty import document, talking
from tests.tuner import runs

THRESHOLD, MOST = 8, 32
STEP_S = 0.25
A_SLICE = 0.003  # the two slices of half a second in which the gain turns hold both states


def rate(users: float, on: bool) -> int:
    """Tokens per quarter second: speculation wins below the threshold and loses above it."""
    return round(users * (6 if on else 4)) if users <= THRESHOLD else round(users * (2 if on else 3))


def write_run(path: Path, late_s: float = 0.0, switches: int = 2, without: Variant | None = None) -> RunFolder:
    """A ramp in which `dynamic` switches so many seconds late."""
    crowd: Crowd = waves(THRESHOLD, MOST)["ramp"]
    end_s = WARMUP_S + LENGTH_S
    rows, records = [], []
    variants: tuple[Variant, ...] = ("eagle3", "forced_off", "dynamic")
    for variant in variants:
        if variant == without:
            continue
        for repeat in (1, 2):
            row = LevelRow(variant, MOST, repeat, "done", "ok", threshold=THRESHOLD if variant == "dynamic" else -1)
            rows.append(
                msgspec.structs.replace(row, window_start_s=WARMUP_S, window_end_s=end_s, switches=switches, attempt=2)
            )
            for attempt in (1, 2):
                records.append(record(variant, repeat, attempt, crowd, late_s))
    manifest = runs.manifest("measured")
    config = manifest.config | {"wave": "ramp", "crowd": [list(point) for point in crowd]}
    with RunWriter.create(path, msgspec.structs.replace(manifest, config=config)) as writer:
        writer.add_requests(records)
        writer.set_rows(rows)
    return RunFolder(path)


def record(variant: Variant, repeat: int, attempt: int, crowd: Crowd, late_s: float) -> RequestRecord:
    """All tokens of a point in one answer; an attempt that does not count has none worth speaking of."""
    tokens, at_s = [], STEP_S / 2
    while at_s < WARMUP_S + LENGTH_S:
        users = users_at(crowd, at_s)
        speculates = users_at(crowd, max(0.0, at_s - late_s)) <= THRESHOLD
        on = variant == "eagle3" or (variant == "dynamic" and speculates)
        tokens.append(rate(users, on) * repeat if attempt == 2 else 1)
        at_s += STEP_S
    ticks = (round(STEP_S / 2 / TICK_S), *[round(STEP_S / TICK_S)] * (len(tokens) - 1))
    return RequestRecord(
        variant,
        MOST,
        repeat,
        0,
        0.0,
        at_s,
        attempt=attempt,
        chunk_ticks=ticks,
        chunk_tokens=tuple(tokens),
        output_tokens=sum(tokens),
    )


def test_perfect_switching_is_the_oracles(tmp_path: Path) -> None:
    """One that switches where the gain turns has all of its tokens, and two switches for two crossings."""
    found = judged(write_run(tmp_path / "run"))
    assert (found.ratio, found.low, found.high) == pytest.approx((1.0, 1.0, 1.0), abs=A_SLICE)
    assert THRESHOLD - 1 <= found.oracle_users <= THRESHOLD + 1
    assert (found.crossings, found.switches_per_crossing, found.repeats, found.met) == (2, 1.0, 2, True)
    assert found.gain_over_static > 1.03


def test_late_or_frequent_switching_is_told(tmp_path: Path) -> None:
    """Ten seconds late loses more than 3 percent; nine switches for two crossings are too many."""
    late = judged(write_run(tmp_path / "late", late_s=10.0))
    assert late.ratio < 0.97
    assert not late.met
    often = judged(write_run(tmp_path / "often", switches=9))
    assert (often.switches_per_crossing, often.met) == (4.5, False)
    assert often.ratio == pytest.approx(1.0, abs=A_SLICE)


def test_the_oracle_has_one_number_of_users() -> None:
    """By hand: on wins with 1 and 2 users, loses more with 3 than it wins with 4."""
    on, off = np.array([5.0, 5.0, 1.0, 5.0]), np.array([1.0, 1.0, 9.0, 1.0])
    assert best_level(on, off, np.array([1.0, 2.0, 3.0, 4.0])) == 2.0
    assert best_level(off, off + 1, np.array([1.0, 2.0, 3.0, 4.0])) == 0.0


def test_both_waves_pass_the_threshold() -> None:
    """Up and down once in the ramp, once in each burst; both begin and end low, and the top is the largest load."""
    made = waves(24, 256)
    window = (WARMUP_S, WARMUP_S + LENGTH_S)
    assert len(crossings(made["ramp"], 24, *window)) == 2
    assert 11 <= len(crossings(made["burst"], 24, *window)) <= 12
    assert max(users for _, users in made["ramp"]) == 256
    assert {users for _, users in made["burst"]} == {12, 48}
    with pytest.raises(UserError, match="largest concurrency less one"):
        waves(256, 256)


def test_the_command_judges_and_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder is judged again from disk; one that lacks a state, or has no wave, gets one line."""
    run = write_run(tmp_path / "run")
    assert main(["--judge", str(run.path)]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["switching"][0]["met"]
    assert "run (measured): 1.00" in printed.err
    lacking = write_run(tmp_path / "lacking", without="forced_off")
    assert main(["--judge", str(lacking.path)]) == 2
    assert "no repeat with eagle3, forced_off and dynamic" in capsys.readouterr().err
    assert main(["--judge", str(lacking.path), str(run.path)]) == 3
    assert [each["run"] for each in json.loads(capsys.readouterr().out)["switching"]] == ["run"]
    plain = runs.write_run(tmp_path / "plain", [], runs.manifest("measured"))
    assert main(["--judge", str(plain.path)]) == 2
    assert main(["--out", str(tmp_path / "new")]) == 2
    assert "give --threshold" in capsys.readouterr().err


def test_a_server_that_cannot_switch_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers, and is no patched one: one line, and no point."""
    monkeypatch.setattr(Bench, "warm_up", lambda self, server: None)
    with talking(document(b"{}")) as url:
        assert main(["--attach", url, "--threshold", "8", "--out", str(tmp_path / "new")]) == 2
    assert "no server plays forced_off, dynamic" in capsys.readouterr().err
