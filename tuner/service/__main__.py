"""`python -m tuner.service`: what `specpivot serve` becomes. Only what the service needs is loaded here."""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import logging
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO

import uvloop
from aiohttp import web

from harness.errors import UserError
from tuner.service.app import make_app
from tuner.service.listen import Doorkeeper, bound
from tuner.service.names import STATE
from tuner.service.safety import Door, door
from tuner.service.service import Service
from tuner.service.store import make_folder

TOKEN = "SPECPIVOT_TOKEN"
MAX_LINE_BYTES = 8190
MAX_FIELD_BYTES = 8190
KEEPALIVE_S = 30.0
SHUTDOWN_S = 5.0


async def serve(host: str, port: int, results: Path, entrance: Door) -> None:
    """Serve until a signal comes; jobs go on after it.

    Raises:
        UserError: the address cannot be had, or the results folder cannot, because another service uses it, say.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    with _alone(results), bound(host, port) as listener:
        service = Service(results, entrance)
        keeper: Doorkeeper | None = None
        app = make_app(service, lambda request: keeper.spoke(request) if keeper is not None else None)
        runner = web.AppRunner(
            app,
            access_log=None,  # it would hold whatever names and words people send
            keepalive_timeout=KEEPALIVE_S,
            shutdown_timeout=SHUTDOWN_S,
            max_line_size=MAX_LINE_BYTES,
            max_field_size=MAX_FIELD_BYTES,
        )
        try:
            await runner.setup()
            assert runner.server is not None
            keeper = Doorkeeper(runner.server)
            server = await loop.create_server(keeper, sock=listener)
            shown = f"[{host}]" if ":" in host else host
            print(f"SpecPivot's service is at http://{shown}:{listener.getsockname()[1]}", file=sys.stderr, flush=True)
            await stop.wait()
            server.close()
        finally:
            await service.stop()
            await runner.cleanup()  # waits for those that are being answered, and hangs up on them after SHUTDOWN_S
            await service.desk.close()


def main(arguments: list[str] | None = None) -> int:
    """The command line; exit code 2 on bad input."""
    given = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    # What handlers fail of is logged by app.py; this one writes a traceback for each request that is no HTTP.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    try:
        entrance = door(given.host, os.environ.pop(TOKEN, None), given.public_name)
        uvloop.run(serve(given.host, given.port, Path(given.results).resolve(), entrance))
    except UserError as error:
        print(f"specpivot: {error}", file=sys.stderr)
        return 2
    return 0


def _alone(results: Path) -> IO[str]:
    """A lock in the service's own folder, so that two services never keep the same jobs.

    Raises:
        UserError: another service has it, or the folder cannot be made or written to.
    """
    try:
        lock = (make_folder(results / STATE) / "lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise
    except BlockingIOError:
        raise UserError(f"another service uses {results}; stop it, or give another --results") from None
    except OSError as error:
        raise UserError(f"cannot use {results}: {error.strerror}; give another --results") from error
    return lock


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="specpivot serve")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8700)
    parser.add_argument("--results", default="results")
    parser.add_argument("--public-name", action="append", default=[])
    return parser


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main())
