"""A client process: its share of a point's requests, from connecting to the last record.

Started by harness.load as `python -m harness.load_worker`. Everything that can wait does: while requests are in
flight, reads are only stamped and stored, and parsed in slices of a fraction of a millisecond when the event loop is
not busy, or when more than its share of memory is unparsed. The collector is off.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvloop

from harness.api import API_PATHS, PlannedRequest
from harness.client import CONNECTION_ERRORS, StreamReader, make_record, read_on
from harness.load_plan import (
    Begin,
    ClientStats,
    Feed,
    Finished,
    FrameReader,
    Go,
    Need,
    Ready,
    Records,
    Stop,
    ToWorker,
    encode_frame,
)
from harness.records import RequestRecord
from harness.transport import Backlog, Exchange, Transport, make_transport, monotonic, request_url

UNPARSED_LIMIT_BYTES = 256 << 20  # over all workers of a point
MIN_QUEUED = 256  # requests kept ready, so that the parent may be late
_SLICE_S = 0.0004  # one slice of parsing: what it may add to a stamp
_PAUSE_S = 0.004
_QUIET_S = 0.001  # a loop later than this is busy
_READS_AT_ONCE = 32
_FLUSH_S = 0.5
_TICK_S = 0.01
_WATCH_S = 0.05
_BACKOFF_S = 0.2  # after a failure: a dead server must not be hammered
_DEAD_AFTER_S = 2.0


class Client:
    """One worker's requests.

    Args:
        begin: its part of the plan.
        send: takes messages for the parent.
    """

    def __init__(self, begin: Begin, send: Callable[[object], None]) -> None:
        plan = begin.plan
        self.begin = begin
        self.plan = plan
        self.backlog = Backlog()
        self.requests: deque[PlannedRequest] = deque()
        self.no_more_requests = False
        self._depth = max(MIN_QUEUED, 4 * len(begin.slots))
        self._asked = False
        self.in_flight: dict[Exchange, StreamReader] = {}
        self.stopped = False
        self.server_died = False
        self.dropped = 0
        self.on_fed: Callable[[], None] = lambda: None
        self.transport: Transport = make_transport(
            plan.transport, request_url(plan.url, API_PATHS[plan.api]), plan.headers
        )
        self._send = send
        self._finished: deque[tuple[Exchange, StreamReader]] = deque()
        self._outbox: list[RequestRecord] = []
        self._flushed_s = 0.0
        self._failing_since: float | None = None
        self._zero_s = 0.0
        self._limit = UNPARSED_LIMIT_BYTES * len(begin.slots) // plan.concurrency

    # -- the point's clock -------------------------------------------------------------------------------------------

    def start_clock(self, zero_s: float) -> None:
        self._zero_s = zero_s

    def now(self) -> float:
        return monotonic() - self._zero_s

    @property
    def window(self) -> tuple[float, float]:
        """Start and end on the point's clock."""
        return self.plan.warmup_s, self.plan.warmup_s + self.plan.duration_s

    # -- requests ----------------------------------------------------------------------------------------------------

    def submit(self, due_s: float, after: Callable[[Exchange], None]) -> None:
        """Send the next request.

        Args:
            due_s: when it should have been sent, on the monotonic clock.
            after: called when it is over.
        """
        exchange = Exchange(self.requests.popleft(), due_s, self.backlog)
        self.in_flight[exchange] = StreamReader(self.plan.api)
        self.ask()

        def done(exchange: Exchange) -> None:
            self._finished.append((exchange, self.in_flight.pop(exchange)))
            self._notice_death(exchange)
            after(exchange)

        self.transport.submit(exchange, done)

    def ask(self) -> None:
        """Ask the parent for requests, once per answer, when half of those kept ready are gone."""
        missing = self._depth - len(self.requests)
        if missing * 2 >= self._depth and not self._asked and not self.no_more_requests:
            self._asked = True
            self._send(Need(missing))

    def feed(self, message: Feed) -> None:
        self._asked = False
        self.requests.extend(message.requests)
        self.no_more_requests = message.last
        self.ask()
        self.on_fed()

    def finish(self, stats: ClientStats) -> None:
        """Parse and send what is left, and say good-bye."""
        self.parse_everything()
        self._send(Finished(stats, self.server_died, self.dropped))

    def cancel_all(self) -> None:
        for exchange in tuple(self.in_flight):
            self.transport.fail(exchange, "cancelled", "the point ended")

    def _notice_death(self, exchange: Exchange) -> None:
        if exchange.error not in CONNECTION_ERRORS:
            self._failing_since = None
        elif self._failing_since is None:
            self._failing_since = exchange.end_s
        elif exchange.error == "connect_failed" and exchange.end_s - self._failing_since > _DEAD_AFTER_S:
            self.server_died = self.stopped = True

    async def watch_timeouts(self) -> None:
        """Fail what is overdue. Streams are asked for their last token only when nothing else excuses them."""
        limits = self.plan.timeouts
        while True:
            await asyncio.sleep(_WATCH_S)
            now = monotonic()
            for exchange, stream in tuple(self.in_flight.items()):
                if exchange.connected_s is None:
                    overdue = "connect_timeout" if now - exchange.due_s > limits.connect_s else None
                else:
                    overdue = self._overdue(exchange, stream, now)
                if overdue is not None:
                    self.transport.fail(exchange, overdue, f"after {now - exchange.due_s:.3f} s")

    def _overdue(self, exchange: Exchange, stream: StreamReader, now: float) -> str | None:
        limits = self.plan.timeouts
        if now - exchange.due_s > limits.total_s:
            return "total_timeout"
        last = stream.last_token_s
        # Before anything is parsed nobody knows which of the two limits applies.
        allowed = min(limits.first_token_s, limits.chunk_s) if last is None else limits.chunk_s
        if now - (last or exchange.due_s) <= allowed:
            return None
        read_on(exchange, stream, len(exchange.reads))
        last = stream.last_token_s
        if last is None:
            return "first_token_timeout" if now - exchange.due_s > limits.first_token_s else None
        return "chunk_timeout" if now - last > limits.chunk_s else None

    # -- parsing -----------------------------------------------------------------------------------------------------

    async def parse_in_idle_time(self) -> None:
        while True:
            before = monotonic()
            await asyncio.sleep(_PAUSE_S)
            late_s = monotonic() - before - _PAUSE_S
            full = self.backlog.unparsed_bytes > self._limit
            if full or late_s < _QUIET_S:
                self.parse(_SLICE_S)
            while self.backlog.unparsed_bytes > self._limit:
                self.parse(_SLICE_S)
                if not self._finished:
                    self._parse_in_flight()
                await asyncio.sleep(0)

    def parse(self, budget_s: float) -> None:
        """Parse finished exchanges for about `budget_s` seconds."""
        until = monotonic() + budget_s
        while self._finished and monotonic() < until:
            exchange, stream = self._finished[0]
            if not read_on(exchange, stream, _READS_AT_ONCE):
                self._finished.popleft()
                begin = self.begin
                self._outbox.append(make_record(exchange, stream, begin.key, begin.attempt, begin.worker, self._zero_s))
        if self._outbox and monotonic() - self._flushed_s > _FLUSH_S:
            self.flush()

    def parse_everything(self) -> None:
        while self._finished:
            self.parse(1.0)
        self.flush()

    def flush(self) -> None:
        if self._outbox:
            self._send(Records(self._outbox))
        self._outbox = []
        self._flushed_s = monotonic()

    def _parse_in_flight(self) -> None:
        """Parse what long streams have brought so far."""
        for exchange, stream in self.in_flight.items():
            read_on(exchange, stream, _READS_AT_ONCE)


