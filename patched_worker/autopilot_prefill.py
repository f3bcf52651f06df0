"""What speculation saves in prefills.

Requests that wait are prefilled together before the next decode step. A speculative step hands out more tokens, so
more requests end with it and more wait behind it: the same requests are prefilled in fewer batches, and the fixed part
of a prefill's time is paid less often. With short prompts that is half a percent of throughput, and moves the pivot by
5 %.
"""

from __future__ import annotations

import math

from patched_worker.steptrace import StepRecord

MEMORY = 0.99  # kept per prefill: prompts of another length make the old ones wrong, and a hundred are enough
LEAST_PREFILLS = 32.0


class Prefills:
    """Regresses the seconds of a prefill on its requests, and counts requests per output token."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._count = self._joined = self._seconds = self._squares = self._products = 0.0

    def add(self, record: StepRecord) -> None:
        """Take one decode step and the prefill before it."""
        self._tokens += record.tokens
        if not record.joined:
            return
        joined, seconds = record.joined, record.prefill_s
        self._tokens *= MEMORY
        self._count = self._count * MEMORY + 1
        self._joined = self._joined * MEMORY + joined
        self._seconds = self._seconds * MEMORY + seconds
        self._squares = self._squares * MEMORY + joined * joined
        self._products = self._products * MEMORY + joined * seconds

    @property
    def fixed_s(self) -> float:
        """Seconds of a prefill that do not depend on how many requests are in it; 0 while that is not known."""
        if self._count < LEAST_PREFILLS:
            return 0.0
        joined, seconds = self._joined / self._count, self._seconds / self._count
        spread = self._squares / self._count - joined * joined
        if spread <= 0.0:
            return 0.0
        slope = (self._products / self._count - joined * seconds) / spread
        return min(max(0.0, seconds - max(0.0, slope) * joined), seconds)

    def saving(self, batch: float, accept_len: float, off_tok_per_s: float) -> float:
        """Seconds per output token that prefills take less with speculation, as a share of a plain token's decode time.

        Args:
            accept_len: tokens per request and speculative step.
            off_tok_per_s: tokens per second of decode time at this batch without speculation.
        """
        if not self._tokens or accept_len <= 0.0:
            return 0.0
        per_token = self._joined / self._tokens
        fewer = _batches(per_token * batch) - _batches(per_token * batch * accept_len)
        return per_token * self.fixed_s * fewer * off_tok_per_s


def _batches(requests: float) -> float:
    """Prefill batches per request, where so many requests end in a step on average (Poisson)."""
    return -math.expm1(-requests) / requests if requests > 0.0 else 1.0
