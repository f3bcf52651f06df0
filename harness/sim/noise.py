"""Disturbance of step times, to exercise the statistics: white noise per step and a slow drift.

Both are lognormal with mean 1, so that noise blurs a preset without shifting it.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np


class Noise(msgspec.Struct, frozen=True):
    """How step times scatter.

    Attributes:
        step_sigma: standard deviation of the log of each step's factor.
        drift_sigma: standard deviation of the log of the slow factor.
        drift_time_s: simulated seconds over which the slow factor forgets itself (an AR(1) process in time).

    Raises:
        ValueError: a negative sigma, or a drift time that is not greater than 0.
    """

    step_sigma: float = 0.0
    drift_sigma: float = 0.0
    drift_time_s: float = 30.0

    def __post_init__(self) -> None:
        if self.step_sigma < 0 or self.drift_sigma < 0 or self.drift_time_s <= 0:
            raise ValueError(f"{self}: give sigmas of 0 or more and a drift time greater than 0")


NO_NOISE = Noise()


class Disturbance:
    """The noise of one engine: call `factor` once per step."""

    def __init__(self, noise: Noise, rng: np.random.Generator) -> None:
        self.noise = noise
        self._rng = rng
        self._drift = rng.standard_normal() if noise.drift_sigma else 0.0

    def factor(self, seconds: float) -> float:
        """What to multiply a step of `seconds` by."""
        noise, log_factor = self.noise, 0.0
        if noise.step_sigma:
            log_factor += noise.step_sigma * self._rng.standard_normal() - noise.step_sigma**2 / 2
        if noise.drift_sigma:
            keep = math.exp(-seconds / noise.drift_time_s)
            self._drift = keep * self._drift + math.sqrt(1 - keep**2) * self._rng.standard_normal()
            log_factor += noise.drift_sigma * self._drift - noise.drift_sigma**2 / 2
        return math.exp(log_factor)
