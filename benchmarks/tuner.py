"""How good the tuner's thresholds are, over many simulated worlds whose truth is known.

Every method may send the load of three sweeps (baseline, eagle3 and forced_off at every level, three times) and sees
only noisy measurements. Regret is 1 - true score / best true score. The very last line on standard output is one
compact JSON document with mean_regret, share_within_1pct and interval_coverage as fractions.

    python -m benchmarks.tuner --worlds 200 --seed 1
    python -m benchmarks.tuner --worlds 40 --methods ours,tpe,gp,grid
    python -m benchmarks.tuner --world-file worlds.json         (the format is in benchmarks/worlds.py)
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import optuna

from benchmarks.worlds import CONCURRENCY, Machine, World, make_worlds, read_worlds
from patched_worker.policy import Policy
from tuner.search import Aim, Task, search
from tuner.study import open_study

SWEEPS = 3
LOAD = SWEEPS * 3 * len(CONCURRENCY)  # points
GRID = (0, 1, 2, 4, 8, 16, 32, 64)


class Result(msgspec.Struct, frozen=True):
    """One method in one world; `covered` is None for a method without an interval."""

    regret: float
    points: int
    covered: bool | None = None


Method = Callable[[World, int], Result]


def ours(world: World, seed: int) -> Result:
    """The tuner itself, through the code that tunes servers."""
    machine = Machine(world, seed)
    aim = Aim(CONCURRENCY, seed=seed)
    task = Task(machine.measure, aim, [], lambda: LOAD - machine.points)
    found = search(task, open_study(None, "benchmark", seed))
    if found is None:
        raise RuntimeError("the tuner found nothing usable in a world where every point is")
    low, high = found.fit.interval
    truth = math.inf if world.pivot is None else world.pivot
    covered = (low if low is not None else math.inf) <= truth <= (math.inf if high is None else high)
    return Result(regret(world, found.threshold), machine.points, covered)


def grid(world: World, seed: int) -> Result:
    """Eight thresholds, one sweep each; the best observed one."""
    machine = Machine(world, seed)
    reference = _sweep(machine, "baseline", None)
    seen = {t: _observed(reference, _sweep(machine, "dynamic", t)) for t in GRID}
    return Result(regret(world, max(seen, key=lambda t: seen[t])), machine.points)


def optuna_alone(sampler: Callable[[int], optuna.samplers.BaseSampler]) -> Method:
    """An Optuna search over the threshold on whole noisy sweeps; the best observed one."""

    def method(world: World, seed: int) -> Result:
        machine = Machine(world, seed)
        reference = _sweep(machine, "baseline", None)
        study = optuna.create_study(direction="maximize", sampler=sampler(seed))
        while machine.points + len(CONCURRENCY) <= LOAD:
            trial = study.ask()
            threshold = trial.suggest_int("threshold", 1, CONCURRENCY[-1], log=True)
            study.tell(trial, _observed(reference, _sweep(machine, "dynamic", threshold)))
        return Result(regret(world, study.best_trial.params["threshold"]), machine.points)

    return method


METHODS: dict[str, Method] = {
    "ours": ours,
    "tpe": optuna_alone(lambda seed: optuna.samplers.TPESampler(seed=seed, n_startup_trials=4)),
    "gp": optuna_alone(lambda seed: optuna.samplers.GPSampler(seed=seed, n_startup_trials=4)),
    "grid": grid,
}


def regret(world: World, threshold: int | None) -> float:
    """Share of the best true score that a threshold leaves."""
    return 1 - world.score(threshold) / float(world.scores.max())


def run(worlds: Sequence[World], methods: Sequence[str], seed: int) -> dict[str, dict[str, Any]]:
    """Each method's figures over all worlds; in one world every method meets the same seed."""
    table = {}
    for name in methods:
        began = time.monotonic()
        results = [METHODS[name](world, seed * 1_000_003 + i) for i, world in enumerate(worlds)]
        table[name] = _figures(results) | {"seconds": round(time.monotonic() - began, 1)}
        print(f"{name:<6}{json.dumps(table[name])}", file=sys.stderr)
    return table


def _figures(results: Sequence[Result]) -> dict[str, Any]:
    regrets = np.array([result.regret for result in results])
    covered = [result.covered for result in results if result.covered is not None]
    return {
        "worlds": len(results),
        "mean_regret": round(float(regrets.mean()), 6),
        "share_within_1pct": round(float((regrets <= 0.01).mean()), 4),
        "p95_regret": round(float(np.quantile(regrets, 0.95)), 6),
        "interval_coverage": round(float(np.mean(covered)), 4) if covered else None,
        "mean_points": round(float(np.mean([result.points for result in results])), 1),
    }


def _sweep(machine: Machine, variant: Any, threshold: int | None) -> list[float]:
    policy = Policy.from_threshold(threshold) if variant == "dynamic" else None
    return [machine.measure(variant, policy, c, 1).output_tok_per_s or 0.0 for c in CONCURRENCY]


def _observed(reference: Sequence[float], rates: Sequence[float]) -> float:
    """What one noisy sweep shows of a score; the reference stands for the better of both."""
    return math.exp(float(np.mean(np.log(rates) - np.log(reference))))


def main() -> None:
    """Parse the command line, run, print the table and the last line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--world-file", type=Path)
    parser.add_argument("--methods", default="ours", help="comma-separated: " + ", ".join(METHODS))
    parser.add_argument("--out", type=Path, help="write the worlds to a world file")
    args = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    worlds = read_worlds(args.world_file) if args.world_file else make_worlds(args.worlds, args.seed)
    if args.out:
        args.out.write_bytes(msgspec.json.encode({"worlds": worlds}))
    table = run(worlds, args.methods.split(","), args.seed)
    best = table.get("ours") or next(iter(table.values()))
    print(json.dumps({"load_points": LOAD, "methods": table, **best}, separators=(",", ":")))


if __name__ == "__main__":
    main()
