"""What a point's load is, what its workers tell of it, and how the processes talk.

Messages are msgpack in frames of a four-byte length: parent to worker on standard input, worker to parent on
standard output.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import msgspec

from harness.api import Api, PlannedRequest
from harness.crowd import Crowd
from harness.records import PointKey, RequestRecord
from harness.transport import TransportName


class Timeouts(msgspec.Struct, frozen=True):
    """When a request is given up, in seconds."""

    connect_s: float = 5.0
    first_token_s: float = 120.0
    chunk_s: float = 60.0
    total_s: float = 900.0


class LoadPlan(msgspec.Struct, frozen=True):
    """The load of one point.

    Attributes:
        url: the server's base URL, with a path prefix where it has one.
        concurrency: requests in flight, in a closed loop; the most in flight in an open one.
        warmup_s: load before the measuring window; requests start one by one over its first half.
        duration_s: length of the measuring window.
        drain_s: how long to wait for requests in flight after it.
        drop_after_s: an open loop drops what it could not send so long after its time; None never drops, 0 drops
            whatever would have to wait.
        workers: client processes; 0 chooses.
        crowd: how many of `concurrency` users are there at which second, in a closed loop; () is all of them.
    """

    url: str
    api: Api = "generate"
    headers: dict[str, str] = {}
    concurrency: int = 1
    warmup_s: float = 3.0
    duration_s: float = 20.0
    drain_s: float = 120.0
    timeouts: Timeouts = Timeouts()
    workers: int = 0
    transport: TransportName = "auto"
    drop_after_s: float | None = None
    crowd: Crowd = ()


class ClientStats(msgspec.Struct, frozen=True):
    """What a client process measured of itself inside the window.

    Attributes:
        lag_p99_s: how late the event loop ran a 10 ms timer.
        cpu: share of one core.
        peak_memory_bytes: of the process, over its life.
        missing_s: slot-seconds that had no request to send.
    """

    lag_p99_s: float = 0.0
    lag_max_s: float = 0.0
    cpu: float = 0.0
    peak_memory_bytes: int = 0
    missing_s: float = 0.0


class Begin(msgspec.Struct, frozen=True, tag=True):
    """First message to a worker: its part of the plan."""

    plan: LoadPlan
    key: PointKey
    attempt: int
    worker: int
    slots: tuple[int, ...]  # which of the point's `concurrency` slots are this worker's
    open_loop: bool = False


class Feed(msgspec.Struct, frozen=True, tag=True):
    """The next requests to send; `last` when the list has ended."""

    requests: list[PlannedRequest]
    last: bool = False


class Need(msgspec.Struct, frozen=True, tag=True):
    """A worker asks for more requests, well before it runs out."""

    count: int


class Go(msgspec.Struct, frozen=True, tag=True):
    """The point clock's zero, on the monotonic clock."""

    zero_s: float


class Stop(msgspec.Struct, frozen=True, tag=True):
    """End the point now: what is in flight is cancelled and recorded as such."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The worker's connections are open; `error` says why they are not."""

    error: str | None = None


class Records(msgspec.Struct, frozen=True, tag=True):
    records: list[RequestRecord]


class Finished(msgspec.Struct, frozen=True, tag=True):
    """The worker's last message."""

    stats: ClientStats
    server_died: bool = False
    dropped: int = 0


ToWorker = Begin | Feed | Go | Stop
ToParent = Ready | Need | Records | Finished

_LENGTH = struct.Struct(">I")
_encoder = msgspec.msgpack.Encoder()


def encode_frame(message: Any) -> bytes:
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


class FrameReader:
    """Cuts a byte stream into the frames that `encode_frame` made."""

    def __init__(self, kind: Any) -> None:
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(kind)
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Any]:
        self._buffer += data
        at = 0
        while len(self._buffer) - at >= 4:
            (length,) = _LENGTH.unpack_from(self._buffer, at)
            if len(self._buffer) - at - 4 < length:
                break
            yield self._decoder.decode(self._buffer[at + 4 : at + 4 + length])
            at += 4 + length
        del self._buffer[:at]
