"""What speculation saves in prefills, against prefills that are counted one by one."""

from __future__ import annotations

import random

import pytest

from patched_worker.autopilot_prefill import Prefills
from patched_worker.steptrace import StepRecord

FIXED_S, EACH_S = 0.010, 0.002
BATCH, TOKENS_EACH = 32, 160


def traffic(accept_len: int, steps: int, prefills: Prefills) -> tuple[float, int]:
    """Steps whose requests end at random, each followed by the prefill of as many; its seconds, and the tokens."""
    source, seconds, tokens = random.Random(accept_len), 0.0, 0
    for _ in range(steps):
        joined = sum(source.random() < accept_len / TOKENS_EACH for _ in range(BATCH))
        prefill_s = (FIXED_S + EACH_S * joined) * source.uniform(0.7, 1.3) if joined else 0.0
        step = StepRecord(BATCH, 0, 3, False, False, BATCH * accept_len, 0.01, prefill_s, joined)
        prefills.add(step)
        seconds, tokens = seconds + prefill_s, tokens + step.tokens
    return seconds, tokens


def test_the_saving_is_what_counting_gives() -> None:
    """Seconds of prefill per token with one token a step and with two, apart; as a share of a plain token's 0.2 ms."""
    prefills = Prefills()
    off_s, off_tokens = traffic(1, 40_000, prefills)
    on_s, on_tokens = traffic(2, 20_000, prefills)

    counted = (off_s / off_tokens - on_s / on_tokens) / 0.0002
    assert prefills.fixed_s.value == pytest.approx(FIXED_S, rel=0.1)
    assert prefills.saving(BATCH, 2.0, 5000.0).value == pytest.approx(counted, rel=0.25)
    assert counted > 0.02


def test_without_speculative_gain_nothing_is_saved() -> None:
    """One token per step ends as many requests as a plain step does."""
    prefills = Prefills()
    traffic(2, 2000, prefills)

    assert prefills.saving(BATCH, 1.0, 5000.0).value == 0.0


@pytest.mark.parametrize("joined", [(1,), (0,)])
def test_what_is_not_known_is_no_saving(joined: tuple[int, ...]) -> None:
    """Prefills of one request each do not tell what is fixed, and a server may have none."""
    prefills = Prefills()
    for count in joined * 500:
        prefills.add(StepRecord(BATCH, 0, 3, False, False, BATCH, 0.01, 0.012 * count, count))

    assert prefills.saving(BATCH, 2.0, 5000.0) == (0.0, 0.0)


def test_its_error_is_how_far_it_is_off() -> None:
    """Over many stretches of traffic with prompts of all lengths."""
    off = []
    for seed in range(200):
        source, prefills = random.Random(seed), Prefills(memory=1.0)
        for _ in range(100):
            joined = source.choice((1, 1, 2, 3))
            prefill_s = FIXED_S + sum(EACH_S * source.uniform(0.1, 1.9) for _ in range(joined))
            prefills.add(StepRecord(BATCH, 0, 3, False, False, BATCH, 0.01, prefill_s, joined))
        fixed_s = prefills.fixed_s
        off.append((fixed_s.value - FIXED_S) / fixed_s.se)

    assert sum(z * z for z in off) / len(off) == pytest.approx(1.0, rel=0.4)


def test_a_hundred_prefills_are_remembered_or_all() -> None:
    """Prompts that have become four times as long count alone on a live server, and with the others in a trace."""
    live, trace = Prefills(), Prefills(memory=1.0)
    for each_s in (EACH_S, 4 * EACH_S):
        for index in range(1000):
            joined = 1 + index % 3
            for prefills in (live, trace):
                step = StepRecord(BATCH, 0, 3, False, False, BATCH, 0.01, 5 * each_s + each_s * joined, joined)
                prefills.add(step)

    assert live.fixed_s.value == pytest.approx(20 * EACH_S, rel=0.01)
    assert trace.fixed_s.value == pytest.approx(12.5 * EACH_S, rel=0.01)
