"""Flipped blocks: within the budget, framed, alike on every rank."""

from __future__ import annotations

import pytest

from patched_worker.switchback import BINS, SETTLE_STEPS, Plan, Switchback, bin_of, block_steps

KNOWN = Plan(64, 59, near_low=1, near_high=0, thin=0)
NOTHING_KNOWN = Plan(64, 59)


def flips(plan: Plan, batches: list[int], on: bool = True, seed: int = 0) -> list[bool]:
    """Which steps are flipped."""
    switchback = Switchback(seed)
    return [switchback.flips(batch, on, plan) for batch in batches]


def runs(flags: list[bool]) -> list[tuple[bool, int]]:
    """Lengths of equal neighbours."""
    found: list[tuple[bool, int]] = []
    for flag in flags:
        if found and found[-1][0] == flag:
            found[-1] = (flag, found[-1][1] + 1)
        else:
            found.append((flag, 1))
    return found


@pytest.mark.parametrize(("batch", "place"), [(1, 0), (2, 2), (3, 3), (8, 6), (64, 12), (256, 16), (100_000, BINS - 1)])
def test_half_octaves(batch: int, place: int) -> None:
    """Powers of two lie two apart, and nothing lies beyond the last."""
    assert bin_of(batch) == place


@pytest.mark.parametrize("batch", [1, 16, 64, 256])
def test_known_ground_costs_at_most_two_percent(batch: int) -> None:
    """And is still looked at."""
    share = sum(flips(KNOWN, [batch] * 50_000)) / 50_000

    assert 0.005 < share <= 0.02


def test_thin_knowledge_is_measured_often_but_not_for_ever() -> None:
    """A load that never lets a comparison succeed must not cost more than the allowance."""
    flags = flips(NOTHING_KNOWN, [64] * 50_000)

    assert sum(flags[:500]) > 50
    assert sum(flags) < 1024 + 0.02 * 50_000


def test_blocks_have_their_length_and_a_frame() -> None:
    """A, B and A again are long enough to compare, from the first block on."""
    found = runs(flips(NOTHING_KNOWN, [64] * 500))

    assert all(length == block_steps(64) for flag, length in found[1:-1] if flag)
    assert all(length >= block_steps(64) > SETTLE_STEPS for flag, length in found[:-1] if not flag)


def test_distances_between_blocks_vary() -> None:
    """A load that has a rhythm cannot fall into step with them."""
    found = [length for flag, length in runs(flips(KNOWN, [64] * 50_000)) if not flag]

    assert len(set(found)) > 20


def test_a_block_ends_when_the_batch_runs_away_or_the_policy_changes_its_mind() -> None:
    """The other state at another batch is not what was to be measured."""
    switchback = Switchback()
    while not switchback.flips(64, True, NOTHING_KNOWN):
        pass
    assert switchback.flips(64, True, NOTHING_KNOWN)
    assert not switchback.flips(100, True, NOTHING_KNOWN)

    switchback = Switchback()
    while not switchback.flips(64, True, NOTHING_KNOWN):
        pass
    assert not switchback.flips(65, False, NOTHING_KNOWN)


def test_ranks_flip_alike_and_seeds_differ() -> None:
    """The same batches give the same blocks on every rank."""
    batches = [16 + index // 100 % 90 for index in range(5000)]

    assert flips(NOTHING_KNOWN, batches) == flips(NOTHING_KNOWN, batches)
    assert flips(NOTHING_KNOWN, batches, seed=1) != flips(NOTHING_KNOWN, batches)


def test_a_plan_travels_as_numbers() -> None:
    """Whole numbers only, and all of it."""
    plan = Plan(24, 22, 20, 30, 0b1011)

    assert Plan(*plan.numbers()) == plan
    assert all(isinstance(number, int) for number in plan.numbers())
