"""A preset from measured run folders: the tables with which the engine repeats what was measured.

    python -m harness.sim.calibrate results/NAME ... -o harness/sim/presets/NAME.json

Throughput at C is not a step time: prefill, queueing and a batch below C lie between the two. So the engine itself is
inverted. It runs the same closed loop on the virtual clock, and each decode step's time is changed by what a round
took too long, until throughput agrees at the chosen concurrencies. Time to first token gives the prefill's fixed and
per-token cost, the measured accept length the draft's. Points at other concurrencies stay unseen.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from harness.errors import UserError
from harness.records import Variant
from harness.sim.acceptance import Acceptance
from harness.sim.points import Measured, Point, read_measured
from harness.sim.predict import ClosedLoopResult, simulate_closed_loop
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
# Front end of one SGLang process: a request that is alone reaches the scheduler in two milliseconds, and one that is
# not waits a fifth of a millisecond for each before it. Not identifiable from throughput; what is left of it lands in
# the prefill's fixed cost.
FRONTEND = FrontEnd(0.002, 0.0002)
TOLERANCE = 0.002  # of throughput, at the calibrated points: what is closer is done
ACCEPTED = 0.015  # what may be left on average over the last rounds
ROUNDS, FULL_ROUNDS = 16, 5
MIN_REQUESTS = 320  # per simulated point, so that acceptance averages out at C = 1


class Fit(msgspec.Struct, frozen=True):
    """One server's tables on their way to what was measured.

    Attributes:
        decode: step by batch, at the calibrated concurrencies.
        prefill_s, token_s: a prefill of n tokens takes prefill_s + token_s * (n - input tokens).
        mean_len: accept length of the draft; 1 where nothing speculates.
    """

    decode: dict[int, float]
    prefill_s: float
    token_s: float
    mean_len: float = 1.0


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
            preset = _fitted(preset, variant, measured)
    return preset


def prediction_errors(preset: Preset, measured: Measured) -> dict[tuple[Variant, int], float]:
    """Relative error of predicted throughput at the concurrencies that calibration has not seen.

    Args:
        preset: made from some points of `measured`.
        measured: all of them.
    """
    seen = preset.calibration.concurrency if preset.calibration else ()
    errors: dict[tuple[Variant, int], float] = {}
    for variant, points in measured.points.items():
        for level in sorted(set(points) - set(seen)):
            if variant != "dynamic":
                predicted = _simulated(preset, variant, level, measured, MIN_REQUESTS, 0)
                errors[variant, level] = predicted.output_tok_per_s / points[level].output_tok_per_s - 1
    return errors


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
    prefill = _prefill_table(0.01, 1e-5, measured.input_tokens, arguments)
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

    tokens = top * (measured.input_tokens + measured.output_tokens)
    return Limits(
        max_running_requests=max(number("max_running_requests", top), top),
        max_total_num_tokens=max(number("max_total_num_tokens", tokens), tokens),
        chunked_prefill_size=number("chunked_prefill_size", 8192),
        context_length=number("context_length", 8192),
    )


def _prefill_table(prefill_s: float, token_s: float, input_tokens: int, arguments: dict[str, object]) -> StepTable:
    largest = arguments.get("chunked_prefill_size")
    top = largest if isinstance(largest, int) and largest > input_tokens else max(8192, 2 * input_tokens)
    sizes = [input_tokens << i for i in range(64) if input_tokens << i < top] + [top]
    return StepTable(tuple(sizes), tuple(prefill_s + token_s * (size - input_tokens) for size in sizes))


def _fitted(preset: Preset, variant: Variant, measured: Measured) -> Preset:
    """The preset with the tables of `variant`'s server changed until it does what was measured."""
    calibration = preset.calibration
    assert calibration is not None  # _start made it
    points = measured.at(variant, calibration.concurrency)
    arguments = measured.servers["eagle3"].server_args
    fit = _first_fit(preset, variant, points, measured)
    history: list[list[float]] = []  # relative errors of throughput, by round and point
    for turn in range(ROUNDS):
        preset = _with(preset, variant, fit, measured.input_tokens, arguments)
        results = {level: _simulated(preset, variant, level, measured, MIN_REQUESTS, turn) for level in points}
        history.append([results[level].output_tok_per_s / points[level].output_tok_per_s - 1 for level in points])
        if variant != "eagle3" and max(map(abs, history[-1])) < TOLERANCE:
            return preset  # nothing is drawn: it stays so
        # Full steps to get there, then ever smaller ones, each with other draws: their noise averages out.
        gain = 1.0 if turn < FULL_ROUNDS else 1.0 / (turn - FULL_ROUNDS + 2)
        fit = _improved(fit, points, results, variant, preset.acceptance.num_steps, gain)
    off = max(abs(math.fsum(errors)) / len(errors) for errors in zip(*history[FULL_ROUNDS:], strict=True))
    if off > ACCEPTED:
        raise UserError(f"{variant} cannot be brought to what was measured ({off:.1%} off); are its points sound?")
    return _with(preset, variant, fit, measured.input_tokens, arguments)


