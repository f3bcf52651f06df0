"""Does ranking hysteresis under waves find what switching costs? On simulated servers whose switching cost is known.

For each switching cost, several machines (noise of 2 % per step and a drift of 1 %) are ranked as `specpivot tune
--search resume_at,min_dwell` ranks them. What is kept is then compared with the default on other noise and other
arrivals: its true gain, in mean time that requests stay. The very last line on standard output is one compact JSON
document.

    python -m benchmarks.hysteresis --machines 10
"""

from __future__ import annotations

import argparse
import json
import sys

import msgspec
import numpy as np

from benchmarks.worlds import OpenMachine
from harness.openload import Arrivals
from harness.records import LevelRow, Variant
from harness.sim.noise import Noise
from harness.sim.predict import simulate_closed_loop
from harness.sim.preset import Preset, load_preset
from patched_worker.policy import Policy
from tuner.curves import pivot
from tuner.hysteresis import Ranked, Wave, design, judged, point_number, rank
from tuner.knobs import parse_search
from tuner.waves import waves_around

PRESET = "h200-llama31-8b-accept-1.8-illustrative"
LEVELS = (1, 2, 4, 8, 16, 32, 64, 128)
COSTS_S = (0.0, 0.004, 0.05, 0.3)
LENGTHS = (128, 128)
WARMUP_S, WINDOW_S = 3.0, 15.0
NOISE = Noise(0.02, 0.01)
TRUTH_ROUNDS = 12
SEARCH = parse_search("resume_at,min_dwell")


def curves(preset: Preset) -> list[LevelRow]:
    """The preset's curves without noise, as rows."""
    variants: tuple[Variant, ...] = ("eagle3", "forced_off")
    points = [simulate_closed_loop(preset, v, c, *LENGTHS) for v in variants for c in LEVELS]
    return [
        LevelRow(
            variant=p.variant,
            concurrency=p.concurrency,
            repeat=1,
            status="done",
            verdict="ok",
            decode_batch_mean=p.decode_batch_mean,
            output_tok_per_s=p.output_tok_per_s,
            requests=p.requests,
            duration_s=p.duration_s,
        )
        for p in points
    ]


def ranked(preset: Preset, threshold: int, waves: dict[Wave, Arrivals], seed: int) -> Ranked:
    """The ranking on one machine."""
    machine = OpenMachine(preset, NOISE, seed, LENGTHS, WINDOW_S, WARMUP_S)

    def measure(policy: Policy, wave: Wave, round_: int, candidate: int) -> LevelRow:
        return machine.measure(policy, waves[wave], 1000 * seed + round_, point_number(wave, round_, candidate))

    found = rank(measure, threshold, design(threshold, SEARCH, 8), [], lambda: 1e9)
    assert found is not None
    return found


def true_gain(preset: Preset, threshold: int, waves: dict[Wave, Arrivals], found: Ranked) -> float:
    """log of how much longer requests stay with the default than with what was kept."""
    if not found.kept:
        return 0.0
    pair = (design(threshold, SEARCH, 8)[0], design(threshold, SEARCH, 8)[found.kept])
    machine = OpenMachine(preset, NOISE, 10**6, LENGTHS, WINDOW_S, WARMUP_S)
    rows = [
        machine.measure(rule.policy(threshold), arrivals, 10**6 + round_, point_number(wave, round_, candidate))
        for round_ in range(TRUTH_ROUNDS)
        for candidate, rule in enumerate(pair)
        for wave, arrivals in waves.items()
    ]
    return judged(pair, rows).tried[1].gain


def run(cost_s: float, machines: int) -> dict[str, float]:
    """The figures of one switching cost."""
    preset = load_preset(PRESET)
    preset = msgspec.structs.replace(preset, patched=msgspec.structs.replace(preset.patched, switch_cost_s=cost_s))
    rows = curves(preset)
    fit = pivot(rows)
    if fit is None or not fit.threshold:
        raise SystemExit(f"{PRESET} has no pivot between levels; take another")
    waves = waves_around(rows, "forced_off", fit.threshold, WARMUP_S, WINDOW_S)
    found = [ranked(preset, fit.threshold, waves, seed) for seed in range(1, machines + 1)]
    gains = [true_gain(preset, fit.threshold, waves, each) for each in found]
    return {
        "switch_cost_s": cost_s,
        "threshold": fit.threshold,
        "left_default": sum(each.kept > 0 for each in found) / machines,
        "mean_true_gain": round(float(np.mean(gains)), 4),
        "worst_true_gain": round(min(gains), 4),
        "switches_default": round(float(np.mean([each.default.switches for each in found])), 1),
        "switches_kept": round(float(np.mean([each.chosen.switches for each in found])), 1),
    }


def main() -> None:
    """Parse the command line, run, print a line per cost and the last line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machines", type=int, default=10)
    machines = parser.parse_args().machines
    table = []
    for cost_s in COSTS_S:
        table.append(run(cost_s, machines))
        print(json.dumps(table[-1]), file=sys.stderr)
    print(json.dumps({"source": "simulated", "preset": PRESET, "costs": table}, separators=(",", ":")))


if __name__ == "__main__":
    main()
