"""Handlers of runs: what they measured, what it means, what to do with it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import get_args

import msgspec
from aiohttp import web

from tuner.service import run_answers
from tuner.service.asked import Nothing
from tuner.service.names import RECOMMENDATION, run_folder
from tuner.service.refusal import Refusal
from tuner.service.routes import word
from tuner.service.service import Service

# A report holds what a run folder says. It has no script, and gets no chance to have one.
REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'; sandbox"


async def list_runs(service: Service, request: web.Request) -> run_answers.Runs:
    return run_answers.Runs(await service.all_runs())


async def get_run(service: Service, request: web.Request) -> run_answers.RunDetail:
    return await asyncio.to_thread(service.runs.detail, request.match_info["run"])


async def get_levels(service: Service, request: web.Request) -> run_answers.Levels:
    return await asyncio.to_thread(service.runs.levels, request.match_info["run"])


async def get_curves(service: Service, request: web.Request) -> bytes:
    return await service.desk.ask("curves", [_folder(service, request)])


async def get_recommendation(service: Service, request: web.Request) -> bytes:
    return await service.desk.ask("recommendation", [recommended_folder(service, request.match_info["run"])])


async def make_recommendation(service: Service, request: web.Request, body: Nothing) -> bytes:
    folder = _folder(service, request)
    made = await service.desk.ask("recommend", [folder], keep=False)
    service.run_changed(folder.name)
    return made


async def export_run(service: Service, request: web.Request) -> bytes:
    form = word(request, "format", get_args(run_answers.Format), "json")
    return await service.desk.ask("export", [recommended_folder(service, request.match_info["run"])], form)


async def get_report(service: Service, request: web.Request) -> web.Response:
    page = await service.desk.ask("report", [_folder(service, request)])
    text = msgspec.json.decode(page, type=str)
    return web.Response(text=text, content_type="text/html", headers={"Content-Security-Policy": REPORT_POLICY})


async def compare_runs(service: Service, request: web.Request) -> bytes:
    names = [request.query.get(which, "") for which in ("a", "b")]
    if not all(names):
        raise Refusal(400, "name two runs: /api/v1/compare?a=RUN&b=RUN")
    return await service.desk.ask("compare", [run_folder(service.runs.results, name) for name in names])


def recommended_folder(service: Service, name: str) -> Path:
    """The folder of a run that has a recommendation.

    Raises:
        Refusal: there is no such run, or it has none.
    """
    folder = run_folder(service.runs.results, name)
    if not (folder / RECOMMENDATION).is_file():
        raise Refusal(404, f"{name} has no recommendation yet; POST to the same path makes it")
    return folder


def _folder(service: Service, request: web.Request) -> Path:
    return run_folder(service.runs.results, request.match_info["run"])
