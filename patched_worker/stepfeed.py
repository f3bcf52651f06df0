"""From the worker's steps to step records: one is passed on once its time and its tokens are both known.

With the overlap scheduler tokens come one step after the forward, and a step's time ends with the next call. A step
whose tokens never come (its requests were retracted) is dropped after a few others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from patched_worker.steptrace import StepRecord

OPEN_STEPS = 6  # that may wait for their tokens

Sink = Callable[[StepRecord], None]


class StepFeed:
    """See the module.

    Args:
        sinks: what is called with each record.
    """

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = tuple(sinks)
        self._open: deque[StepRecord] = deque()
        self._after_idle = True
        self._prefill_from_s: float | None = None
        self._joined = 0

    def begin(self, batch: int, context: int, flipped: bool, now_s: float) -> StepRecord:
        """A step begins; those before it that are complete are passed on."""
        self._pass_on()
        prefill_s = 0.0 if self._prefill_from_s is None else now_s - self._prefill_from_s
        step = StepRecord(batch, context, 0, flipped, self._after_idle, -1, -1.0, prefill_s, self._joined)
        self._open.append(step)
        self._prefill_from_s, self._joined, self._after_idle = None, 0, False
        return step

    def prefill(self, now_s: float, requests: int = 0) -> None:
        """A prefill of so many requests begins; one right after another goes on with a prompt that it had to cut."""
        self._joined += requests - 1 if self._joined and requests else requests
        if self._prefill_from_s is None:
            self._prefill_from_s = now_s

    def idle(self) -> None:
        """The server has nothing to do: what is complete is passed on."""
        self._pass_on()
        self._after_idle, self._prefill_from_s, self._joined = True, None, 0

    def _pass_on(self) -> None:
        steps = self._open
        while steps:
            step = steps[0]
            if step.tokens >= 0 and step.seconds >= 0.0:
                for sink in self._sinks:
                    sink(step)
            elif len(steps) <= OPEN_STEPS:
                return
            steps.popleft()
