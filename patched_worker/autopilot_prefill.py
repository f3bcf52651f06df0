"""What speculation saves in prefills.

Requests that wait are prefilled together before the next decode step. A speculative step hands out more tokens, so
more requests end with it and more wait behind it: the same requests are prefilled in fewer batches, and the fixed part
of a prefill's time is paid less often. With short prompts that is half a percent of throughput, and moves the pivot by
5 %.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from patched_worker.steptrace import StepRecord

MEMORY = 0.99  # kept per prefill: prompts of another length make the old ones wrong, and a hundred are enough
LEAST_PREFILLS = 32.0


class Estimate(NamedTuple):
    """A value and its standard error."""

    value: float
    se: float


UNKNOWN = Estimate(0.0, 0.0)


class Prefills:
    """Regresses the seconds of a prefill on its requests, and counts requests per output token.

    Prompts differ in length, so a prefill of many requests scatters more: it is weighted by 1 / requests.

    Args:
        memory: kept per prefill.
    """

    def __init__(self, memory: float = MEMORY) -> None:
        self._memory = memory
        self._tokens = 0.0
        self._count = self._joined = self._seconds = 0.0
        self._weight = self._shares = self._squares = 0.0  # sums of 1, seconds and seconds squared, each / requests

    def add(self, record: StepRecord) -> None:
        """Take one decode step and the prefill before it."""
        self._tokens += record.tokens
        if not record.joined:
            return
        joined, seconds, memory = record.joined, record.prefill_s, self._memory
        self._tokens *= memory
        self._count = self._count * memory + 1
        self._joined = self._joined * memory + joined
        self._seconds = self._seconds * memory + seconds
        share = seconds / joined
        self._weight = self._weight * memory + 1.0 / joined
        self._shares = self._shares * memory + share
        self._squares = self._squares * memory + seconds * share

    @property
    def fixed_s(self) -> Estimate:
        """Seconds of a prefill that do not depend on how many requests are in it; 0 while that is not known."""
        count = self._count
        if count < LEAST_PREFILLS:
            return UNKNOWN
        joined, seconds = self._joined, self._seconds
        spread = self._weight * joined - count * count
        if spread <= 1e-9 * count * count:
            return UNKNOWN
        fixed_s = (self._shares * joined - count * seconds) / spread
        each_s = (self._weight * seconds - count * self._shares) / spread
        scatter = (self._squares - fixed_s * self._shares - each_s * seconds) / (count - 2.0)
        return Estimate(min(max(0.0, fixed_s), seconds / count), math.sqrt(max(0.0, scatter) * joined / spread))

    def saving(self, batch: float, accept_len: float, off_tok_per_s: float) -> Estimate:
        """Seconds per output token that prefills take less with speculation, as a share of a plain token's decode time.

        Args:
            accept_len: tokens per request and speculative step.
            off_tok_per_s: tokens per second of decode time at this batch without speculation.
        """
        if not self._tokens or accept_len <= 0.0:
            return UNKNOWN
        per_token, fixed_s = self._joined / self._tokens, self.fixed_s
        fewer = _batches(per_token * batch) - _batches(per_token * batch * accept_len)
        share = per_token * fewer * off_tok_per_s
        return Estimate(share * fixed_s.value, abs(share) * fixed_s.se)


def _batches(requests: float) -> float:
    """Prefill batches per request, where so many requests end in a step on average (Poisson)."""
    return -math.expm1(-requests) / requests if requests > 0.0 else 1.0
