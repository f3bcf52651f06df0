"""How well the autopilot follows: acceptance that drifts, contexts that grow, load that comes and goes, or nothing.

    python -m benchmarks.autopilot --seed 1 --seed 2 --seed 3
    python -m benchmarks.autopilot --scenario acceptance --jobs 2

Each scenario is played on the virtual clock by the autopilot, by an oracle that knows the step tables, the acceptance
and the context of every step, and by the static choices: always and never. People read standard error; the last line on
standard output is one compact JSON document. Figures per scenario, over the seeds:

    moved_s            seconds from a drift to the first move the right way (bar: 60); the slowest
    moved_load_s       of these, those in which there were as many users as make that move matter
    oracle_share       throughput / the oracle's, from 60 s after each drift (or from 60 s) to the next (bar: 0.97)
    static_share       worst two minutes' throughput / the better static choice's in those two minutes (bar: 0.97);
                       static_start_share: of the first two; oracle_static_share: the oracle's worst two minutes
    idle_moves         moves in the 30 minutes in which nothing changes (bar: 0; "restless": nothing but which requests
                       happen to run, which moves acceptance by 3 % up and down; "restless_wrong": the same from a
                       threshold of 256, so that it has to be found first)
    wrong              from thresholds 4 and 256: cases that are inside the swept pivot's interval after 5 minutes, and
                       what the wrong state would lose at the threshold that was found
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
from scipy import stats

from benchmarks.drifting import CONTEXT, NOISE, Outcome, Scenario, machine, play, restless, starting_at, wandering
from harness.records import LevelRow, Variant
from harness.sim.predict import simulate_closed_loop
from harness.sim.preset import costs_of
from tuner.curves import pivot

BARS = {"moved_s": 60.0, "oracle_share": 0.97, "static_share": 0.97, "idle_moves": 0}
FIGURES = (
    *("moved_s", "moved_load_s", "oracle_share", "static_share", "static_start_share", "oracle_static_share"),
    *("idle_moves", "flipped", "moves"),
)
MINUTE = 60.0
WINDOW_S, WINDOW_STEP_S = 120, 5
SETTLE_S = 60.0  # what a drift is given before shares count
QUIET_S = 30 * MINUTE
LEARNING_S = 5 * MINUTE
WRONG = (4, 256)
QUIET = ("nothing", "restless", "restless_wrong")
STEADY_ACCEPT = 2.0
MEAN_CONTEXT = 300  # tokens, of the requests that run at a time


def scenarios(seed: int) -> list[Scenario]:
    """All of them; traffic wanders differently with each seed."""

    def switching(times: Sequence[float], values: Sequence[float]) -> Any:
        return lambda second: values[sum(second >= at for at in times)]

    def ramping(start: float, end: float, low: float, high: float) -> Any:
        return lambda second: low + (high - low) * min(1.0, max(0.0, (second - start) / (end - start)))

    def tide(second: float) -> int:
        octaves = 8 * (1 - abs(min(second, 1500.0) / 750.0 - 1))
        return max(1, round(2**octaves))

    quiet = LEARNING_S + QUIET_S
    drift, back, end = 5 * MINUTE, 15 * MINUTE, 25 * MINUTE
    mixed = wandering(48, 1.0, seed, 40 * MINUTE)
    down = ramping(drift, drift + MINUTE, 2.8, 1.8)
    up = ramping(back, back + MINUTE, 0.0, 1.0)
    swinging = restless(STEADY_ACCEPT, 0.03, seed, quiet)
    return [
        Scenario(
            "acceptance", mixed, switching((drift, back), (2.8, 1.8, 2.8)), lambda _: 128, end, ((drift, -1), (back, 1))
        ),
        Scenario(
            "acceptance_ramp",
            mixed,
            lambda s: round(down(s) + up(s), 2),
            lambda _: 128,
            end,
            ((drift, -1), (back, 1)),
        ),
        Scenario(
            "context", mixed, lambda _: 2.2, switching((drift, back), (128, 1280, 128)), end, ((drift, 1), (back, -1))
        ),
        Scenario("load", tide, lambda _: STEADY_ACCEPT, lambda _: 128, end),
        Scenario("restless", mixed, swinging, lambda _: 128, quiet),
        Scenario("restless_wrong", mixed, swinging, lambda _: 128, quiet, start=max(WRONG)),
        Scenario("nothing", mixed, lambda _: STEADY_ACCEPT, lambda _: 128, quiet),
    ]


def windows(ours: Outcome, others: Sequence[Outcome], end_s: float) -> float:
    """The worst window's throughput over the best of the others' in the same window."""
    starts = np.arange(0, end_s - WINDOW_S + 1, WINDOW_STEP_S)
    return min(
        ours.rate(at, at + WINDOW_S) / max(other.rate(at, at + WINDOW_S) for other in others) for at in starts.tolist()
    )


def moved_after(outcome: Outcome, drift_s: float, way: int, until_s: float) -> float:
    """Seconds from a drift to the first move that way; infinite if there is none before the next drift."""
    threshold = outcome.threshold_at(drift_s)
    for at, value in outcome.thresholds:
        if drift_s < at <= until_s:
            if (value - threshold) * way > 0:
                return at - drift_s
            threshold = value
    return math.inf


def mattered(scenario: Scenario, outcome: Outcome, drift_s: float, moved_s: float) -> float:
    """Seconds from a drift to its move in which the users were so many that the move would have changed the state."""
    if not math.isfinite(moved_s):
        return math.inf
    low, high = sorted((outcome.threshold_at(drift_s), outcome.threshold_at(drift_s + moved_s)))
    return sum(low < scenario.users(second) <= high for second in range(int(drift_s), int(drift_s + moved_s)))


def played(scenario: Scenario, seed: int) -> dict[str, Any]:
    """The figures of one scenario and seed."""
    ours, oracle = (play(scenario, kind, seed) for kind in ("autopilot", "oracle"))
    starts = [at for at, _ in scenario.drifts] or [0.0]
    ends = [*starts[1:], scenario.duration_s]
    spans = [(at + SETTLE_S, end) for at, end in zip(starts, ends, strict=True)]
    found: dict[str, Any] = {
        "oracle_share": min(ours.rate(*span) / oracle.rate(*span) for span in spans),
        "flipped": ours.flipped,
        "moves": len(ours.moves),
    }
    if scenario.drifts:
        ways = zip(scenario.drifts, ends, strict=True)
        waits = [(at, moved_after(ours, at, way, end)) for (at, way), end in ways]
        found["moved_s"] = max(wait for _, wait in waits)
        found["moved_load_s"] = max(mattered(scenario, ours, at, wait) for at, wait in waits)
    if scenario.name in QUIET:
        found["idle_moves"] = sum(at > LEARNING_S for at, _ in ours.thresholds)
    else:
        static = [play(scenario, kind, seed) for kind in ("on", "off")]
        found["static_share"] = windows(ours, static, scenario.duration_s)
        found["static_start_share"] = windows(ours, static, WINDOW_S)
        found["oracle_static_share"] = windows(oracle, static, scenario.duration_s)
    return found | {"log": ours.moves}


def swept(seed: int) -> tuple[int | None, int | None]:
    """The 90 % interval of the pivot that a sweep of the same server finds, as `specpivot recommend` does it."""
    preset, rows = machine(STEADY_ACCEPT), list[LevelRow]()
    variants: tuple[Variant, ...] = ("eagle3", "forced_off")
    for variant in variants:
        for users in (1, 2, 4, 8, 16, 24, 32, 48, 64, 128, 256):
            for repeat in range(3):
                point = simulate_closed_loop(
                    preset, variant, users, 128, 320, seed=100 * seed + repeat, range_ratio=0.6, noise=NOISE
                )
                rows.append(
                    LevelRow(
                        variant,
                        users,
                        repeat,
                        "done",
                        "ok",
                        decode_batch_mean=point.decode_batch_mean,
                        output_tok_per_s=point.output_tok_per_s,
                    )
                )
    found = pivot(rows)
    return (None, None) if found is None else found.interval


def true_gain(batch: int) -> float:
    """log(throughput on / off) at a batch, from the tables: what the wrong state loses there."""
    preset = machine(STEADY_ACCEPT)
    costs, drafts = costs_of(preset, "dynamic"), preset.acceptance.num_steps
    on_s, off_s = (costs.decode_s(batch, d) + costs.context_s(batch, d, MEAN_CONTEXT * batch) for d in (drafts, 0))
    return math.log(STEADY_ACCEPT * off_s / on_s)


def settled(seed: int) -> list[dict[str, Any]]:
    """From wrong thresholds, five minutes of steady mixed load."""
    low, high = swept(seed)
    base = Scenario("wrong", wandering(32, 1.0, seed, LEARNING_S), lambda _: STEADY_ACCEPT, lambda _: 128, LEARNING_S)
    found = []
    for start in WRONG:
        outcome = play(starting_at(base, start), "autopilot", seed)
        threshold = outcome.thresholds[-1][1]
        lost = abs(true_gain(threshold))
        inside = (low or 0) <= threshold <= (math.inf if high is None else high)
        found.append(
            {
                "start": start,
                "threshold": threshold,
                "swept": [low, high],
                "inside": inside,
                "lost_there": round(-math.expm1(-lost), 4),
                "moves": len(outcome.moves),
            }
        )
    return found


def _job(job: tuple[str, int]) -> tuple[str, int, Any]:
    name, seed = job
    if name == "wrong":
        return name, seed, settled(seed)
    (scenario,) = [scenario for scenario in scenarios(seed) if scenario.name == name]
    return name, seed, played(scenario, seed)


def interval(values: Sequence[float]) -> dict[str, float | None]:
    """Mean with a 95 % interval over seeds, and the worst of them."""
    mean = float(np.mean(values))
    if len(values) < 2 or not np.isfinite(values).all():
        return {"mean": mean, "low": None, "high": None}
    half = float(stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values)))
    return {"mean": round(mean, 4), "low": round(mean - half, 4), "high": round(mean + half, 4)}


def summary(results: Sequence[tuple[str, int, Any]]) -> dict[str, Any]:
    """Per scenario, each figure over the seeds, with its worst and whether that holds the bar."""
    report: dict[str, Any] = {}
    for name in dict.fromkeys(name for name, _, _ in results):
        runs = [found for at, _, found in results if at == name]
        if name == "wrong":
            cases = [case for run in runs for case in run]
            inside, lost = sum(case["inside"] for case in cases), max(case["lost_there"] for case in cases)
            report[name] = {"cases": len(cases), "inside": inside, "lost_there": {"worst": lost}}
            continue
        row: dict[str, Any] = {}
        for key in FIGURES:
            values = [run[key] for run in runs if key in run]
            if values:
                worst = min(values) if key.endswith("share") else max(values)
                row[key] = interval(values) | {"worst": round(worst, 4)}
                if key in BARS:
                    row[key]["ok"] = worst >= BARS[key] if key.endswith("share") else worst <= BARS[key]
        report[name] = row
    return report


def tell(name: str, seed: int, found: Any, with_log: bool) -> None:
    """One result for people, as soon as it is there."""
    shown = found if name == "wrong" else {key: value for key, value in found.items() if key != "log"}
    print(f"{name} seed {seed}: {shown}", file=sys.stderr, flush=True)
    if with_log and name != "wrong":
        print("  " + "\n  ".join(found["log"]), file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Play what is asked for, and print."""
    names = [scenario.name for scenario in scenarios(0)] + ["wrong"]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.autopilot", description="See the module.")
    parser.add_argument("--seed", type=int, action="append", help="repeatable; default 1, 2 and 3")
    parser.add_argument("--scenario", action="append", choices=names, help="repeatable; default all")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--log", action="store_true", help="print every move's reason")
    options = parser.parse_args(arguments)
    jobs = [(name, seed) for seed in options.seed or (1, 2, 3) for name in options.scenario or names]
    started = time.monotonic()
    results = []
    with ProcessPoolExecutor(options.jobs) as pool:
        for name, seed, found in pool.map(_job, jobs):
            results.append((name, seed, found))
            tell(name, seed, found, options.log)
    report = {
        "benchmark": "autopilot",
        "source": "simulated",
        "seeds": options.seed or [1, 2, 3],
        "context_s_per_token": [CONTEXT.plain, CONTEXT.speculative],
        "wall_s": round(time.monotonic() - started, 1),
        "scenarios": summary(results),
    }
    print(json.dumps(report, separators=(",", ":")))


if __name__ == "__main__":
    main()