def _first_fit(preset: Preset, variant: Variant, points: dict[int, Point], measured: Measured) -> Fit:
    lowest = min(points)
    prefill_s = max(points[lowest].ttft_p50_s - preset.frontend.delay_s, 1e-4)
    mean_len = 1.0
    if variant == "eagle3":
        known = [point.accept_len for point in points.values() if point.accept_len is not None]
        if not known:
            raise UserError(f"eagle3 has no accept_len in {', '.join(measured.runs)}; measure it on SGLang's /generate")
        mean_len = math.fsum(known) / len(known)
    steps = max(measured.output_tokens - 1, 1) / mean_len
    round_s = {level: level * measured.output_tokens / point.output_tok_per_s for level, point in points.items()}
    decode = {level: max(seconds - prefill_s, seconds / 2) / steps for level, seconds in round_s.items()}
    return Fit(decode, prefill_s, prefill_s / 50 / measured.input_tokens, mean_len)


def _improved(
    fit: Fit,
    points: dict[int, Point],
    results: dict[int, ClosedLoopResult],
    variant: Variant,
    num_steps: int,
    gain: float,
) -> Fit:
    """One round of the inversion; every factor is bounded, so that a far guess cannot throw it off."""
    lowest, decode = min(points), {}
    for level, result in results.items():
        # What a round took too little, as a share of the time it spent in decode steps.
        lack = (result.output_tok_per_s / points[level].output_tok_per_s - 1) * result.duration_s / result.decode_s
        decode[level] = fit.decode[level] * _factor(1 + lack, gain)
    late_s = points[lowest].ttft_p50_s - results[lowest].ttft_p50_s
    prefill_s = fit.prefill_s * _factor(1 + late_s / fit.prefill_s, gain)
    ttft = [points[level].ttft_p50_s / results[level].ttft_p50_s for level in points if level != lowest]
    token_s = fit.token_s * _factor(_geometric_mean(ttft), gain)
    mean_len = fit.mean_len
    if variant == "eagle3":
        lengths = [(points[level].accept_len, results[level].accept_len) for level in points]
        ratios = [seen / simulated for seen, simulated in lengths if seen is not None and simulated is not None]
        mean_len = min(max(mean_len * _factor(_geometric_mean(ratios), gain), 1.0), num_steps + 1.0)
    return Fit(decode, prefill_s, token_s, mean_len)


def _geometric_mean(ratios: Sequence[float]) -> float:
    return math.exp(math.fsum(map(math.log, ratios)) / len(ratios)) if ratios else 1.0


def _factor(ratio: float, gain: float) -> float:
    return math.pow(min(max(ratio, 0.6), 1.6), gain)


def _with(preset: Preset, variant: Variant, fit: Fit, input_tokens: int, arguments: dict[str, object]) -> Preset:
    """The preset with one server's tables replaced."""
    sizes = tuple(fit.decode)
    prefill = _prefill_table(fit.prefill_s, fit.token_s, input_tokens, arguments)
    if variant == "baseline":
        return msgspec.structs.replace(preset, baseline=_tables(fit, prefill))
    if variant == "baseline_no_overlap":
        return msgspec.structs.replace(preset, baseline_no_overlap=_tables(fit, prefill))
    patched = preset.patched
    if variant == "forced_off":  # the patched server's prefill is eagle3's: only the off step is new
        reference = preset.baseline if patched.reference == "baseline" else preset.baseline_no_overlap
        tax = TaxTable(sizes, tuple(seconds / reference.decode.at(size) - 1 for size, seconds in fit.decode.items()))
        return msgspec.structs.replace(preset, patched=msgspec.structs.replace(patched, off_tax=tax))
    steps = preset.acceptance.num_steps
    table = {steps: StepTable(sizes, tuple(fit.decode.values()))}
    acceptance = msgspec.structs.replace(preset.acceptance, mean_len=fit.mean_len)
    changed = msgspec.structs.replace(patched, speculative=table, prefill=prefill)
    return msgspec.structs.replace(preset, patched=changed, acceptance=acceptance)


def _tables(fit: Fit, prefill: StepTable) -> ServerTables:
    return ServerTables(StepTable(tuple(fit.decode), tuple(fit.decode.values())), prefill)


def _simulated(
    preset: Preset, variant: Variant, level: int, measured: Measured, requests: int, seed: int
) -> ClosedLoopResult:
    lengths = measured.input_tokens, measured.output_tokens
    return simulate_closed_loop(preset, variant, level, *lengths, seed=seed, min_requests=requests)


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
        errors = prediction_errors(preset, read_measured(options.runs))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for (variant, level), error_share in errors.items():
        print(f"{variant} C={level}: predicted {error_share:+.1%} of what was measured", file=sys.stderr)
    worst = max((abs(share) for share in errors.values()), default=None)
    print(msgspec.json.encode({"preset": str(options.output), "worst_prediction_error": worst}).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
