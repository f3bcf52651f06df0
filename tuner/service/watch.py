"""Looks at every registered server again and again: a task and a thread for each, so that none waits for another."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec

from harness.proof import identity
from tuner.service.answers import Autopilot, Server
from tuner.service.asked import NewServer
from tuner.service.audit import Audit
from tuner.service.look import Seen, Told, judged, look, unseen
from tuner.service.refusal import Refusal
from tuner.service.registry import MAX_SERVERS, Registry, endpoint
from tuner.service.workerblock import block_of

logger = logging.getLogger(__name__)

EVERY_S = 2.0


class Watch:
    """What is known of each registered server now.

    Args:
        registry: the servers.
        job_on: the job that runs on a server, by the server's name.
        changed: told of a server that is not as it was.
        audit: where the autopilots' moves are noted.
        every_s: from the end of one look to the beginning of the next.
    """

    def __init__(
        self,
        registry: Registry,
        job_on: Callable[[str], str | None],
        changed: Callable[[Server], None],
        audit: Audit,
        every_s: float = EVERY_S,
    ) -> None:
        self._job_on = job_on
        self._changed = changed
        self._audit = audit
        self._every_s = every_s
        # As many threads as servers: one that hangs must not keep another one waiting. They start when they are needed.
        self._threads = ThreadPoolExecutor(MAX_SERVERS, thread_name_prefix="look")
        self._told: dict[str, Told] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        for server in registry.all():
            self.add(server)

    def add(self, server: NewServer) -> None:
        """Begin to watch a server."""
        self._told[server.name] = unseen(server.name, endpoint(server).public_url, time.time())
        self._tasks[server.name] = asyncio.get_running_loop().create_task(self._watch(server))

    def remove(self, name: str) -> None:
        """Watch it no more."""
        self._told.pop(name, None)
        task = self._tasks.pop(name, None)
        if task is not None:
            task.cancel()

    def all(self) -> list[Server]:
        """Every server, by name."""
        return [self._told[name].server for name in sorted(self._told)]

    def get(self, name: str) -> Server:
        """One server.

        Raises:
            Refusal: there is none.
        """
        if name not in self._told:
            raise Refusal(404, f"there is no server {name[:100]}; register it with POST /api/v1/servers")
        return self._told[name].server

    def job_changed(self, name: str) -> None:
        """Show that a job began or ended on a server."""
        told = self._told.get(name)
        if told is not None:
            self._put(name, msgspec.structs.replace(told, server=_with_job(told.server, self._job_on(name))))

    def show_autopilot(self, name: str, held: Autopilot) -> Server:
        """Show what was read back from a server's autopilot, before the next look does."""
        told = self._told[name]
        autopilot = msgspec.structs.replace(held, last_move=told.server.autopilot.last_move)
        self._put(name, msgspec.structs.replace(told, server=msgspec.structs.replace(told.server, autopilot=autopilot)))
        return self._told[name].server

    async def close(self) -> None:
        """Watch nothing any more."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _watch(self, server: NewServer) -> None:
        loop, where = asyncio.get_running_loop(), endpoint(server)
        while True:
            quietly = self._job_on(server.name) is not None
            try:
                seen = await loop.run_in_executor(self._threads, look, where, quietly)
                told = judged(self._told[server.name], seen, self._job_on(server.name), time.time())
                told = self._audited(told, seen)
            except Exception:  # whatever a server says, the others and its own next look go on
                logger.exception("a look at %s failed", server.name)
            else:
                self._put(server.name, told)
            await asyncio.sleep(self._every_s)

    def _audited(self, told: Told, seen: Seen) -> Told:
        """With the autopilot's last move, noted where it is new."""
        server = told.server
        block = block_of(seen.info) if server.state == "up" and seen.info is not None else None
        if block is None or block.autopilot is None:
            return told
        move = self._audit.note(server.name, identity(seen.info), block.autopilot, time.time())
        autopilot = msgspec.structs.replace(server.autopilot, last_move=move)
        return msgspec.structs.replace(told, server=msgspec.structs.replace(server, autopilot=autopilot))

    def _put(self, name: str, told: Told) -> None:
        before = self._told[name].server
        self._told[name] = told
        if told.server != before:
            self._changed(told.server)


def _with_job(server: Server, job: str | None) -> Server:
    return msgspec.structs.replace(server, job=job)
