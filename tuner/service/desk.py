"""The service's end of heavy.py: one such process at most, one question at a time, each within a time limit.

The process is started when it is needed and ended when nothing was asked for a while, so an idle service is a small
one. Answers are kept until a file they rest on changes.
"""

from __future__ import annotations

import asyncio
import os
from asyncio.subprocess import PIPE, Process
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from harness.ourselves import environment, program
from tuner.service.refusal import Refusal
from tuner.service.runs import signature

PROGRAM = program("tuner.service.heavy")
IDLE_S = 20.0
LIMIT_S = 120.0
MAX_ANSWER_BYTES = 64 * 2**20
MAX_KEPT_BYTES = 8 * 2**20
# One thread each: pools for every core would only take memory here.
_THREADS = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


class _Answer(msgspec.Struct):
    ok: msgspec.Raw = msgspec.Raw()
    refused: str | None = None


class Desk:
    """Asks heavy.py.

    Args:
        environment: of the process.
    """

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = environment | _THREADS
        self._lock = asyncio.Lock()
        self._process: Process | None = None
        self._let_go: list[Process] = []  # told to end, and perhaps not ended yet
        self._idle: asyncio.TimerHandle | None = None
        self._kept: OrderedDict[tuple[Any, ...], bytes] = OrderedDict()
        self._decoder = msgspec.json.Decoder(_Answer)

    async def ask(self, what: str, folders: Sequence[Path], *more: str, keep: bool = True) -> bytes:
        """The answer, as JSON.

        Args:
            what: a key of heavy.WORK.
            folders: of the runs that it is about.
            more: further arguments.
            keep: whether an earlier answer about the same files will do.

        Raises:
            Refusal: it said no (409), took too long, or failed.
        """
        key = (what, *more, *((folder, signature(folder)) for folder in folders))
        question = msgspec.json.encode({"what": what, "arguments": [*map(str, folders), *more]}) + b"\n"
        async with self._lock:
            if keep and key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
            answer = await self._asked(question)
            if answer.refused is not None:
                raise Refusal(409, _shorter(answer.refused, folders))
            body = bytes(answer.ok)
            if keep:
                self._keep(key, body)
            return body

    async def close(self) -> None:
        """End the process, and any that was let go before and has not ended yet."""
        if self._idle is not None:
            self._idle.cancel()
        self._let_process_go()
        ended, self._let_go = self._let_go, []
        for process in ended:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _asked(self, question: bytes) -> _Answer:
        if self._idle is not None:
            self._idle.cancel()
        try:
            async with asyncio.timeout(LIMIT_S):
                process = await self._running()
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write(question)
                await process.stdin.drain()
                answer = self._decoder.decode(await process.stdout.readuntil(b"\n"))
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            await self.close()
            raise Refusal(500, "the run could not be worked on; the service's own log says why") from None
        except asyncio.CancelledError:  # its answer would be taken for the next question's
            await self.close()
            raise
        self._idle = asyncio.get_running_loop().call_later(IDLE_S, self._end_idle)
        return answer

    async def _running(self) -> Process:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                *PROGRAM,
                stdin=PIPE,
                stdout=PIPE,
                env=self._environment,
                limit=MAX_ANSWER_BYTES,
            )
        return self._process

    def _end_idle(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()  # the end of its input ends it
        self._let_process_go()

    def _let_process_go(self) -> None:
        self._let_go = [process for process in self._let_go if process.returncode is None]
        if self._process is not None:
            self._let_go.append(self._process)
        self._process = None

    def _keep(self, key: tuple[Any, ...], body: bytes) -> None:
        self._kept[key] = body
        while sum(map(len, self._kept.values())) > MAX_KEPT_BYTES:
            self._kept.popitem(last=False)


def child_environment() -> dict[str, str]:
    """Our environment for a process of ours: it finds our modules wherever it runs, and knows no key or token."""
    return {
        name: value
        for name, value in environment().items()
        if not name.startswith(("SPECPIVOT_TOKEN", "SPECPIVOT_API_KEY", "SPECPIVOT_ADMIN_API_KEY"))
    }


def _shorter(text: str, folders: Sequence[Path]) -> str:
    """Without the path to the results folder: whoever reads it knows runs by their names."""
    for folder in folders:
        text = text.replace(f"{folder.parent}{os.sep}", "")
    return text
