"""A mock of a streaming LLM server, fast enough to calibrate a client: `python -m harness.mock`.

It generates nothing: each stream follows a timetable. Run it in a process of its own. The first part of a request's
path may name a mode of harness.mock_modes (http://HOST:PORT/abort/generate). GET /stamps tells when it really
wrote, by its own clock, which is what a client's figures are compared with; GET /reset forgets, GET /quit dies.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import cast

import msgspec
import uvloop

from harness.api import API_PATHS, Api
from harness.mock_modes import MODES
from harness.mock_stamps import Stamps
from harness.mock_streams import Ask, Step, Timing, plain
from harness.ourselves import environment, program
from harness.transport import monotonic

# What other load generators want to read before they start.
_ANSWERS: dict[str, bytes] = {
    "/health": b"{}",
    "/flush_cache": b"{}",
    "/v1/models": b'{"object":"list","data":[{"id":"mock","object":"model"}]}',
    "/server_info": b'{"internal_states":[{}]}',
    "/get_server_info": b'{"internal_states":[{}]}',
    "/model_info": b'{"model_path":"mock"}',
}
_DEFAULT_TOKENS = 128
_API_OF_PATH: dict[str, Api] = {path: api for api, path in API_PATHS.items()}


class Server:
    """All connections and one heap of due steps."""

    def __init__(self, timing: Timing) -> None:
        self.timing = timing
        self.stamps = Stamps()
        self._due: list[tuple[float, int, _Connection]] = []
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = float("inf")

    def at(self, due_s: float, connection: _Connection) -> None:
        self._count += 1
        heapq.heappush(self._due, (due_s, self._count, connection))
        if due_s < self._timer_s:
            self._arm(due_s)

    def _arm(self, due_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = due_s
        self._timer = asyncio.get_running_loop().call_later(max(0.0, due_s - monotonic()), self._run)

    def _run(self) -> None:
        self._timer, self._timer_s = None, 0.0  # nothing arms while this runs
        due = self._due
        until = monotonic() + 0.002  # then let the loop read new requests
        while due and due[0][0] <= monotonic() < until:
            heapq.heappop(due)[2].step()
        self._timer_s = float("inf")
        if due:
            self._arm(due[0][0])


class _Connection(asyncio.Protocol):
    def __init__(self, server: Server) -> None:
        self._server = server
        self._buffer = b""
        self._steps: Iterator[Step] | None = None
        self._next: bytes | None = None
        self._due_s = 0.0
        self._got_s = 0.0
        self._last_s: float | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's own class is none by inheritance
        transport.set_write_buffer_limits(high=0)  # uvloop then writes at once
        self._transport = transport
        self._fd = transport.get_extra_info("socket").fileno()

    def connection_lost(self, error: Exception | None) -> None:
        if self._steps is not None:
            self._server.stamps.disconnects += 1
            self._end()

    def data_received(self, data: bytes) -> None:
        self._buffer = self._buffer + data if self._buffer else data
        head, found, body = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        length = _content_length(head)
        if len(body) >= length:
            self._buffer = b""
            self._answer(head.split(b" ", 2)[1].decode(), body[:length])

    def _answer(self, path: str, body: bytes) -> None:
        stamps = self._server.stamps
        if path == "/stamps":
            self._reply(stamps.as_json())
        elif path == "/quit":
            os._exit(0)
        elif path == "/reset":
            stamps.reset()
            self._reply(b"{}")
        elif (known := _without_mode(path)) in _ANSWERS:
            self._reply(_ANSWERS[known])
        elif (asked := _ask(path, body)) is None:
            self._reply(b"{}", "404 Not Found")
        else:
            mode, ask = asked
            stamps.requests += 1
            if stamps.requests == 1:
                stamps.first_s = monotonic()
            stamps.in_flight += 1
            stamps.in_flight_max = max(stamps.in_flight, stamps.in_flight_max)
            self._steps = _steps(mode, ask, self._server.timing)
            self._got_s = self._due_s = monotonic()
            self._last_s = None
            self._advance()

    def _reply(self, body: bytes, status: str = "200 OK") -> None:
        head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        self._transport.write(head.encode() + body)

    def _advance(self) -> None:
        """Look up the stream's next step; those without delay are done by the same write."""
        assert self._steps is not None
        try:
            wait_s, self._next = next(self._steps)
        except StopIteration:
            self._end()
            return
        self._due_s += wait_s
        self._server.at(self._due_s, self)

    def step(self) -> None:
        if self._steps is None:
            return  # the client has gone
        if self._next is None:
            self._steps = None
            self._server.stamps.in_flight -= 1
            self._transport.close()
            return
        self._stamp()
        self._write(self._next)
        self._advance()

    def _write(self, data: bytes) -> None:
        """By the bare system call where nothing is buffered: half of what a write through the transport costs."""
        if not self._transport.get_write_buffer_size():
            with suppress(BlockingIOError, ConnectionError):
                data = data[os.write(self._fd, data) :]
        if data:
            self._transport.write(data)

    def _stamp(self) -> None:
        now = monotonic()
        stamps = self._server.stamps
        if self._last_s is None:
            stamps.ttft_s.append(now - self._got_s)
        elif self._next is not None and b"data: [DONE]" not in self._next:
            stamps.gap_s.append(now - self._last_s)
        self._last_s = stamps.last_s = now

    def _end(self) -> None:
        self._steps = None
        self._server.stamps.in_flight -= 1


