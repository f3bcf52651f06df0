"""When a step runs in the other state than the policy's own, so that the same traffic measures both.

Short blocks of flipped steps, each framed by steps in the policy's state: as A B A they cancel what drifts. Where
knowledge is thin or both states are worth about the same, blocks come often; elsewhere at most 2 % of steps are
flipped. Where a block begins is drawn from a hash of its number, so load that has a rhythm cannot fall into step with
it. All of it depends on the batches, the number of steps and the plan alone: every tensor-parallel rank flips alike.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass

THIN_RATE = 0.25  # credit per step where knowledge is thin; a block costs 1 to 2 times its length
NEAR_RATE = 0.03
FAR_RATE = 0.015
THIN_STEPS = 1024  # flipped steps that thin knowledge may cost at once ...
THIN_REFILL = 0.01  # ... and per step later on
SETTLE_STEPS = 2  # of a block, not measured: the switch itself, and steps that were in the pipeline
BATCH_TOLERANCE = 0.25  # a block ends when its batch has changed by more than this share
BINS = 27  # half octaves, up to 8192 requests
_BINS_UP_TO = 512
_MASK = (1 << 64) - 1


def bin_of(batch: int) -> int:
    """The half octave of a batch: 0 for 1, 2 for 2, 6 for 8."""
    return _BIN_TABLE[batch] if batch < _BINS_UP_TO else min(BINS - 1, round(2 * math.log2(batch)))


_BIN_TABLE = [0, *(round(2 * math.log2(batch)) for batch in range(1, _BINS_UP_TO))]


def block_steps(batch: int) -> int:
    """Length of a flipped block: the larger the batch, the more one step tells, and the more it costs."""
    if batch >= 128:
        return SETTLE_STEPS + 4
    if batch >= 32:
        return SETTLE_STEPS + 6
    return SETTLE_STEPS + (10 if batch >= 8 else 14)


@dataclass(frozen=True, slots=True)
class Plan:
    """What the leading rank decides and all ranks follow, in whole numbers.

    Attributes:
        threshold, resume_at: see `patched_worker.policy`.
        near_low, near_high: batches at which both states are worth about the same; low > high: none.
        thin: bit i is set where half octave i needs more evidence.
    """

    threshold: int
    resume_at: int
    near_low: int = 1
    near_high: int = 0
    thin: int = (1 << BINS) - 1

    def numbers(self) -> list[int]:
        """The plan as it travels between ranks."""
        return list(astuple(self))


class Switchback:
    """Chooses the flipped steps.

    Args:
        seed: of the blocks' places; the same on every rank.
    """

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._blocks = 0
        self._thin_left = float(THIN_STEPS)
        self._due = 0.0
        self._credit = 0.0
        self._length = 0
        self.reset()

    def reset(self) -> None:
        """The server fell idle or the policy changed: a block does not go on after that."""
        self._left = 0
        self._base = False
        self._steady = 0  # steps in the policy's state since anything changed
        self._low, self._high = 0.0, 0.0

    def flips(self, batch: int, on: bool, plan: Plan) -> bool:
        """Whether this step runs in the other state.

        Args:
            batch: requests in it.
            on: whether the policy would speculate.
        """
        if self._left:
            if on == self._base and self._low <= batch <= self._high:
                self._left -= 1
                return True
            self._left = self._steady = 0
        if on != self._base:
            self._base, self._steady = on, 0
        self._steady += 1
        if self._thin_left < THIN_STEPS:
            self._thin_left += THIN_REFILL
        thin = plan.thin >> bin_of(batch) & 1 and self._thin_left > 0
        self._credit += THIN_RATE if thin else NEAR_RATE if plan.near_low <= batch <= plan.near_high else FAR_RATE
        if self._credit < self._due:
            return False
        length = block_steps(batch)
        if self._steady <= length or self._credit < length:
            return False
        return self._start(batch, length, bool(thin))

    def _start(self, batch: int, length: int, thin: bool) -> bool:
        if thin:
            self._thin_left -= length
        self._blocks += 1
        self._credit = 0.0
        self._due = length * (1.0 + _fraction(self._seed, self._blocks))
        self._left, self._steady = length - 1, 0
        self._low, self._high = batch * (1 - BATCH_TOLERANCE), batch * (1 + BATCH_TOLERANCE)
        return True


def _fraction(seed: int, number: int) -> float:
    """A number from 0 to 1 that is the same on every rank (splitmix64)."""
    mixed = (seed * 0x9E3779B97F4A7C15 + number * 0xD1B54A32D192ED03) & _MASK
    mixed = ((mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ mixed >> 27) * 0x94D049BB133111EB) & _MASK
    return (mixed ^ mixed >> 31) / 2.0**64
