"""Handlers of jobs, and the stream of events."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from aiohttp import web

import harness.sim
from harness.config import variants_to_run
from harness.errors import UserError
from tuner.knobs import parse_lengths
from tuner.service import answers, asked, joblog
from tuner.service.asked import NewServer, NewSweep, NewTune, Nothing
from tuner.service.events import MAX_LISTENERS
from tuner.service.job_records import Plan, Record
from tuner.service.progress import tune_point_s
from tuner.service.refusal import Refusal
from tuner.service.registry import attached, keys
from tuner.service.routes import number
from tuner.service.service import Service

SIMULATED = "sim:"
ATTACH = "--attach="
# harness.sim.preset knows these too, but brings numpy and scipy along; a test holds the two together.
_FOLDER = Path(str(harness.sim.__file__)).with_name("presets")
DEFAULT_PRESET = "h200-llama31-8b-illustrative"
DEFAULT_BUDGET_S = 1200.0  # of a tuning that is given none
WRITE_S = 30.0  # a listener that takes nothing for so long is hung up on


async def list_jobs(service: Service, request: web.Request) -> answers.Jobs:
    return answers.Jobs(service.jobs.all())


async def start_job(service: Service, request: web.Request, body: NewSweep | NewTune) -> answers.Job:
    if (body.server is None) == (body.sim is None):
        raise Refusal(400, "say on what: server, one that is registered, or sim, a preset")
    if body.sim is not None:
        plan, given = _simulated(body, body.sim), {}
    else:
        server = service.registry.get(str(body.server))
        plan, given = _attached(server, body), keys(server)
    job = service.jobs.start(plan, given, body.run)
    service.job_changed(job)
    return job


async def list_presets(service: Service, request: web.Request) -> answers.Presets:
    return answers.Presets(_presets(), DEFAULT_PRESET)


async def get_job(service: Service, request: web.Request) -> answers.Job:
    return service.jobs.answer(service.jobs.get(request.match_info["job"]))


async def get_log(service: Service, request: web.Request) -> answers.Log:
    lines = number(request, "tail", 200, 1, joblog.MAX_LINES)
    return service.jobs.log(request.match_info["job"], lines)


async def cancel_job(service: Service, request: web.Request, body: Nothing) -> answers.Job:
    job = service.jobs.cancel(request.match_info["job"])
    service.job_changed(job)
    return job


async def resume_job(service: Service, request: web.Request, body: Nothing) -> answers.Job:
    record = service.jobs.get(request.match_info["job"])
    given = {} if record.server.startswith(SIMULATED) else _keys_again(record, service.registry.get(record.server))
    job = service.jobs.resume(record.id, given)
    service.job_changed(job)
    return job


async def stream_events(service: Service, request: web.Request) -> web.StreamResponse:
    if len(service.hub.listeners) >= MAX_LISTENERS:
        raise Refusal(503, f"{MAX_LISTENERS} pages follow events already; close one")
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"})
    await response.prepare(request)
    with service.figures.listeners.track_inprogress():
        try:
            async for event in service.hub.stream(request.headers.get("Last-Event-ID")):
                async with asyncio.timeout(WRITE_S):
                    await response.write(event)
        except (TimeoutError, ConnectionError):
            pass  # it has gone; EventSource comes back by itself
    return response


def _simulated(body: NewSweep | NewTune, preset: str) -> Plan:
    if preset not in _presets():
        raise Refusal(400, f"there is no preset {preset}; there are {', '.join(_presets())}")
    return _plan(body, f"{SIMULATED}{preset}", [f"--sim={preset}"], sim=preset)


def _attached(server: NewServer, body: NewSweep | NewTune) -> Plan:
    told = getattr(body.options, "variants", None)
    wanted = told if isinstance(told, list) else [v for v in server.variants if v != "dynamic" or _has_threshold(body)]
    if isinstance(body, NewTune) and not {"eagle3", "forced_off"} <= set(wanted):
        raise Refusal(
            400, f"{server.name} cannot be tuned: it is not registered as one that plays eagle3 and forced_off"
        )
    urls = attached(server, wanted)
    return _plan(body, server.name, [f"{ATTACH}{variant}={url}" for variant, url in urls.items()], attach=urls)


def _keys_again(record: Record, server: NewServer) -> dict[str, str]:
    """The server's keys, for the URL that the job has on its command line and no other.

    Raises:
        Refusal: the server's name was given to another URL meanwhile.
    """
    urls = {flag.split("=", 2)[2] for flag in record.arguments if flag.startswith(ATTACH)}
    if urls != {server.url}:
        raise Refusal(409, f"job {record.id} was for another URL of {server.name}, not {server.url}; start a new job")
    return keys(server)


def _presets() -> list[str]:
    return sorted(file.stem for file in _FOLDER.glob("*.json"))


def _has_threshold(body: NewSweep | NewTune) -> bool:
    return isinstance(getattr(body.options, "threshold", None), int)


def _plan(body: NewSweep | NewTune, server: str, flags: list[str], **servers: Any) -> Plan:
    """The job, its options checked as the command will check them.

    Raises:
        Refusal: the options do not go together.
    """
    try:
        config = asked.settings(body.options, **servers)
        lengths = _context_lengths(body)
    except UserError as error:
        raise Refusal(400, str(error)) from error
    point_s = tune_point_s(config, lengths)
    points = len(variants_to_run(config)) * len(config.concurrency) * config.repeats
    if isinstance(body, NewTune):
        points = int(_budget_s(body) / point_s)
    return Plan(body.kind, server, [*flags, *asked.flags(body.options)], points, point_s)


def _context_lengths(body: NewSweep | NewTune) -> tuple[int, ...]:
    """The prompt lengths of a tuning, () for those of its settings; errors are those of the command line."""
    told = getattr(body.options, "context_lengths", None)
    return parse_lengths(",".join(map(str, told))) if isinstance(told, list) else ()


def _budget_s(body: NewTune) -> float:
    given = body.options.budget
    if not isinstance(given, str):
        return DEFAULT_BUDGET_S
    unit = {"s": 1.0, "m": 60.0, "h": 3600.0}.get(given[-1:])
    return float(given[:-1]) * unit if unit else float(given)
