"""Closed loops on the virtual clock."""

from __future__ import annotations

import msgspec
import pytest

from harness.records import Variant
from harness.sim.noise import Noise
from harness.sim.predict import simulate_closed_loop
from harness.sim.preset import FrontEnd, Limits
from patched_worker.policy import Policy
from tests.harness.sim.worlds import DECODE, PREFILL, world


def test_one_user_is_arithmetic() -> None:
    """At C = 1 the front end, one prefill and one step per token add up to the whole latency."""
    result = simulate_closed_loop(world(frontend=FrontEnd(0.002)), "baseline", 1, 128, 101)
    ttft_s = 0.002 + PREFILL.at(128)
    assert result.ttft_p50_s == pytest.approx(ttft_s)
    assert result.tpot_p50_s == pytest.approx(DECODE.at(1))
    assert result.e2e_p50_s == pytest.approx(ttft_s + 100 * DECODE.at(1))
    assert result.output_tok_per_s == pytest.approx(101 / result.e2e_p50_s)
    assert (result.decode_batch_mean, result.accept_len, result.steps_on) == (1, None, 0)


def test_latency_delays_a_user_and_leaves_the_server_free() -> None:
    """10 ms of it come on top of each first token, and cost a server that always has others to serve nothing."""
    plain = world()
    tables = msgspec.structs.replace(plain.baseline, latency_s=0.010)
    late = msgspec.structs.replace(plain, baseline=tables)
    alone, waited = (simulate_closed_loop(preset, "baseline", 1, 128, 64) for preset in (plain, late))
    assert waited.ttft_p50_s - alone.ttft_p50_s == pytest.approx(0.010, abs=0.002)
    assert waited.output_tok_per_s < 0.99 * alone.output_tok_per_s
    busy, still_busy = (
        simulate_closed_loop(preset, "baseline", 64, 128, 256, range_ratio=0.5) for preset in (plain, late)
    )
    assert still_busy.output_tok_per_s == pytest.approx(busy.output_tok_per_s, rel=0.02)


def test_speculation_wins_at_low_load_and_loses_at_high() -> None:
    """The world's pivot: eagle3 is faster than the baseline for one user and slower for 256."""
    speed = {
        (variant, level): simulate_closed_loop(world(), variant, level, 32, 64).output_tok_per_s
        for variant in ("baseline", "eagle3")
        for level in (1, 256)
    }
    assert speed["eagle3", 1] > 1.3 * speed["baseline", 1]
    assert speed["eagle3", 256] < speed["baseline", 256]


@pytest.mark.parametrize("level", [2, 24])
def test_dynamic_follows_the_better_side(level: int) -> None:
    """With its threshold between, dynamic equals eagle3 below and forced_off above it, and counts its steps so."""
    policy = Policy.from_threshold(8)
    dynamic = simulate_closed_loop(world(), "dynamic", level, 32, 64, policy, spread_s=0.0)
    side: Variant = "eagle3" if level <= 8 else "forced_off"
    pure = simulate_closed_loop(world(), side, level, 32, 64, spread_s=0.0)
    assert dynamic.output_tok_per_s == pytest.approx(pure.output_tok_per_s, rel=0.05)
    assert (dynamic.steps_on > dynamic.steps_off) == (level <= 8)


def test_seed_decides_everything() -> None:
    """The same seed gives the same result to the last bit, another seed another one."""
    noise = Noise(0.02, 0.01)
    results = [simulate_closed_loop(world(), "eagle3", 4, 32, 64, seed=seed, noise=noise) for seed in (1, 1, 2)]
    assert results[0] == results[1] != results[2]


def test_window_lasts_as_long_as_asked() -> None:
    """With a duration the window covers it, to the step."""
    result = simulate_closed_loop(world(), "baseline", 4, 32, 64, duration_s=3.0)
    assert 3.0 <= result.duration_s < 3.1


def test_slots_cap_the_decode_batch() -> None:
    """More users than slots queue: the batch stays at max_running_requests and ttft grows by the wait."""
    capped = world(limits=Limits(max_running_requests=8, max_total_num_tokens=100_000))
    result = simulate_closed_loop(capped, "baseline", 32, 32, 64)
    free = simulate_closed_loop(world(), "baseline", 32, 32, 64)
    assert result.decode_batch_mean <= 8 < free.decode_batch_mean
    assert result.ttft_p50_s > 3 * free.ttft_p50_s


def test_lengths_spread_around_their_mean() -> None:
    """With a range ratio answers differ in length, by no more than it, and users do not stay in step."""
    fixed = simulate_closed_loop(world(), "baseline", 32, 64, 64, spread_s=0.0, duration_s=4.0)
    varied = simulate_closed_loop(world(), "baseline", 32, 64, 64, spread_s=0.0, duration_s=4.0, range_ratio=0.5)
    assert fixed.decode_batch_mean == pytest.approx(32, abs=0.5)
    assert varied.decode_batch_mean < fixed.decode_batch_mean
    assert varied.ttft_p50_s < fixed.ttft_p50_s
    assert varied.requests * 64 == pytest.approx(varied.output_tok_per_s * varied.duration_s, rel=0.15)
