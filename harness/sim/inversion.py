"""The inversion behind calibration: a server's tables, changed until the engine does what was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import scipy

from harness.errors import UserError
from harness.records import Variant
from harness.sim.points import Measured, Point
from harness.sim.predict import ClosedLoopResult, simulate_closed_loop
from harness.sim.preset import Preset, ServerTables
from harness.sim.steptime import StepTable, TaxTable

# Closed loops of equal answers are chaotic (which users share a prefill?): full steps to get there, then ever smaller
# ones, each with other draws, so that their noise averages out.
ROUNDS, FULL_STEPS = 12, 5
ACCEPTED = 0.15  # of throughput, on average over the small steps: beyond it the engine is no model of what was measured
SMALLEST_S, SMALLEST_TOKEN_S = 1e-4, 1e-9  # of a prefill: so that a factor can bring it back
# Per simulated point; where acceptance is drawn, more of them, so that it averages out at C = 1.
PLAIN_REQUESTS, DRAWN_REQUESTS = 200, 320


class Fit(msgspec.Struct, frozen=True):
    """One server's tables on their way to what was measured.

    Attributes:
        decode: step by batch, at the calibrated concurrencies.
        prefill_s, token_s: a prefill of n tokens takes prefill_s + token_s * (n - input tokens).
        latency_s: what a request waits besides, while the server works on.
        mean_len: accept length of the draft; 1 where nothing speculates.
    """

    decode: dict[int, float]
    prefill_s: float
    token_s: float
    latency_s: float = 0.0
    mean_len: float = 1.0


def prefill_table(prefill_s: float, token_s: float, input_tokens: int, arguments: dict[str, object]) -> StepTable:
    largest = arguments.get("chunked_prefill_size")
    top = largest if isinstance(largest, int) and largest > input_tokens else max(8192, 2 * input_tokens)
    sizes = [input_tokens << i for i in range(64) if input_tokens << i < top] + [top]
    return StepTable(tuple(sizes), tuple(prefill_s + token_s * (size - input_tokens) for size in sizes))


def fitted(preset: Preset, variant: Variant, measured: Measured) -> Preset:
    """The preset with the tables of `variant`'s server changed until it does what was measured."""
    calibration = preset.calibration
    assert calibration is not None  # it is being made
    points = measured.at(variant, calibration.concurrency)
    arguments = measured.servers["eagle3"].server_args
    fit = _first_fit(preset, variant, points, measured)
    history: list[list[float]] = []  # relative errors of throughput, by round and point
    for turn in range(ROUNDS):
        preset = _with(preset, variant, fit, measured.input_tokens, arguments)
        results = _results(preset, variant, points, measured, turn)
        history.append([results[level].output_tok_per_s / points[level].output_tok_per_s - 1 for level in points])
        gain = 1.0 / max(1, turn - FULL_STEPS + 2)
        fit = _nearer(fit, points, results, variant, preset.acceptance.num_steps, gain)
    off = max(abs(math.fsum(errors)) / len(errors) for errors in zip(*history[FULL_STEPS:], strict=True))
    if not off <= ACCEPTED:
        raise UserError(f"{variant} cannot be brought to what was measured ({off:.1%} off); are its points sound?")
    return _with(preset, variant, fit, measured.input_tokens, arguments)


def _results(
    preset: Preset, variant: Variant, points: dict[int, Point], measured: Measured, seed: int
) -> dict[int, ClosedLoopResult]:
    return {level: simulated(preset, variant, level, measured, seed) for level in points}


def _first_fit(preset: Preset, variant: Variant, points: dict[int, Point], measured: Measured) -> Fit:
    lowest = min(points)
    prefill_s = max(points[lowest].ttft_p50_s - preset.frontend.delay_s, 1e-4)
    mean_len = 1.0
    if variant == "eagle3":
        known = [point.accept_len for point in points.values() if point.accept_len is not None]
        if not known:
            raise UserError(f"eagle3 has no accept_len in {', '.join(measured.runs)}; measure it on SGLang's /generate")
        mean_len = math.fsum(known) / len(known)
    decode = {level: point.step_s for level, point in points.items()}
    return Fit(decode, prefill_s, prefill_s / 50 / measured.input_tokens, mean_len=mean_len)


