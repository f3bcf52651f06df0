"""When an open loop sends: absolute schedules, drawn from a seed before the load starts.

A schedule never waits for the server, and lateness is never added to later arrivals: whoever sleeps between sends
drifts below the rate that was asked for. Times are seconds on the point's clock.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

import msgspec

from harness.api import PlannedRequest


def constant(rate: float) -> Iterator[float]:
    """Evenly spaced arrivals.

    Args:
        rate: requests per second.
    """
    index = 0
    while True:
        yield index / rate
        index += 1


def poisson(rate: float, seed: int) -> Iterator[float]:
    """Independent arrivals: exponential gaps."""
    return gamma(rate, 1.0, seed)


def gamma(rate: float, burstiness: float, seed: int) -> Iterator[float]:
    """Gamma-distributed gaps with the mean of `rate`.

    Args:
        rate: requests per second.
        burstiness: the gamma's shape, as vLLM calls it: 1 is Poisson, below 1 bursts, above 1 is more even.
        seed: of the draw.
    """
    draw = random.Random(seed)
    at = 0.0
    while True:
        at += draw.gammavariate(burstiness, 1 / (rate * burstiness))
        yield at


def ramp(start_rate: float, end_rate: float, duration_s: float, seed: int | None = None) -> Iterator[float]:
    """A rate that changes linearly over `duration_s`, and stays there.

    Args:
        start_rate, end_rate: requests per second.
        duration_s: seconds from one to the other.
        seed: draws Poisson arrivals; None spaces them evenly.
    """
    slope = (end_rate - start_rate) / duration_s
    ramped = (start_rate + end_rate) / 2 * duration_s
    # Unit arrivals, carried through the inverse of the rate's integral: exact for either kind.
    for count in constant(1.0) if seed is None else poisson(1.0, seed):
        if count > ramped:
            yield duration_s + (count - ramped) / end_rate
        elif slope == 0:
            yield count / start_rate
        else:
            yield ((start_rate**2 + 2 * slope * count) ** 0.5 - start_rate) / slope


def burst(rate: float, burst_rate: float, every_s: float, length_s: float, seed: int | None = None) -> Iterator[float]:
    """A base rate with regular bursts: each period of `every_s` ends with `length_s` at `burst_rate`.

    Args:
        rate, burst_rate: requests per second outside of bursts and inside.
        every_s: seconds from burst to burst.
        length_s: seconds of each burst.
        seed: draws Poisson arrivals; None spaces them evenly.
    """
    calm_s = every_s - length_s
    calm, period = rate * calm_s, rate * calm_s + burst_rate * length_s
    for count in constant(1.0) if seed is None else poisson(1.0, seed):
        cycles, rest = divmod(count, period)
        inside = rest / rate if rest < calm else calm_s + (rest - calm) / burst_rate
        yield cycles * every_s + inside


def scheduled(requests: Iterable[PlannedRequest], due: Iterable[float]) -> Iterator[PlannedRequest]:
    """The requests with their times; ends with the shorter of the two."""
    for planned, due_s in zip(requests, due, strict=False):
        yield msgspec.structs.replace(planned, due_s=due_s)
