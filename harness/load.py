"""A point's load: client processes that share C exactly, from connecting to the last record.

The workers are started, connected and filled with requests before the point's clock starts, and each keeps its own
slots busy: nothing central stands between the end of one request and the start of the next. This process only hands
out requests ahead of need and takes in records. Ctrl-C, or a stop event, ends the point early and keeps what there is.
"""

from __future__ import annotations

import contextlib
import os
import queue
import resource
import threading
from collections.abc import Callable, Iterator, Sequence

import msgspec

from harness.api import PlannedRequest
from harness.errors import UserError
from harness.load_plan import (
    Begin,
    ClientStats,
    Finished,
    Go,
    LoadPlan,
    Need,
    Ready,
    Records,
    Stop,
    ToParent,
)
from harness.load_process import STOP_S, Hand, Inbox, WorkerProcess
from harness.records import PointKey, RequestRecord
from harness.transport import monotonic

STREAMS_PER_WORKER = 64
FILES_BESIDE_STREAMS = 64
_START_S = 30.0  # for a worker to start and connect
_HEAD_START_S = 0.05  # between the go and the clock's zero

OnRecords = Callable[[Sequence[RequestRecord]], None]
OnProgress = Callable[[float], None]


class LoadResult(msgspec.Struct, frozen=True):
    """How a point's load went; its requests went to `on_records`.

    Attributes:
        window_start_s, window_end_s: the measuring window on the point's clock; cut short where it was interrupted.
        zero_s: the point clock's zero on the monotonic clock; 0 where it never started.
        client: the worst of the client processes, each in its own figure.
        workers: how many there were.
        interrupted: stopped before its end.
        server_died: the server stopped accepting connections.
        dropped: requests of an open loop that were not sent because too many were in flight.
        detail: why it did not run to its end.
    """

    window_start_s: float
    window_end_s: float
    zero_s: float = 0.0
    client: ClientStats = ClientStats()
    workers: int = 1
    interrupted: bool = False
    server_died: bool = False
    dropped: int = 0
    detail: str = ""


class WorkerCrashed(RuntimeError):
    """A client process ended without its last message; what it wrote to standard error says why."""


def run_closed_loop(
    plan: LoadPlan,
    requests: Iterator[PlannedRequest],
    key: PointKey,
    attempt: int,
    on_records: OnRecords,
    on_progress: OnProgress | None = None,
    stop: threading.Event | None = None,
) -> LoadResult:
    """Keep `plan.concurrency` requests in flight for a window's length; blocks until the last has ended.

    Args:
        plan: the load.
        requests: what to send, in order; may be endless.
        key: the point that the records belong to.
        attempt: which measurement of the point, from 1.
        on_records: gets records about twice a second, in this thread; each finished request exactly once.
        on_progress: gets the time on the point's clock, in seconds, several times a second.
        stop: set it to end the point early, as Ctrl-C does.

    Raises:
        UserError: the limit on open files is too small.
        WorkerCrashed: a client process crashed.
    """
    begins = _begins(plan, key, attempt, open_loop=False)
    return _run(begins, requests, on_records, on_progress, stop)


def run_open_loop(
    plan: LoadPlan,
    requests: Iterator[PlannedRequest],
    key: PointKey,
    attempt: int,
    on_records: OnRecords,
    on_progress: OnProgress | None = None,
    stop: threading.Event | None = None,
) -> LoadResult:
    """Send each request at its `due_s`, whatever the server does; blocks until the last has ended.

    Args and errors are those of `run_closed_loop`; `plan.concurrency` bounds what is in flight (see `drop_after_s`),
    and a request belongs to the window by when it was due.
    """
    begins = _begins(plan, key, attempt, open_loop=True)
    return _run(begins, requests, on_records, on_progress, stop)


def _begins(plan: LoadPlan, key: PointKey, attempt: int, open_loop: bool) -> list[Begin]:
    count = worker_count(plan)
    shares = [tuple(range(number, plan.concurrency, count)) for number in range(count)]
    return [Begin(plan, key, attempt, number, slots, open_loop) for number, slots in enumerate(shares)]


def _run(
    begins: list[Begin],
    requests: Iterator[PlannedRequest],
    on_records: OnRecords,
    on_progress: OnProgress | None,
    stop: threading.Event | None,
) -> LoadResult:
    require_open_files(max(len(begin.slots) for begin in begins))
    with contextlib.ExitStack() as stack:
        hand = Hand(requests, len(begins))
        point = _Point(begins[0].plan, hand, on_records, on_progress, stop or threading.Event())
        for begin in begins:
            point.workers.append(stack.enter_context(WorkerProcess(begin, point.inbox)))
        return point.run()


