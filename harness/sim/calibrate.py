"""A preset from measured run folders: the tables with which the engine repeats what was measured.

    python -m harness.sim.calibrate results/NAME ... -o harness/sim/presets/NAME.json

No column of levels.csv is a step time: prefill, queueing and a batch below C lie between. So the engine itself is
inverted. It runs the same closed loop on the virtual clock, and its tables are changed until it agrees at the chosen
concurrencies: a prefill's cost until it fills the time that decode steps of the measured length leave, decode steps
until throughput agrees, latency until time to first token at the lowest does, the draft until accept length does.
Everything else is not fitted: it follows, as at the concurrencies that stay unseen.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from harness.errors import UserError
from harness.records import Variant
from harness.sim.acceptance import Acceptance
from harness.sim.inversion import fitted, prefill_table, simulated
from harness.sim.points import Measured, read_measured
from harness.sim.preset import (
    PRESET_SCHEMA,
    Calibration,
    FrontEnd,
    Limits,
    PatchedTables,
    Preset,
    ServerTables,
    save_preset,
)
from harness.sim.steptime import StepTable, TaxTable

CALIBRATED_AT = (1, 4, 16, 64, 256)
SEEDS = (0, 1, 2)
# Front end of one SGLang process and its client. Not identifiable from throughput: a request that is alone reaches the
# scheduler in about two milliseconds, one that is not waits a fifth of a millisecond for each before it, and the jitter
# keeps users apart who started apart. What is left of it lands in the prefill's fixed cost.
FRONTEND = FrontEnd(delay_s=0.002, per_request_s=0.0002, jitter_s=0.001)


def make_preset(
    run_folders: Sequence[Path], concurrency: Sequence[int] = CALIBRATED_AT, name: str = "calibrated"
) -> Preset:
    """Invert measured runs into a preset.

    Args:
        run_folders: runs of one machine and workload that hold baseline, baseline_no_overlap and eagle3, and
            forced_off if there is a patched server's (else its tax is taken as 0, which the description says).
        concurrency: the points to use.
        name: of the preset.

    Raises:
        UserError: a point is missing, or the engine cannot be brought to it.
    """
    measured = read_measured(run_folders)
    preset = _start(measured, tuple(sorted(concurrency)), name)
    for variant in ("baseline", "baseline_no_overlap", "eagle3", "forced_off"):
        if variant != "forced_off" or variant in measured.points:
            preset = fitted(preset, variant, measured)
    return preset


def throughput_errors(preset: Preset, measured: Measured) -> dict[tuple[Variant, int], float]:
    """Relative error of simulated throughput (the median of three draws) against what was measured, at every point.

    Args:
        preset: made from some points of `measured`.
        measured: all of them.
    """
    errors: dict[tuple[Variant, int], float] = {}
    for variant, points in measured.points.items():
        for level, point in points.items():
            if variant != "dynamic":  # its threshold is the run's, not the preset's
                draws = [simulated(preset, variant, level, measured, seed).output_tok_per_s for seed in SEEDS]
                errors[variant, level] = statistics.median(draws) / point.output_tok_per_s - 1
    return errors


def prediction_errors(preset: Preset, measured: Measured) -> dict[tuple[Variant, int], float]:
    """`throughput_errors` at the concurrencies that calibration has not seen."""
    seen = preset.calibration.concurrency if preset.calibration else ()
    errors = throughput_errors(preset, measured)
    return {(variant, level): share for (variant, level), share in errors.items() if level not in seen}


def _start(measured: Measured, concurrency: tuple[int, ...], name: str) -> Preset:
    """A preset with the run's facts and, for tables, a first guess."""
    server = measured.servers.get("eagle3")
    if server is None:
        raise UserError(f"no eagle3 server in {', '.join(measured.runs)}; name a run that measured one")
    arguments = server.server_args
    is_v1 = bool(arguments.get("disable_overlap_schedule"))
    num_steps = int(arguments.get("speculative_num_steps") or 3)
    spread = "batch" if "SGLANG_SIMULATE_ACC_LEN" in server.env else "request"
    guess = StepTable(concurrency, tuple(0.005 + 0.00004 * level for level in concurrency))
    prefill = prefill_table(0.01, 1e-5, measured.input_tokens, arguments)
    tables = ServerTables(guess, prefill)
    return Preset(
        schema=PRESET_SCHEMA,
        name=name,
        description=_description(measured, concurrency),
        gpu=measured.gpu,
        model=str(arguments.get("model_path", "unknown")),
        draft=str(arguments.get("speculative_draft_model_path", "unknown")),
        sglang_version=server.version,
        acceptance=msgspec.convert({"mean_len": 1.0, "num_steps": num_steps, "kind": spread}, Acceptance),
        baseline=tables,
        baseline_no_overlap=tables,
        patched=PatchedTables(
            reference="baseline_no_overlap" if is_v1 else "baseline",
            worker="v1" if is_v1 else "v2",
            speculative={num_steps: guess},
            prefill=prefill,
            off_tax=TaxTable(concurrency, (0.0,) * len(concurrency)),
        ),
        limits=_limits(arguments, concurrency[-1], measured),
        frontend=FRONTEND,
        calibration=Calibration(measured.runs, concurrency, measured.input_tokens, measured.output_tokens),
    )


def _description(measured: Measured, concurrency: tuple[int, ...]) -> str:
    levels = ", ".join(map(str, concurrency))
    tax = "" if "forced_off" in measured.points else " No forced_off was measured: its off-step tax is taken as 0."
    return f"Inverted from {', '.join(measured.runs)} at C = {levels}.{tax}"


def _limits(arguments: dict[str, object], top: int, measured: Measured) -> Limits:
    def number(name: str, default: int) -> int:
        value = arguments.get(name)
        return int(value) if isinstance(value, int | float) and value > 0 else default

    tokens = round(top * (measured.input_tokens + measured.output_tokens) * (1 + measured.range_ratio))
    return Limits(
        max_running_requests=max(number("max_running_requests", top), top),
        max_total_num_tokens=max(number("max_total_num_tokens", tokens), tokens),
        chunked_prefill_size=number("chunked_prefill_size", 8192),
        context_length=number("context_length", 8192),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; its last line on standard output is a JSON document with the errors of prediction."""
    parser = argparse.ArgumentParser(prog="python -m harness.sim.calibrate", description="A preset from measured runs.")
    parser.add_argument("runs", nargs="+", type=Path, help="run folders made by sweep")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the preset to write, NAME.json")
    parser.add_argument("--concurrency", default=",".join(map(str, CALIBRATED_AT)), help="points to calibrate from")
    options = parser.parse_args(arguments)
    try:
        levels = [int(level) for level in options.concurrency.split(",")]
        preset = make_preset(options.runs, levels, options.output.stem)
        save_preset(preset, options.output)
        errors = throughput_errors(preset, read_measured(options.runs))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for (variant, level), share in errors.items():
        role = "calibrated" if level in levels else "predicted"
        print(f"{variant} C={level}: {share:+.1%} of what was measured ({role})", file=sys.stderr)
    worst = max((abs(share) for (_, level), share in errors.items() if level not in levels), default=None)
    print(msgspec.json.encode({"preset": str(options.output), "worst_prediction_error": worst}).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
