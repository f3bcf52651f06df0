"""The parent's end of a client process, and the hand that deals requests out."""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import threading
from collections import deque
from collections.abc import Iterator

from harness.api import PlannedRequest
from harness.load_plan import Begin, Feed, Finished, FrameReader, Ready, ToParent, encode_frame
from harness.ourselves import environment, program

STOP_S = 15.0  # for a worker that was told to stop, to send what it has
_FEED_BYTES = 4 << 20

Inbox = queue.SimpleQueue[tuple[int, ToParent | None]]


class WorkerProcess:
    """One client process and the thread that reads from it."""

    def __init__(self, begin: Begin, inbox: Inbox) -> None:
        self.number = begin.worker
        self.finished: Finished | None = None
        self.ready: Ready | None = None
        self._inbox = inbox
        # Standard streams only, a session of its own: Ctrl-C reaches this process alone, which then asks for the rest.
        self._process = subprocess.Popen(
            program("harness.load_worker"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env=environment(),
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        self.send(begin)

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, *exc_info: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()  # a worker that is still there ends with it
        try:
            self._process.wait(STOP_S if self.finished else 1.0)
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


class Hand:
    """Deals the requests out in turn, so that which worker sends which does not depend on timing."""

    def __init__(self, requests: Iterator[PlannedRequest], workers: int) -> None:
        self._requests = requests
        self._dealt: list[deque[PlannedRequest]] = [deque() for _ in range(workers)]
        self._turn = 0
        self._ended = False

    def feed(self, worker: int, count: int) -> Feed:
        """At most `count` more requests for a worker, fewer where they are large."""
        own = self._dealt[worker]
        batch: list[PlannedRequest] = []
        size = 0
        while len(batch) < count and size < _FEED_BYTES:
            while not own and not self._ended:
                self._deal()
            if not own:
                return Feed(batch, last=True)
            batch.append(own.popleft())
            size += len(batch[-1].body)
        return Feed(batch)

    def _deal(self) -> None:
        planned = next(self._requests, None)
        if planned is None:
            self._ended = True
            return
        self._dealt[self._turn].append(planned)
        self._turn = (self._turn + 1) % len(self._dealt)