def worker_count(plan: LoadPlan) -> int:
    """How many client processes share the load: at most half of the cores, for the server may be on them too."""
    if plan.workers:
        return min(plan.workers, plan.concurrency)
    wanted = -(-plan.concurrency // STREAMS_PER_WORKER)
    return max(1, min(wanted, len(os.sched_getaffinity(0)) // 2))


def require_open_files(streams: int) -> None:
    """Raise this process's limit on open files, which its workers inherit, to what `streams` per process need.

    Raises:
        UserError: the hard limit is smaller.
    """
    needed = streams + FILES_BESIDE_STREAMS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            raise UserError(f"the limit on open files is {hard}, this load needs {needed}; raise it with `ulimit -n`")
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def require_files_for(concurrency: int, workers: int = 0) -> None:
    """`require_open_files` for a load that is yet to come.

    Args:
        concurrency: its requests in flight.
        workers: client processes; 0 chooses.

    Raises:
        UserError: the hard limit is smaller.
    """
    require_open_files(-(-concurrency // worker_count(LoadPlan("", concurrency=concurrency, workers=workers))))


class _Point:
    """One point as the parent sees it."""

    def __init__(
        self,
        plan: LoadPlan,
        hand: Hand,
        on_records: OnRecords,
        on_progress: OnProgress | None,
        stop: threading.Event,
    ) -> None:
        self.workers: list[WorkerProcess] = []
        self.inbox: Inbox = queue.SimpleQueue()
        self._plan = plan
        self._hand = hand
        self._on_records = on_records
        self._on_progress = on_progress
        self._stop = stop
        self._zero_s: float | None = None
        self._stopped_s: float | None = None

    def run(self) -> LoadResult:
        deadline = monotonic() + _START_S
        while not all(worker.finished for worker in self.workers):
            try:
                self._turn()
            except KeyboardInterrupt:
                if self._stopped_s is not None:
                    raise  # a second Ctrl-C: now
                self._stop.set()
            if self._stop.is_set() and self._stopped_s is None:
                self._tell_stop()
            failed = next((w.ready.error for w in self.workers if w.ready and w.ready.error), None)
            if failed is not None:
                return self._result(server_died=True, detail=failed)
            if self._zero_s is None and monotonic() > deadline:
                raise WorkerCrashed(f"no client process was ready within {_START_S:.0f} s")
            if self._stopped_s is not None and monotonic() - self._stopped_s > STOP_S:
                return self._result(detail="a client process did not stop in time")
        return self._result()

    def _turn(self) -> None:
        with contextlib.suppress(queue.Empty):
            number, message = self.inbox.get(timeout=0.1)
            self._handle(self.workers[number], message)
        if self._on_progress is not None and self._zero_s is not None:
            self._on_progress(monotonic() - self._zero_s)

    def _handle(self, worker: WorkerProcess, message: ToParent | None) -> None:
        if isinstance(message, Records):
            self._on_records(message.records)
        elif isinstance(message, Need):
            worker.send(self._hand.feed(worker.number, message.count))
        elif isinstance(message, Ready):
            worker.ready = message
            if all(w.ready and not w.ready.error for w in self.workers) and self._stopped_s is None:
                self._zero_s = monotonic() + _HEAD_START_S
                for each in self.workers:
                    each.send(Go(self._zero_s))
        elif isinstance(message, Finished):
            worker.finished = message
        elif worker.finished is None and not (worker.ready and worker.ready.error):
            raise WorkerCrashed(f"client process {worker.number} ended before its work was done")

    def _tell_stop(self) -> None:
        self._stopped_s = monotonic()
        for worker in self.workers:
            worker.send(Stop())

    def _result(self, server_died: bool = False, detail: str = "") -> LoadResult:
        start_s = self._plan.warmup_s
        end_s = start_s + self._plan.duration_s
        done = [worker.finished for worker in self.workers if worker.finished is not None]
        server_died = server_died or any(finished.server_died for finished in done)
        if self._stopped_s is not None or server_died:
            reached_s = monotonic() - self._zero_s if self._zero_s is not None else 0.0
            if self._stopped_s is not None and self._zero_s is not None:
                reached_s = self._stopped_s - self._zero_s
            end_s = min(end_s, max(start_s, reached_s))
        return LoadResult(
            window_start_s=start_s,
            window_end_s=end_s,
            zero_s=self._zero_s or 0.0,
            client=_worst([finished.stats for finished in done]),
            workers=len(self.workers),
            interrupted=self._stopped_s is not None,
            server_died=server_died,
            dropped=sum(finished.dropped for finished in done),
            detail=detail,
        )


def _worst(stats: list[ClientStats]) -> ClientStats:
    """The largest value of each figure over the client processes."""
    if not stats:
        return ClientStats()
    names = ClientStats.__struct_fields__
    return ClientStats(**{name: max(getattr(each, name) for each in stats) for name in names})
