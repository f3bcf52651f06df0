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
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import msgspec

from harness.api import PlannedRequest
from harness.errors import UserError
from harness.load_plan import (
    Begin,
    ClientStats,
    Feed,
    Finished,
    FrameReader,
    Go,
    LoadPlan,
    Need,
    Ready,
    Records,
    Stop,
    ToParent,
    encode_frame,
)
from harness.records import PointKey, RequestRecord
from harness.transport import monotonic

STREAMS_PER_WORKER = 64
FILES_BESIDE_STREAMS = 64
_START_S = 30.0  # for a worker to start and connect
_HEAD_START_S = 0.05  # between the go and the clock's zero
_STOP_S = 15.0  # for a stopped worker to send what it has
_FEED_BYTES = 4 << 20

OnRecords = Callable[[Sequence[RequestRecord]], None]
OnProgress = Callable[[float], None]


class LoadResult(msgspec.Struct, frozen=True):
    """How a point's load went; its requests went to `on_records`.

    Attributes:
        window_start_s, window_end_s: the measuring window on the point's clock; cut short where it was interrupted.
        client: the worst of the client processes, each in its own figure.
        workers: how many there were.
        interrupted: stopped before its end.
        server_died: the server stopped accepting connections.
        dropped: requests of an open loop that were not sent because too many were in flight.
        detail: why it did not run to its end.
    """

    window_start_s: float
    window_end_s: float
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
    count = worker_count(plan)
    require_open_files(-(-plan.concurrency // count))
    with contextlib.ExitStack() as stack:
        point = _Point(plan, requests, on_records, on_progress, stop or threading.Event())
        for number in range(count):
            slots = tuple(range(number, plan.concurrency, count))
            begin = Begin(plan=plan, key=key, attempt=attempt, worker=number, slots=slots)
            point.workers.append(stack.enter_context(_Worker(begin, point.inbox)))
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


class _Worker:
    """One client process and the thread that reads from it."""

    def __init__(self, begin: Begin, inbox: queue.SimpleQueue[tuple[int, ToParent | None]]) -> None:
        self.number = begin.worker
        self.finished: Finished | None = None
        self.ready: Ready | None = None
        self._inbox = inbox
        root = str(Path(__file__).resolve().parent.parent)
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        # Standard streams only, a session of its own: Ctrl-C reaches this process alone, which then asks for the rest.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "harness.load_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env=os.environ | {"PYTHONPATH": path},
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        self.send(begin)

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *exc_info: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()  # a worker that is still there ends with it
        try:
            self._process.wait(_STOP_S if self.finished else 1.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._thread.join()
        self._process.stdout.close()

    def send(self, message: object) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the reader thread notices the end
            self._process.stdin.write(encode_frame(message))
            self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        frames = FrameReader(ToParent)
        while data := os.read(self._process.stdout.fileno(), 1 << 20):
            for message in frames.feed(data):
                self._inbox.put((self.number, message))
        self._inbox.put((self.number, None))


class _Point:
    """One point as the parent sees it."""

    def __init__(
        self,
        plan: LoadPlan,
        requests: Iterator[PlannedRequest],
        on_records: OnRecords,
        on_progress: OnProgress | None,
        stop: threading.Event,
    ) -> None:
        self.workers: list[_Worker] = []
        self.inbox: queue.SimpleQueue[tuple[int, ToParent | None]] = queue.SimpleQueue()
        self._plan = plan
        self._requests = requests
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
            if self._stopped_s is not None and monotonic() - self._stopped_s > _STOP_S:
                return self._result(detail="a client process did not stop in time")
        return self._result()

    def _turn(self) -> None:
        with contextlib.suppress(queue.Empty):
            number, message = self.inbox.get(timeout=0.1)
            self._handle(self.workers[number], message)
        if self._on_progress is not None and self._zero_s is not None:
            self._on_progress(monotonic() - self._zero_s)

    def _handle(self, worker: _Worker, message: ToParent | None) -> None:
        if isinstance(message, Records):
            self._on_records(message.records)
        elif isinstance(message, Need):
            worker.send(self._next_feed(message.count))
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

    def _next_feed(self, count: int) -> Feed:
        batch: list[PlannedRequest] = []
        size = 0
        for planned in islice(self._requests, count):
            batch.append(planned)
            size += len(planned.body)
            if size > _FEED_BYTES:
                return Feed(batch)
        return Feed(batch, last=len(batch) < count)

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