class ClosedLoop:
    """Keeps every slot busy: a slot whose request ends sends the next one at once."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.over = asyncio.Event()
        self.missing_s = 0.0
        self._waiting: list[float] = []  # since when each slot has had nothing to send
        self._tagged = 0  # in flight, started inside the window
        self._zero_s = 0.0
        client.on_fed = self._serve_waiting

    def start(self, zero_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._zero_s = zero_s
        spread_s = self.client.plan.warmup_s / 2
        offset_s = loop.time() - monotonic()
        for slot in self.client.begin.slots:
            due_s = zero_s + spread_s * slot / self.client.plan.concurrency
            loop.call_at(due_s + offset_s, self._next, due_s)
        _, end_s = self.client.window
        loop.call_at(zero_s + end_s + offset_s, self._check_over)
        loop.call_at(zero_s + end_s + self.client.plan.drain_s + offset_s, self.stop)

    def stop(self) -> None:
        self.client.stopped = True
        self.client.cancel_all()
        self._check_over()

    def _admits(self, now: float) -> bool:
        """Load is kept on until everything that started inside the window has ended, so that none of it ends in a
        server that is falling idle."""
        _, end_s = self.client.window
        return not self.client.stopped and (now - self._zero_s < end_s or self._tagged > 0)

    def _next(self, free_s: float) -> None:
        """Send a slot's next request; `free_s` is since when it could have been sent."""
        now = monotonic()
        if not self._admits(now):
            self._check_over()
        elif not self.client.requests:
            if not self.client.no_more_requests:
                self._waiting.append(now)
            self._check_over()
        else:
            start_s, end_s = self.client.window
            tagged = start_s <= free_s - self._zero_s < end_s
            self._tagged += tagged
            self.client.submit(free_s, self._after_tagged if tagged else self._after)

    def _after_tagged(self, exchange: Exchange) -> None:
        self._tagged -= 1
        self._after(exchange)

    def _after(self, exchange: Exchange) -> None:
        if exchange.error is None and exchange.status == 200:
            self._next(exchange.end_s)
        elif self._admits(monotonic()):
            asyncio.get_running_loop().call_later(_BACKOFF_S, lambda: self._next(monotonic()))
        else:
            self._check_over()

    def _serve_waiting(self) -> None:
        while self._waiting and (self.client.requests or self.client.no_more_requests):
            since = self._waiting.pop()
            now = monotonic()
            self.missing_s += now - since
            self._next(now)

    def _check_over(self) -> None:
        if not self.client.in_flight and (self._ended() or self.client.stopped or self.client.no_more_requests):
            self.over.set()

    def _ended(self) -> bool:
        return monotonic() - self._zero_s >= self.client.window[1]


