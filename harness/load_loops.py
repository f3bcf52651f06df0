"""When a client process sends: a closed loop that keeps its slots busy, or an open loop that keeps to a schedule.

Both keep the load on after the measuring window until everything that belongs to the window has ended, so that none
of it ends in a server that is falling idle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from harness.crowd import joins, users_at
from harness.load_client import Client
from harness.transport import Exchange, monotonic

_BACKOFF_S = 0.2  # after a failure: a dead server must not be hammered
_EARLY_S = 0.0005  # timers are whole milliseconds
_JOINING_S = 0.002  # who comes at this moment counts as there


class _Loop:
    """What both have in common: the window, and when the point is over."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.over = asyncio.Event()
        self.missing_s = 0.0
        self._tagged = 0  # in flight, belonging to the window
        self._zero_s = 0.0
        self._loop = asyncio.get_running_loop()

    def start(self, zero_s: float) -> None:
        self._zero_s = zero_s
        _, end_s = self.client.window
        self._at(zero_s + end_s, self._check_over)
        self._at(zero_s + end_s + self.client.plan.drain_s, self.stop)

    def stop(self) -> None:
        """End now: what is in flight is cancelled."""
        self.client.stopped = True
        self.client.cancel_all()
        self._check_over()

    def _at(self, moment_s: float, call: Callable[..., object], *arguments: object) -> None:
        self._loop.call_later(max(0.0, moment_s - monotonic()), call, *arguments)

    def _submit(self, due_s: float, belongs_s: float) -> None:
        """Send the next request.

        Args:
            due_s: its start, on the monotonic clock.
            belongs_s: the moment that decides whether it belongs to the window.
        """
        start_s, end_s = self.client.window
        tagged = start_s <= belongs_s - self._zero_s < end_s
        self._tagged += tagged
        self.client.submit(due_s, self._after_tagged if tagged else self._after)

    def _after_tagged(self, exchange: Exchange) -> None:
        self._tagged -= 1
        self._after(exchange)

    def _after(self, exchange: Exchange) -> None:
        raise NotImplementedError

    def _admits(self) -> bool:
        _, end_s = self.client.window
        return not self.client.stopped and (monotonic() - self._zero_s < end_s or self._tagged > 0)

    def _check_over(self) -> None:
        if not self.client.in_flight and (not self._admits() or self._exhausted()):
            self.over.set()

    def _exhausted(self) -> bool:
        return self.client.no_more_requests and not self.client.requests


class ClosedLoop(_Loop):
    """Keeps every slot busy: a slot whose request ends sends the next one at once. With a crowd, only as many slots as
    there are users."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self._waiting: list[float] = []  # since when each slot has had nothing to send
        self._users = 0  # of a crowd, that have come and not left
        client.on_fed = self._serve_waiting

    def start(self, zero_s: float) -> None:
        super().start(zero_s)
        crowd, spread_s = self.client.plan.crowd, self.client.plan.warmup_s / 2
        for slot in self.client.begin.slots:
            if crowd:
                for at_s in joins(crowd, slot):
                    self._at(zero_s + at_s, self._join, zero_s + at_s)
                continue
            due_s = zero_s + spread_s * slot / self.client.plan.concurrency
            self._at(due_s, self._next, due_s)

    def _join(self, due_s: float) -> None:
        """A user comes, unless one who was to leave is still there."""
        if self._users < self._wanted():
            self._users += 1
            self._next(due_s)

    def _wanted(self) -> int:
        there = users_at(self.client.plan.crowd, monotonic() - self._zero_s + _JOINING_S)
        return sum(slot < there for slot in self.client.begin.slots)

    def _next(self, free_s: float) -> None:
        """Send a slot's next request; `free_s` is since when it could have been sent."""
        if not self._admits() or self._exhausted():
            self._check_over()
        elif not self.client.requests:
            self._waiting.append(monotonic())
        else:
            self._submit(free_s, free_s)

    def _after(self, exchange: Exchange) -> None:
        if self.client.plan.crowd and self._users > self._wanted():
            self._users -= 1
            self._check_over()
        elif exchange.error is None and exchange.status == 200:
            self._next(exchange.end_s)
        elif self._admits():
            self._loop.call_later(_BACKOFF_S, lambda: self._next(monotonic()))
        else:
            self._check_over()

    def _serve_waiting(self) -> None:
        while self._waiting and (self.client.requests or self.client.no_more_requests):
            now = monotonic()
            self.missing_s += now - self._waiting.pop()
            self._next(now)


class OpenLoop(_Loop):
    """Sends each request at its time, whatever the server does, as long as no more than this process's share of
    `concurrency` is in flight; beyond that requests wait, or are dropped once they are `drop_after_s` late."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self._timer: asyncio.TimerHandle | None = None
        client.on_fed = self._serve

    def start(self, zero_s: float) -> None:
        super().start(zero_s)
        self._serve()

    def _serve(self) -> None:
        """Send everything that is due, and set the timer for the next."""
        if self._zero_s == 0.0:
            return  # fed before the clock started
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self.client.requests and self._admits():
            due_s = self._zero_s + (self.client.requests[0].due_s or 0.0)
            now = monotonic()
            if due_s > now + _EARLY_S:
                self._timer = self._loop.call_later(due_s - now, self._serve)
                return
            if not self._send_or_drop(due_s, now):
                return
        self._check_over()

    def _admits(self) -> bool:
        """What was due inside the window is sent, however late."""
        if self.client.stopped or super()._admits():
            return not self.client.stopped
        _, end_s = self.client.window
        if not self.client.requests:
            return not self.client.no_more_requests  # the parent's answer will tell
        return (self.client.requests[0].due_s or 0.0) < end_s

    def _send_or_drop(self, due_s: float, now: float) -> bool:
        """False where the request has to wait for one in flight to end."""
        limit_s = self.client.plan.drop_after_s
        free = len(self.client.in_flight) < len(self.client.begin.slots)
        if not free and limit_s != 0:
            return False
        # With a limit of 0 nothing waits for others, so what is late here is late by this machine's fault: send it.
        if not free or (limit_s and now - due_s > limit_s):
            self.client.drop()
        else:
            self._submit(now, due_s)
        return True

    def _after(self, exchange: Exchange) -> None:
        self._loop.call_soon(self._serve)
        self._check_over()
