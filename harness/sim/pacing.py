"""The engine on a real clock: each step's tokens leave when the step would have ended.

Simulated time runs `time_scale` times as fast as the wall clock. Steps are scheduled on an absolute time line, so
that late timers do not add up: a loop that wakes late runs the steps it owes at once. Only where it falls behind by
more than MAX_LAG_S (this machine cannot write that fast) does simulated time stand still; how long it did is kept,
because what was measured meanwhile is too slow.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from harness.sim.engine import Engine
from harness.sim.progress import Request, Step

MAX_LAG_S = 0.25  # of the wall clock


class Clock:
    """Simulated seconds since the server started.

    Args:
        time_scale: simulated seconds per second of the wall clock.
    """

    def __init__(self, time_scale: float) -> None:
        self.time_scale = time_scale
        self.slipped_s = 0.0  # wall seconds for which simulated time stood still
        self._origin = time.monotonic()

    def now_s(self) -> float:
        return (time.monotonic() - self._origin) * self.time_scale

    def wait_s(self, at_s: float) -> float:
        """Wall seconds from now until the simulated time `at_s`, negative when that has passed."""
        return at_s / self.time_scale + self._origin - time.monotonic()

    def slip(self, lag_s: float) -> None:
        """Stand still for the `lag_s` wall seconds that just passed."""
        self._origin += lag_s
        self.slipped_s += lag_s


class Pacer:
    """Runs an engine for a server.

    Args:
        engine: what to run.
        clock: at which pace.
        deliver: called with each step when it ends.
    """

    def __init__(self, engine: Engine, clock: Clock, deliver: Callable[[Step], None]) -> None:
        self._engine, self._clock, self._deliver = engine, clock, deliver
        self._work = asyncio.Event()

    def submit(self, request: Request) -> None:
        """Queue a request that has just arrived.

        Raises:
            UserError: it can never be served.
        """
        self._engine.submit(request)
        self._work.set()

    async def run(self) -> None:
        """Step for ever; waits where there is nothing to do."""
        while True:
            ready_s = self._engine.ready_s
            if ready_s is None:
                self._engine.step()  # tells the gate that the server is idle
                self._work.clear()
                await self._work.wait()
                continue
            if (early_s := self._clock.wait_s(ready_s)) > 0:
                await asyncio.sleep(early_s)
            step = self._engine.step()
            if step is not None:
                await self._until(step.end_s)
                self._deliver(step)

    async def _until(self, at_s: float) -> None:
        wait_s = self._clock.wait_s(at_s)
        if wait_s < -MAX_LAG_S:
            self._clock.slip(-wait_s)
        await asyncio.sleep(max(wait_s, 0.0))
