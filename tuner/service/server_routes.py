"""Handlers of servers: which there are, how they are, and which policy they hold."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from aiohttp import web

from harness.endpoint import specpivot_block
from harness.errors import UserError
from patched_worker.autopilot import MAX_KEY, MIN_KEY, MODE_KEY, Mode
from patched_worker.policy import NEVER_DISABLE, Policy, Rung
from tuner.service import answers
from tuner.service.asked import ApplyRun, ApplyThreshold, NewServer, SetAutopilot
from tuner.service.refusal import Refusal
from tuner.service.registry import endpoint
from tuner.service.run_routes import recommended_folder
from tuner.service.service import Service
from tuner.service.workerblock import Block, autopilot_of, converted, read_back

MODES: dict[answers.AutopilotState, Mode] = {"off": Mode.HELD, "on": Mode.AUTO, "dry_run": Mode.DRY_RUN}


class _Recommended(msgspec.Struct, frozen=True):
    """What of a recommendation is set on a server."""

    threshold: int | None
    resume_at: int | None
    min_dwell_steps: int
    ladder: list[dict[str, int | None]] | None


async def list_servers(service: Service, request: web.Request) -> answers.Servers:
    return answers.Servers(service.watch.all())


async def add_server(service: Service, request: web.Request, body: NewServer) -> answers.Server:
    service.registry.add(body)
    service.watch.add(body)
    return service.watch.get(body.name)


async def get_server(service: Service, request: web.Request) -> answers.Server:
    return service.watch.get(request.match_info["server"])


async def remove_server(service: Service, request: web.Request) -> answers.Gone:
    name = request.match_info["server"]
    service.registry.get(name)
    _refuse_if_measured(service, name)
    service.registry.remove(name)
    service.watch.remove(name)
    service.server_gone(name)
    return answers.Gone(name)


async def apply(service: Service, request: web.Request, body: ApplyRun | ApplyThreshold) -> answers.Applied:
    server = service.registry.get(request.match_info["server"])
    _refuse_if_measured(service, server.name)
    policy = await _policy(service, body)
    return await asyncio.to_thread(applied, server, policy)


async def set_autopilot(service: Service, request: web.Request, body: SetAutopilot) -> answers.Server:
    server = service.registry.get(request.match_info["server"])
    _refuse_if_measured(service, server.name)
    if body.bounds is not None and body.bounds[1] is not None and body.bounds[0] > body.bounds[1]:
        raise Refusal(400, "bounds: the lowest threshold lies above the highest")
    held = await asyncio.to_thread(commanded, server, body)
    return service.watch.show_autopilot(server.name, held)


async def get_audit(service: Service, request: web.Request) -> answers.Audit:
    server = service.registry.get(request.match_info["server"])
    return answers.Audit(await asyncio.to_thread(service.audit.moves, server.name))


def commanded(server: NewServer, order: SetAutopilot) -> answers.Autopilot:
    """Switch a server's autopilot and read it back; blocks.

    Raises:
        UserError: the server does not answer, is not patched, has no autopilot, or did otherwise.
    """
    where = endpoint(server)
    values: dict[str, int] = {MODE_KEY: MODES[order.state]}
    if order.bounds is not None:
        low, high = order.bounds
        values |= {MIN_KEY: low, MAX_KEY: NEVER_DISABLE if high is None else high}
    if order.state == "off":
        before = specpivot_block(where.server_info())
        if before is not None and _checked(before).autopilot is None:  # it has none, and would refuse its keys
            return answers.Autopilot()
    block = _checked(where.set_numbers(values, "autopilot"))
    shown = block.autopilot
    held = autopilot_of(shown)
    if held.state != order.state or (order.bounds is not None and shown is not None and shown.bounds != order.bounds):
        why = block.last_error or f"it says {held.state}, bounds {held.bounds}"
        raise UserError(f"{server.name} did not set its autopilot: {why}; its worker must be one that has an autopilot")
    return held


def applied(server: NewServer, policy: Policy) -> answers.Applied:
    """Set a policy and read it back; blocks.

    Raises:
        UserError: the server does not answer, or is not patched.
    """
    where = endpoint(server)
    asked = answers.Asked(policy.threshold, policy.resume_at or None, policy.min_dwell)
    try:
        return answers.Applied(asked, read_back(_checked(where.set_policy(policy))), True)
    except UserError:
        held = specpivot_block(where.server_info())
        if held is None:
            raise
        return answers.Applied(asked, read_back(_checked(held)), False)


def _checked(held: dict[str, Any]) -> Block:
    try:
        return converted(held)
    except ValueError as error:
        raise UserError(f"the server cannot be believed: {error}; look at its log") from error


async def _policy(service: Service, body: ApplyRun | ApplyThreshold) -> Policy:
    try:
        if isinstance(body, ApplyThreshold):
            return Policy.from_threshold(body.threshold, body.resume_at, body.min_dwell_steps)
        content = await service.desk.ask("recommendation", [recommended_folder(service, body.run)])
        found = msgspec.json.decode(content, type=_Recommended)
        if found.ladder:
            return Policy(tuple(Rung(**rung) for rung in found.ladder), found.min_dwell_steps)
        return Policy.from_threshold(
            found.threshold, found.resume_at if found.threshold else None, found.min_dwell_steps
        )
    except (ValueError, TypeError) as error:
        raise Refusal(400, str(error)) from error


def _refuse_if_measured(service: Service, name: str) -> None:
    if (job := service.jobs.on(name)) is not None:
        raise Refusal(409, f"job {job} measures {name}; wait for it, or cancel it")
