"""The tuner's benchmark: its worlds hold what they promise, and its last line is the contract."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from benchmarks.tuner import LOAD, grid, ours, regret
from benchmarks.worlds import CONCURRENCY, GRID, Machine, World, make_worlds, read_worlds
from patched_worker.policy import Policy

ROOT = Path(__file__).parent.parent.parent

# Steps of 10 ms; speculating costs 15 ms up to batch 8 and 40 ms from 16 on, for 2 tokens.
HAND = World(
    baseline_step_s=(0.01,) * len(GRID),
    off_step_s=(0.01,) * len(GRID),
    on_step_s=tuple(0.015 if b <= 8 else 0.04 for b in GRID),
    accept_len=2.0,
    flap_cost=0.0,
    dip=0.0,
    noise_level=0.0,
    noise_run=0.0,
)


def test_truth_by_hand() -> None:
    """Rates, pivot and scores of a world that can be worked out on paper."""
    assert HAND.rate("eagle3", 8) == pytest.approx(8 * 2 / 0.015)
    assert HAND.rate("forced_off", 8) == pytest.approx(800)
    assert HAND.pivot == 9  # log-log between 8 and 16: 0.015 * (b / 8) ** 1.415 reaches 0.02 at 9.8
    assert HAND.score(9) == pytest.approx(1.0)
    assert HAND.score(None) == pytest.approx((0.5**5) ** (1 / 9))
    assert HAND.score(0) == pytest.approx((0.75**4) ** (1 / 9))
    assert regret(HAND, 9) == pytest.approx(0.0)


def test_scores_agree_with_throughput() -> None:
    """The table of scores is what throughput level by level gives."""
    (world,) = make_worlds(1, seed=7)
    logs = [
        np.log(world.throughput("dynamic", 40, c) / max(world.throughput(v, None, c) for v in ("baseline", "eagle3")))
        for c in CONCURRENCY
    ]
    assert world.score(40) == pytest.approx(float(np.exp(np.mean(logs))))


def test_the_tuner_sees_only_noise() -> None:
    """Measurements scatter as the world says and name no truth."""
    world = msgspec.structs.replace(HAND, noise_level=0.03, noise_run=0.0)
    machine = Machine(world, seed=1)
    rates = [machine.measure("dynamic", Policy.from_threshold(4), 4, r).output_tok_per_s or 0 for r in range(400)]
    assert np.std(np.log(rates)) == pytest.approx(0.03, rel=0.15)
    assert machine.points == 400


def test_worlds_are_of_several_families_and_repeatable() -> None:
    """The same seed gives the same worlds, of at least four shapes, with a pivot each."""
    worlds = make_worlds(40, seed=2)
    assert worlds == make_worlds(40, seed=2)
    assert len({world.family for world in worlds}) == 4
    assert all(world.pivot is not None and world.pivot > 1 for world in worlds)


def test_ours_beats_the_grid_at_the_same_load() -> None:
    """Over a few worlds the tuner's mean regret is below that of a grid, within the load, with an interval each."""
    worlds = make_worlds(6, seed=3)
    mine, theirs = [ours(w, 1) for w in worlds], [grid(w, 1) for w in worlds]
    assert all(result.points <= LOAD for result in (*mine, *theirs))
    assert all(result.covered is not None for result in mine)
    assert np.mean([r.regret for r in mine]) < np.mean([r.regret for r in theirs])


def test_world_file_and_last_line(tmp_path: Path) -> None:
    """A written world file reads back, and the command's last line has the three figures as fractions."""
    file = tmp_path / "worlds.json"
    file.write_bytes(msgspec.json.encode({"worlds": make_worlds(2, seed=4)}))
    assert len(read_worlds(file)) == 2
    command = [sys.executable, "-m", "benchmarks.tuner", "--world-file", str(file), "--seed", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["worlds"] == 2
    for key in ("mean_regret", "share_within_1pct", "interval_coverage"):
        assert 0 <= last[key] <= 1
