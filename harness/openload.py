"""The requests of an open loop: what is sent, and when it is due.

A request rate, a ramp, bursts or a recorded trace become a workload whose requests carry their times. Times depend on
the seed, never on the server.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

from harness.api import PlannedRequest
from harness.arrivals import burst, constant, gamma, ramp, scheduled
from harness.errors import UserError
from harness.records import Workload
from harness.traces import TraceRow, read_trace, replay
from harness.workload import WorkloadPlan

Arrival = Literal["constant", "poisson", "gamma"]


class Arrivals(msgspec.Struct, frozen=True, kw_only=True):
    """When requests arrive: by one of rate, ramp, burst and trace; by none of them in a closed loop.

    Attributes:
        rate: requests per second.
        arrival: how they are spread; "gamma" needs a rate.
        burstiness: shape of the gamma, as vLLM's: 1 is Poisson, below 1 bursts, above 1 is more even.
        ramp: requests per second at first and at last, and the seconds between.
        burst: requests per second outside of bursts and inside, seconds from burst to burst, seconds of each.
        trace: a file that harness.traces reads; its lengths are sent, and its times divided by trace_speedup.
    """

    rate: float | None = None
    arrival: Arrival = "poisson"
    burstiness: float = 1.0
    ramp: tuple[float, float, float] | None = None
    burst: tuple[float, float, float, float] | None = None
    trace: str | None = None
    trace_speedup: float = 1.0

    @property
    def open_loop(self) -> bool:
        return any(each is not None for each in (self.rate, self.ramp, self.burst, self.trace))

    @property
    def trace_s(self) -> float | None:
        """Seconds from the trace's first arrival until just after its last; None without a trace.

        Raises:
            UserError: it cannot be read.
        """
        return None if self.trace is None else _rows(self.trace, self.trace_speedup)[-1].at_s + 1e-3

    def due_s(self, seed: int) -> Iterator[float]:
        """When each request is due, in seconds on the point's clock; without end."""
        even = None if self.arrival == "constant" else seed
        if self.ramp is not None:
            return ramp(*self.ramp, seed=even)
        if self.burst is not None:
            return burst(*self.burst, seed=even)
        assert self.rate is not None
        return constant(self.rate) if self.arrival == "constant" else gamma(self.rate, self.burstiness, seed)


class TimedWorkload(WorkloadPlan, frozen=True):
    """A workload whose requests carry the times of `arrivals`."""

    arrivals: Arrivals = Arrivals()

    def requests(self, concurrency: int, repeat: int) -> Iterator[PlannedRequest]:
        if self.arrivals.trace is not None:
            return replay(_rows(self.arrivals.trace, self.arrivals.trace_speedup), self, repeat)
        planned = super().requests(concurrency, repeat)
        return scheduled(planned, self.arrivals.due_s(self.seed)) if self.arrivals.open_loop else planned

    def describe(self, concurrency: Sequence[int], repeats: int) -> Workload:
        said = super().describe(concurrency, repeats)
        if self.arrivals.trace is None:
            return said
        return msgspec.structs.replace(
            said, dataset=self.arrivals.trace, input_tokens=None, output_tokens=None, range_ratio=None
        )

    @property
    def shares_prefix(self) -> bool:
        trace = self.arrivals.trace
        blocks = trace is not None and any(row.blocks for row in _rows(trace, self.arrivals.trace_speedup))
        return blocks or super().shares_prefix


def check_arrivals(arrivals: Arrivals) -> None:
    """Refuse what cannot be a load.

    Raises:
        UserError: naming the flag and what it may be.
    """
    given = [each for each in (arrivals.rate, arrivals.ramp, arrivals.burst, arrivals.trace) if each is not None]
    if len(given) > 1:
        raise UserError("give only one of --request-rate, --ramp, --burst and --trace")
    for complaint, is_bad in _COMPLAINTS.items():
        if is_bad(arrivals):
            raise UserError(complaint)


def _positive(*values: float) -> bool:
    return all(math.isfinite(value) and value > 0 for value in values)


_COMPLAINTS: dict[str, Callable[[Arrivals], bool]] = {
    "--request-rate: give requests per second, above 0": lambda a: a.rate is not None and not _positive(a.rate),
    "--burstiness: give a number above 0; 1 is Poisson": lambda a: not _positive(a.burstiness),
    "--burstiness needs --request-rate and --arrival gamma": lambda a: (
        a.burstiness != 1 and (a.rate is None or a.arrival != "gamma")
    ),
    "--arrival gamma needs --request-rate; ramps and bursts are constant or poisson": lambda a: (
        a.arrival == "gamma" and a.rate is None
    ),
    "--ramp A,B,SECONDS: give A of 0 or more, B and SECONDS above 0": lambda a: (
        a.ramp is not None and not (_positive(*a.ramp[1:]) and (a.ramp[0] == 0 or _positive(a.ramp[0])))
    ),
    "--burst RATE,BURST_RATE,EVERY_S,LENGTH_S: give RATE of 0 or more, the rest above 0, LENGTH_S below EVERY_S": (
        lambda a: (
            a.burst is not None
            and not (_positive(*a.burst[1:]) and a.burst[3] < a.burst[2] and (a.burst[0] == 0 or _positive(a.burst[0])))
        )
    ),
    "--trace-speedup: give a number above 0": lambda a: not _positive(a.trace_speedup),
    "--trace-speedup needs --trace": lambda a: a.trace_speedup != 1 and a.trace is None,
}


@cache
def _rows(path: str, speedup: float) -> list[TraceRow]:
    return read_trace(Path(path), speedup)