class Gauge:
    """Event-loop lag and CPU of this process inside the window."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lags: list[float] = []
        self._cpu: list[tuple[float, float]] = []

    async def watch(self) -> None:
        start_s, end_s = self._client.window
        await asyncio.sleep(max(0.0, start_s - self._client.now()))
        self._mark()
        while self._client.now() < end_s:
            due = monotonic() + _TICK_S
            await asyncio.sleep(_TICK_S)
            self._lags.append(max(0.0, monotonic() - due))
        self._mark()

    def stats(self, missing_s: float) -> ClientStats:
        lags = sorted(self._lags) or [0.0]
        if len(self._cpu) == 1:
            self._mark()
        (wall_0, cpu_0), (wall_1, cpu_1) = self._cpu if len(self._cpu) == 2 else ((0.0, 0.0), (1.0, 0.0))
        return ClientStats(
            lag_p99_s=lags[min(len(lags) - 1, int(0.99 * len(lags)))],
            lag_max_s=lags[-1],
            cpu=(cpu_1 - cpu_0) / max(wall_1 - wall_0, 1e-9),
            peak_memory_bytes=_peak_memory_bytes(),
            missing_s=missing_s,
        )

    def _mark(self) -> None:
        self._cpu.append((monotonic(), time.process_time()))


def _peak_memory_bytes() -> int:
    """From /proc, because getrusage counts what the parent had before this program was loaded; 0 where unknown."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return 0
    lines = (line.split() for line in status.splitlines())
    return next((int(words[1]) * 1024 for words in lines if words and words[0] == "VmHWM:"), 0)


class Inbox(asyncio.Protocol):
    """Messages from the parent."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.begin: asyncio.Future[Begin] = loop.create_future()
        self.zero_s: asyncio.Future[float | None] = loop.create_future()  # None: stopped before it began
        self.client: Client | None = None
        self.stop: Callable[[], None] = self._stop_early
        self._frames = FrameReader(ToWorker)

    def data_received(self, data: bytes) -> None:
        for message in self._frames.feed(data):
            if isinstance(message, Begin):
                self.begin.set_result(message)
            elif isinstance(message, Go):
                self.zero_s.set_result(message.zero_s)
            elif isinstance(message, Stop):
                self.stop()
            elif self.client is not None:
                self.client.feed(message)

    def connection_lost(self, error: Exception | None) -> None:
        os._exit(1)  # the parent is gone: nobody wants the rest

    def _stop_early(self) -> None:
        if not self.zero_s.done():
            self.zero_s.set_result(None)


class Outbox(asyncio.Protocol):
    """The way to the parent."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()

    def connection_lost(self, error: Exception | None) -> None:
        self.closed.set()


async def work() -> None:
    """Run one point for the parent at the other end of standard input and output."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_crash)
    _, inbox = await loop.connect_read_pipe(Inbox, sys.stdin.buffer)
    out, outbox = await loop.connect_write_pipe(Outbox, sys.stdout.buffer)
    client = Client(await inbox.begin, lambda message: out.write(encode_frame(message)))
    inbox.client = client
    client.ask()
    try:
        await asyncio.wait_for(client.transport.open(len(client.begin.slots)), client.plan.timeouts.connect_s)
    except (OSError, TimeoutError) as error:
        out.write(encode_frame(Ready(str(error) or "connecting timed out")))
    else:
        out.write(encode_frame(Ready()))
        await _run(client, inbox)
    out.close()
    await outbox.closed.wait()


async def _run(client: Client, inbox: Inbox) -> None:
    zero_s = await inbox.zero_s
    gauge = Gauge(client)
    driver = ClosedLoop(client)
    if zero_s is not None:
        gc.collect()
        gc.freeze()
        gc.disable()
        inbox.stop = driver.stop
        client.start_clock(zero_s)
        driver.start(zero_s)
        jobs = (gauge.watch, client.watch_timeouts, client.parse_in_idle_time)
        helpers = [asyncio.create_task(job()) for job in jobs]
        await driver.over.wait()
        for helper in helpers:
            helper.cancel()
    client.finish(gauge.stats(driver.missing_s))
    await client.transport.close()


def _crash(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A callback or task that failed is a defect of this client: figures made after it would be worth nothing."""
    loop.default_exception_handler(context)
    os._exit(1)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to end
    uvloop.run(work())


if __name__ == "__main__":
    main()
