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
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvloop

from harness.load_client import Client
from harness.load_loops import ClosedLoop, OpenLoop
from harness.load_plan import (
    Begin,
    ClientStats,
    FrameReader,
    Go,
    Ready,
    Stop,
    ToWorker,
    encode_frame,
)
from harness.transport import monotonic

_TICK_S = 0.01


class Gauge:
    """Event-loop lag and CPU of this process inside the window."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lags = array("d")  # a hundred a second, for as long as the point is: bytes count
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
    driver = OpenLoop(client) if client.begin.open_loop else ClosedLoop(client)
    if zero_s is not None:
        gc.collect()
        gc.freeze()
        gc.disable()
        inbox.stop = driver.stop
        client.start_clock(zero_s)
        driver.start(zero_s)
        jobs = (gauge.watch, client.watch_timeouts, client.parse_in_idle_time, client.gather_reads)
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
