"""How many tokens a speculative step brings: distributions over 1 to drafts + 1 with an exact mean.

Two kinds. "request": each request draws for itself, every draft is accepted with the same chance until the first
refusal (a truncated geometric law), as real text behaves. "batch": one draw for the whole batch, the integer below
or above the mean, as SGLANG_SIMULATE_ACC_LEN with SGLANG_SIMULATE_ACC_METHOD=match-expected does.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

AcceptanceKind = Literal["request", "batch"]
MAX_DRAFTS = 1024


class Acceptance(msgspec.Struct, frozen=True):
    """Mean accept length of a draft, the target's own token included.

    Attributes:
        mean_len: tokens per verify step with `num_steps` draft steps, from 1 to num_steps + 1.
        num_steps: draft steps at which mean_len was measured.
        kind: who draws, see the module.

    Raises:
        ValueError: mean_len outside 1 to num_steps + 1, or no such number of draft steps.
    """

    mean_len: float
    num_steps: int
    kind: AcceptanceKind = "request"

    def __post_init__(self) -> None:
        if not 1 <= self.num_steps <= MAX_DRAFTS:
            raise ValueError(f"num_steps is {self.num_steps}; give 1 to {MAX_DRAFTS} draft steps")
        if not 1 <= self.mean_len <= self.num_steps + 1:
            raise ValueError(
                f"mean_len is {self.mean_len}; with {self.num_steps} draft steps give 1 to {self.num_steps + 1}"
            )

    def probabilities(self, drafts: int) -> npt.NDArray[np.float64]:
        """Chance of bringing 1, 2, ... drafts + 1 tokens in a step of `drafts` draft steps."""
        if self.kind == "batch":
            return _two_point(min(self.mean_len, drafts + 1), drafts)
        chance = accept_chance(self.mean_len, self.num_steps)
        ends = [chance**i * (1 - chance) for i in range(drafts)]
        return np.array([*ends, chance**drafts])

    def mean_at(self, drafts: int) -> float:
        """Mean tokens of a step of `drafts` draft steps."""
        return float(self.probabilities(drafts) @ np.arange(1, drafts + 2))


def accept_chance(mean_len: float, num_steps: int) -> float:
    """The chance per draft a that gives 1 + a + ... + a**num_steps = mean_len tokens per step (by bisection)."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if math.fsum(middle**i for i in range(num_steps + 1)) < mean_len:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _two_point(mean_len: float, drafts: int) -> npt.NDArray[np.float64]:
    below = int(mean_len)
    chances = np.zeros(drafts + 2)
    chances[below - 1 : below + 1] = below + 1 - mean_len, mean_len - below
    return chances[: drafts + 1]