def _nearer(
    fit: Fit,
    points: dict[int, Point],
    results: dict[int, ClosedLoopResult],
    variant: Variant,
    num_steps: int,
    gain: float,
) -> Fit:
    """One round of the inversion; every factor is bounded, so that a far guess cannot throw it off."""
    lowest = min(points)
    decode = {
        level: seconds * _factor(1 + _missing_s(points[level], results[level]) / results[level].decode_s, gain)
        for level, seconds in fit.decode.items()
    }
    prefill_s, token_s = _prefill_costs(fit, points, results)
    prefill_s = fit.prefill_s * _factor(prefill_s / fit.prefill_s, gain)
    token_s = fit.token_s * _factor(token_s / fit.token_s, gain)
    late_s = points[lowest].ttft_p50_s - results[lowest].ttft_p50_s - (prefill_s - fit.prefill_s)
    latency_s = max(fit.latency_s + gain * late_s, 0.0)
    mean_len = fit.mean_len
    if variant == "eagle3":
        lengths = [(points[level].accept_len, results[level].accept_len) for level in points]
        ratios = [seen / simulated for seen, simulated in lengths if seen is not None and simulated is not None]
        mean_len = min(max(mean_len * _factor(_geometric_mean(ratios), gain), 1.0), num_steps + 1.0)
    return Fit(decode, prefill_s, token_s, latency_s, mean_len)


def _missing_s(point: Point, result: ClosedLoopResult) -> float:
    """By how much the simulated window would have to be longer for the measured throughput."""
    return result.duration_s * (result.output_tok_per_s / point.output_tok_per_s - 1)


def _prefill_costs(fit: Fit, points: dict[int, Point], results: dict[int, ClosedLoopResult]) -> tuple[float, float]:
    """Fixed cost of a prefill, and that of a token beyond one prompt, with which throughput would be the measured one.

    Least squares over all loads but the lowest: each says how much of the server's time is left beside decode steps of
    the measured length. What a lone user waits for a first token is no measure of it, because an overlap scheduler
    hands tokens over while it works on.
    """
    shares, left = [], []
    for level in sorted(points)[1:]:
        point, result = points[level], results[level]
        duration_s = result.duration_s + _missing_s(point, result)
        tokens = max(result.prefill_s - result.prefills * fit.prefill_s, 0.0) / fit.token_s
        shares.append([result.prefills / duration_s, tokens / duration_s])
        left.append(1 - (result.steps_on + result.steps_off) * point.step_s / duration_s)
    (prefill_s, token_s), _ = scipy.optimize.nnls(np.array(shares), np.array(left))
    return max(float(prefill_s), SMALLEST_S), max(float(token_s), SMALLEST_TOKEN_S)


def _geometric_mean(ratios: Sequence[float]) -> float:
    return math.exp(math.fsum(map(math.log, ratios)) / len(ratios)) if ratios else 1.0


def _factor(ratio: float, gain: float) -> float:
    return math.pow(min(max(ratio, 0.6), 1.6), gain)


def _with(preset: Preset, variant: Variant, fit: Fit, input_tokens: int, arguments: dict[str, object]) -> Preset:
    """The preset with one server's tables replaced."""
    sizes = tuple(fit.decode)
    prefill = prefill_table(fit.prefill_s, fit.token_s, input_tokens, arguments)
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
    changed = msgspec.structs.replace(patched, speculative=table, prefill=prefill, latency_s=fit.latency_s)
    return msgspec.structs.replace(preset, patched=changed, acceptance=acceptance)


def _tables(fit: Fit, prefill: StepTable) -> ServerTables:
    return ServerTables(StepTable(tuple(fit.decode), tuple(fit.decode.values())), prefill, fit.latency_s)


def simulated(preset: Preset, variant: Variant, level: int, measured: Measured, seed: int) -> ClosedLoopResult:
    """One point of the closed loop that was measured, on the virtual clock."""
    requests = DRAWN_REQUESTS if variant == "eagle3" else PLAIN_REQUESTS
    return simulate_closed_loop(
        preset,
        variant,
        level,
        measured.input_tokens,
        measured.output_tokens,
        seed=seed,
        min_requests=requests,
        spread_s=measured.spread_s,
        range_ratio=measured.range_ratio,
    )
