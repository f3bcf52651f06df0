"""The requests of one client process: sent, watched, and parsed when there is time.

While requests are in flight, reads are only stamped and stored. They are parsed in slices of a fraction of a
millisecond when the event loop is not busy, or when more than this process's share of memory is unparsed.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

from harness.api import API_PATHS, PlannedRequest
from harness.client import CONNECTION_ERRORS, make_record, read_on
from harness.load_plan import Begin, ClientStats, Feed, Finished, Need, Records
from harness.records import RequestRecord
from harness.secrets import sent_in
from harness.stream import StreamReader
from harness.transport import Backlog, Exchange, Transport, make_transport, monotonic, request_url

UNPARSED_LIMIT_BYTES = 256 << 20  # over all workers of a point
MIN_QUEUED = 256  # requests kept ready, so that the parent may be late
_SLICE_S = 0.0004  # one slice of parsing: what it may add to a stamp
_PAUSE_S = 0.005
_QUIET_S = 0.001  # a loop later than this is busy
_READS_AT_ONCE = 32
_FLUSH_S = 0.5
_FLUSH_RECORDS = 128  # streams that end together must not fill the parent's memory together
_WATCH_S = 0.2  # timeouts are seconds
_GATHER_S = 0.0005
_GATHER_FROM_PER_S = 3000
_ENOUGH_READS = 64
_RATE_OVER_S = 0.02
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
        self._secrets = sent_in(plan.headers)
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

    def drop(self) -> None:
        """Leave the next request out."""
        self.requests.popleft()
        self.dropped += 1
        self.ask()

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

    # -- reading -----------------------------------------------------------------------------------------------------

    async def gather_reads(self) -> None:
        """Let reads gather for a moment while thousands come each second.

        To fall asleep and wake up for each read costs more than the read itself, as network cards know. The pause is
        far below what is measured, the same for all variants, and left out when the loop has enough to do anyway.
        """
        while True:
            reads, since_s = self.backlog.reads, monotonic()
            await asyncio.sleep(_RATE_OVER_S)
            while self.backlog.reads - reads > _GATHER_FROM_PER_S * (monotonic() - since_s):
                reads, since_s = self.backlog.reads, monotonic()
                while monotonic() - since_s < _RATE_OVER_S:
                    before = self.backlog.reads
                    await asyncio.sleep(0)  # one turn of the loop, which reads what has come
                    if self.backlog.reads - before < _ENOUGH_READS:
                        time.sleep(_GATHER_S)  # noqa: ASYNC251 - the loop must not wake up; that is the point

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
                record = make_record(
                    exchange, stream, begin.key, begin.attempt, begin.worker, self._zero_s, self._secrets
                )
                self._outbox.append(record)
                if len(self._outbox) >= _FLUSH_RECORDS:
                    self.flush()
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
