"""Server-sent events: what changed, to whoever listens, with a bounded memory for those who come back.

An event's id names this life of the service and counts up. Who comes back with an id that is still remembered gets
what it missed; anyone else is told to `reset`, that is to fetch everything anew. A listener that reads too slowly is
cut off, and comes back.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Literal

import msgspec

Kind = Literal["job", "server", "run"]
HISTORY = 512
PENDING = 256
BEAT_S = 15.0
MAX_LISTENERS = 100


class Listener:
    """One connection's events, in order."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[bytes | None] = asyncio.Queue(PENDING)
        self.behind = False

    def put(self, event: bytes) -> None:
        try:
            self.queue.put_nowait(event)
        except asyncio.QueueFull:
            self.behind = True


class Hub:
    """Passes events on."""

    def __init__(self) -> None:
        self._life = f"{time.time_ns() // 1_000_000:x}"
        self._count = 0
        self._history: deque[tuple[int, bytes]] = deque(maxlen=HISTORY)
        self.listeners: set[Listener] = set()
        self.closed = False

    def publish(self, kind: Kind, document: msgspec.Struct) -> None:
        """Tell everybody."""
        self._pass_on(kind, msgspec.json.encode(document).decode())

    def _pass_on(self, kind: str, data: str) -> None:
        self._count += 1
        event = f"id: {self._life}-{self._count}\nevent: {kind}\ndata: {data}\n\n".encode()
        self._history.append((self._count, event))
        for listener in self.listeners:
            listener.put(event)

    def reset(self) -> None:
        """Let everybody fetch everything anew: something is gone, which no event can show."""
        self._pass_on("reset", "{}")

    @contextmanager
    def _listening(self) -> Iterator[Listener]:
        listener = Listener()
        self.listeners.add(listener)
        try:
            yield listener
        finally:
            self.listeners.discard(listener)

    def missed(self, last_id: str | None) -> list[bytes]:
        """What someone who saw `last_id` last has to be told first."""
        if last_id is None:
            return []
        life, _, number = last_id.partition("-")
        seen = int(number) if number.isascii() and number.isdigit() and len(number) < 20 else -1
        oldest = self._history[0][0] if self._history else self._count + 1
        if life != self._life or not oldest - 1 <= seen <= self._count:
            return [f"id: {self._life}-{self._count}\nevent: reset\ndata: {{}}\n\n".encode()]
        return [event for count, event in self._history if count > seen]

    def close(self) -> None:
        """Let every stream end."""
        self.closed = True
        for listener in self.listeners:
            if listener.queue.empty():
                listener.queue.put_nowait(None)

    async def stream(self, last_id: str | None) -> AsyncIterator[bytes]:
        """Everything for one connection, with a comment now and then that shows it is alive."""
        missed = self.missed(last_id)
        with self._listening() as listener:  # no await since `missed`: nothing falls between, nothing comes twice
            yield b"retry: 2000\n\n" + b"".join(missed)
            while not (listener.behind or self.closed):
                try:
                    async with asyncio.timeout(BEAT_S):
                        event = await listener.queue.get()
                except TimeoutError:
                    event = b": still here\n\n"
                if event is None:
                    return
                yield event