@lru_cache(maxsize=16)
def _recorded(ask: Ask, timing: Timing) -> tuple[Step, ...]:
    return tuple(plain(ask, timing))


def _steps(mode: str, ask: Ask, timing: Timing) -> Iterator[Step]:
    return iter(_recorded(ask, timing)) if mode == "plain" else MODES[mode](ask, timing)


def _without_mode(path: str) -> str:
    first, _, rest = path[1:].partition("/")
    return f"/{rest}" if first in MODES else path


def _ask(path: str, body: bytes) -> tuple[str, Ask] | None:
    """(mode, what was asked for), or None for a path that is neither."""
    first = path[1:].partition("/")[0]
    mode = first if first in MODES else "plain"
    api = _API_OF_PATH.get(_without_mode(path))
    if api is None:
        return None
    asked = msgspec.json.decode(body)
    if api == "generate":
        prompt = asked.get("input_ids") or asked["text"]
        limit = asked["sampling_params"]["max_new_tokens"]
    else:
        prompt = asked.get("prompt") or " ".join(str(message["content"]) for message in asked["messages"])
        limit = asked.get("max_tokens") or asked.get("max_completion_tokens") or _DEFAULT_TOKENS
    return mode, Ask(api, len(prompt.split() if isinstance(prompt, str) else prompt), limit)


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            return int(value)
    return 0


@contextmanager
def running_mock(timing: Timing = Timing(), core: int | None = None) -> Iterator[str]:  # noqa: B008 - frozen
    """A mock server in a process of its own, for as long as the block lasts; yields its base URL.

    Args:
        timing: its timetable.
        core: the CPU to bind it to.
    """
    options = [
        *("--ttft", str(timing.ttft_s), "--gap", str(timing.gap_s)),
        *("--tokens-per-chunk", str(timing.tokens_per_chunk), "--padding", str(timing.padding_bytes)),
    ]
    process = subprocess.Popen(
        [*program("harness.mock"), *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    try:
        if core is not None:
            os.sched_setaffinity(process.pid, {core})
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.communicate()


async def _serve(timing: Timing, port: int) -> None:
    server = Server(timing)
    loop = asyncio.get_running_loop()
    listening = await loop.create_server(lambda: _Connection(server), "127.0.0.1", port, backlog=4096)
    print(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", flush=True)
    await listening.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description="mock LLM server with a timetable, on 127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one, which the first line tells")
    parser.add_argument("--ttft", type=float, default=Timing().ttft_s, help="seconds to the first chunk")
    parser.add_argument("--gap", type=float, default=Timing().gap_s, help="seconds between chunks")
    parser.add_argument("--tokens-per-chunk", type=int, default=Timing().tokens_per_chunk)
    parser.add_argument("--padding", type=int, default=Timing().padding_bytes, help="bytes added to each event")
    options = parser.parse_args()
    timing = Timing(options.ttft, options.gap, options.tokens_per_chunk, options.padding)
    uvloop.run(_serve(timing, options.port))


if __name__ == "__main__":
    main()
