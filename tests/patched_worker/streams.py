"""Synthetic decode steps for the autopilot's tests: a machine whose pivot is known, under any load."""

from __future__ import annotations

import random
from collections.abc import Callable

from patched_worker.autopilot import Autopilot
from patched_worker.steptrace import StepRecord

DRAFTS = 3


def plain_s(batch: int) -> float:
    """Seconds of a plain step."""
    return 0.005 + 0.00003 * batch


def speculative_s(batch: int) -> float:
    """Seconds of a speculative step: with 2 tokens per step it pays up to a batch of 50."""
    return 0.007 + 0.00012 * batch


PIVOT = 50  # 2.0 * plain_s(50) == speculative_s(50)


class Machine:
    """Runs an autopilot step by step.

    Args:
        pilot: what decides.
        accept_len: mean tokens per request and speculative step.
        noise: relative standard deviation of a step's time.
        seed: of noise and acceptance.
    """

    def __init__(self, pilot: Autopilot, accept_len: float = 2.0, noise: float = 0.02, seed: int = 0) -> None:
        self.pilot = pilot
        self.accept_len = accept_len
        self.noise = noise
        self.seconds = 0.0
        self.tokens = 0
        self._random = random.Random(seed)

    def run(self, steps: int, batch: Callable[[int], int], on_factor: float = 1.0) -> None:
        """Decode; `batch` gives the batch of a step, `on_factor` stretches speculative steps."""
        for index in range(steps):
            size = batch(index)
            drafts = self.pilot.decide(size, 256 * size)
            seconds = speculative_s(size) * on_factor if drafts else plain_s(size)
            seconds *= 1 + self.noise * self._random.gauss(0, 1)
            tokens = self._tokens(size) if drafts else size
            self.seconds += seconds
            self.tokens += tokens
            self.pilot.observe(StepRecord(size, 256 * size, drafts, self.pilot.flipped, False, tokens, seconds, 0.0))

    def _tokens(self, size: int) -> int:
        spread = (size * (self.accept_len - 1) * 0.8) ** 0.5
        tokens = round(size * self.accept_len + spread * self._random.gauss(0, 1))
        return min(max(tokens, size), size * (DRAFTS + 1))


def around(middle: int, seed: int = 0) -> Callable[[int], int]:
    """A batch that wanders slowly between half and twice `middle`."""
    source = random.Random(seed)
    path: list[int] = []
    octave = 0.0

    def batch(index: int) -> int:
        nonlocal octave
        while len(path) <= index:
            octave = min(1.0, max(-1.0, octave + source.gauss(0, 0.02)))
            path.append(max(1, round(middle * 2**octave)))
        return path[index]

    return batch
