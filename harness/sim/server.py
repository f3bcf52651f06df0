"""One simulated SGLang server as a process: SGLang's HTTP API on a real clock.

    python -m harness.sim.server --preset h200-llama31-8b-illustrative --variant dynamic --threshold 64 --port 30000

Prints one line when it is ready; SIGTERM and SIGINT stop it. With --time-scale S, S simulated seconds pass per second:
whoever measures multiplies every time by S and divides every rate by it (/server_info has S under `simulation`).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import uvloop
from aiohttp import web

from harness.errors import UserError
from harness.records import VARIANTS
from harness.sim.app import make_app
from harness.sim.noise import Noise
from harness.sim.preset import DEFAULT_PRESET, checked_variant, costs_of, load_preset
from harness.sim.service import ServerSettings, Service
from patched_worker.autopilot import Mode, Order
from patched_worker.autopilot_decide import Bounds
from patched_worker.policy import NEVER_DISABLE, Policy


def run_server(settings: ServerSettings) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        UserError: the port is taken or the address is not ours.
    """
    uvloop.run(_serve(settings))


async def _serve(settings: ServerSettings) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    service = Service(settings)
    runner = web.AppRunner(make_app(service), access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, settings.host, settings.port, backlog=1024)
        try:
            await site.start()
        except OSError as error:
            place = f"{settings.host}:{settings.port}"
            raise UserError(f"cannot listen on {place}: {error.strerror}; give another --port") from error
        port = runner.addresses[0][1]
        print(
            f"simulated {settings.variant} server ready at http://{settings.host}:{port} "
            f"(preset {settings.preset.name}, time scale {settings.time_scale:g}, pid {os.getpid()})",
            flush=True,
        )
        await stop.wait()
    finally:
        await runner.cleanup()
        service.close()


def settings_from(arguments: Sequence[str]) -> ServerSettings:
    """The settings that a command line asks for.

    Raises:
        UserError: an unknown preset or variant, or a value that does not fit.
    """
    options = _parser().parse_args(arguments)
    preset, variant = load_preset(options.preset), checked_variant(options.variant)
    if options.time_scale <= 0:
        raise UserError(f"--time-scale is {options.time_scale}; give a number greater than 0")
    limits = preset.limits
    if options.max_running_requests is not None:
        limits = msgspec.structs.replace(limits, max_running_requests=options.max_running_requests)
    if options.max_total_tokens is not None:
        limits = msgspec.structs.replace(limits, max_total_num_tokens=options.max_total_tokens)
    if options.num_steps is not None:
        costs_of(preset, "dynamic").decode_s(1, options.num_steps)  # refuses a width that no table tells of
    if options.topk != 1:
        raise UserError(f"--topk is {options.topk}; a simulated server drafts chains, topk 1")
    try:
        policy = _policy(options)
        noise = Noise(options.noise, options.drift)
        order = _order(options)
    except ValueError as error:
        raise UserError(str(error)) from error
    return ServerSettings(
        msgspec.structs.replace(preset, limits=limits),
        variant,
        policy,
        options.time_scale,
        options.seed,
        noise,
        options.num_steps,
        options.host,
        options.port,
        options.api_key,
        options.admin_api_key,
        order,
        options.trace_file,
    )


def _order(options: argparse.Namespace) -> Order | None:
    if not options.auto:
        return None
    return Order(Mode.DRY_RUN if options.auto_dry_run else Mode.AUTO, Bounds(options.auto_min, options.auto_max))


def _policy(options: argparse.Namespace) -> Policy | None:
    if options.threshold is None:
        return None
    threshold = None if options.threshold == NEVER_DISABLE else options.threshold
    return Policy.from_threshold(threshold, options.resume_at, options.min_dwell)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m harness.sim.server", description="One simulated SGLang server.")
    parser.add_argument("--preset", default=DEFAULT_PRESET, help="name of a preset, or a path to a .json")
    parser.add_argument("--variant", default="dynamic", help=", ".join(VARIANTS))
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=30000, help="0 takes a free one")
    parser.add_argument("--threshold", type=int, help="initial threshold of a patched server, -1 never disables")
    parser.add_argument("--resume-at", type=int)
    parser.add_argument("--min-dwell", type=int)
    parser.add_argument("--num-steps", type=int, help="draft steps; the preset's own by default")
    parser.add_argument("--topk", type=int, default=1, help="1: chains only")
    parser.add_argument("--auto", action="store_true", help="the autopilot tunes the threshold")
    parser.add_argument("--auto-min", type=int, default=0)
    parser.add_argument("--auto-max", type=int)
    parser.add_argument("--auto-dry-run", action="store_true", help="it measures and notes, the threshold stays")
    parser.add_argument("--trace-file", type=Path, help="record every decode step there")
    parser.add_argument("--time-scale", type=float, default=1.0, help="simulated seconds per second")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--noise", type=float, default=0.0, help="sigma of the log of a step's time")
    parser.add_argument("--drift", type=float, default=0.0, help="sigma of the log of its slow drift")
    parser.add_argument("--max-running-requests", type=int)
    parser.add_argument("--max-total-tokens", type=int)
    parser.add_argument("--api-key")
    parser.add_argument("--admin-api-key")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; exit code 2 on bad input."""
    try:
        run_server(settings_from(sys.argv[1:] if arguments is None else arguments))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
