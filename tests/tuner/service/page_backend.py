"""A small back end for the tests of the page: canned answers in the service's own words, and events on demand.

It speaks the contract of the HTTP API and nothing else; what it was asked is kept for the tests to read.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

import tuner
from tests.tuner.runs import CURVES, LEVELS

PAGE = Path(tuner.__file__).parent / "service" / "page"
CSP = "default-src 'self'"
HOSTILE = '<img src=x onerror="window.pwned=1"><b>\'&amp;'
NOW = 1_790_000_000.0


def summary(name: str, **changes: Any) -> dict[str, Any]:
    """A run in the list."""
    return {
        "name": name, "source": "measured", "created_s": NOW, "command": "sweep", "variants": list(CURVES),
        "points_done": 81, "points_planned": 81, "usable": 80, "threshold": 113, "shape": "crossover",
        "has_recommendation": True, "job": None,
    } | changes  # fmt: skip


def job(**changes: Any) -> dict[str, Any]:
    """A job that runs."""
    return {
        "id": "j1", "kind": "sweep", "run": "night", "server": "sim:h200-test", "state": "running", "created_s": NOW,
        "started_s": NOW, "ended_s": None, "exit_code": None, "points_done": 20, "points_planned": 80, "eta_s": 180.0,
        "message": "eagle3 at C=16", "resumable": False,
    } | changes  # fmt: skip


def server(name: str, **changes: Any) -> dict[str, Any]:
    """A registered server."""
    return {
        "name": name, "url": "http://10.0.0.5:30000", "state": "up", "since_s": NOW, "problem": None,
        "worker": "EAGLEWorkerV2", "version": "0.5.16", "threshold": 24, "resume_at": 18, "min_dwell": 16,
        "batch": 17.0, "speculating": True, "switches": 42, "steps_on": 120_000, "steps_off": 8_000, "ungated": 0,
        "accept_len": 2.81, "tok_per_s": 4321.0, "job": None,
        "autopilot": {"state": "off", "bounds": [8, 128], "last_move": None},
    } | changes  # fmt: skip


def curves(run: str, source: str) -> dict[str, Any]:
    """Curves that cross at a decode batch of 113."""
    variants = {name: [_point(c, curve(0.95 * c)) for c in LEVELS] for name, curve in CURVES.items()}
    pivot = {"threshold": 113, "low": 101, "high": 126, "shape": "crossover"}
    return {"run": run, "source": source, "variants": variants, "pivot": pivot}


def _point(c: int, rate: float) -> dict[str, Any]:
    return {
        "concurrency": c, "decode_batch": 0.95 * c, "tok_per_s": rate, "tok_per_s_low": 0.97 * rate,
        "tok_per_s_high": 1.03 * rate, "tpot_s": 0.95 * c / rate, "ttft_s": 0.05, "user_tok_per_s": rate / (0.95 * c),
        "points": 3,
    }  # fmt: skip


RECOMMENDATION: dict[str, Any] = {
    "schema": 1, "threshold": 113, "interval": [101, 126], "effective_threshold": 112, "resume_at": 85,
    "min_dwell_steps": 16, "shape": "crossover", "ladder": None, "objective": "score", "score": 0.994,
    "score_interval": [0.991, 0.997], "latency_c1": {"eagle3_s": 0.0025, "at_threshold_s": 0.0025, "slack": 0.05,
    "ok": True, "concurrency": 1}, "off_tax": {"64": 0.03}, "off": "forced_off", "reference": "baseline",
    "source": "measured", "evidence": {"run": "night", "points": 80, "trials": 0},
    "warnings": ["1 of 81 points are not usable and were left out"],
    "words": ["Speculate up to a decode batch of 113, and not above. At batch 1 speculation gains 95 %; at 243 it loses"
              " 17 % against forced_off.",
              "90 % interval: 101 to 126, from 27 pairs of eagle3 and forced_off at 9 levels.",
              "Never speculate scores 0.812 against 0.994 and slows a lone user too much; the literal objective takes"
              " threshold 120.",
              "Acceptance moves the pivot most: measure again after a change of draft, prompts or release."],
}  # fmt: skip


@dataclass(eq=False)
class Backend:
    """Answers, and what was asked.

    Attributes:
        token: what the page must log in with; None asks nobody.
        asked: method, path and body of every POST and DELETE.
        broken: whether the lists cannot be read just now.
        read_back: what a server says after an apply; None is what was asked.
    """

    runs: list[dict[str, Any]] = field(default_factory=lambda: [summary("night"), summary("sim", source="simulated")])
    jobs: list[dict[str, Any]] = field(default_factory=lambda: [job()])
    servers: list[dict[str, Any]] = field(default_factory=lambda: [server("box")])
    recommendations: dict[str, dict[str, Any]] = field(default_factory=lambda: {"night": RECOMMENDATION})
    moves: list[dict[str, Any]] = field(default_factory=list)
    comparison: dict[str, Any] | None = None
    token: str | None = None
    broken: bool = False
    read_back: dict[str, Any] | None = None
    asked: list[tuple[str, str, Any]] = field(default_factory=list)
    streams: set[asyncio.Queue[bytes | None]] = field(default_factory=set)
    url: str = ""

    def tell(self, event: str, item: dict[str, Any] | None = None) -> None:
        """Send an event to every open page."""
        for stream in self.streams:
            stream.put_nowait(f"event: {event}\ndata: {json.dumps(item or {})}\n\n".encode())

    def drop(self) -> None:
        """End every stream of events, as a restart of the service does."""
        for stream in self.streams:
            stream.put_nowait(None)

    def one(self, kind: str, key: str, name: str) -> dict[str, Any]:
        """A run, job or server by its key."""
        found = next((item for item in getattr(self, kind) if item[key] == name), None)
        if found is None:
            raise web.HTTPNotFound(text=json.dumps({"error": f"there is no {name}"}), content_type="application/json")
        return dict(found)

    # ---- routes

    async def index(self, _: web.Request) -> web.StreamResponse:
        return web.FileResponse(PAGE / "index.html", headers={"Content-Security-Policy": CSP})

    async def events(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        await answer.prepare(request)
        stream: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.streams.add(stream)
        try:
            await answer.write(b"retry: 50\n\n")
            while (chunk := await stream.get()) is not None:
                await answer.write(chunk)
        finally:
            self.streams.discard(stream)
        return answer

    async def login(self, request: web.Request) -> web.Response:
        if (await request.json())["token"] != self.token:
            return web.json_response({"error": "wrong token"}, status=401)
        answer = web.json_response({})
        answer.set_cookie("specpivot", "in", httponly=True, samesite="Strict")
        return answer

    async def listed(self, request: web.Request) -> web.Response:
        kind = request.match_info["kind"]
        if self.broken:
            return web.json_response({"error": "the disk is gone"}, status=500)
        return web.json_response({kind: getattr(self, kind)})

    async def run(self, request: web.Request) -> web.Response:
        found = self.one("runs", "name", request.match_info["name"])
        about = {
            "settings": {"concurrency": list(LEVELS), "repeats": 3, "duration_s": 20.0},
            "environment": {"gpus": [{"name": "NVIDIA H200"}] * 2, "packages": {"sglang": "0.5.16"}},
            "servers": {"41@1.0": {"version": "0.5.16", "worker": "EAGLEWorkerV2"}}, "warnings": [],
            "variants": {"eagle3": {"not_run": None, "reference": "baseline"}},
        }  # fmt: skip
        return web.json_response(found | about)

    async def of_run(self, request: web.Request) -> web.Response:
        name, what = request.match_info["name"], request.match_info["what"]
        source = self.one("runs", "name", name)["source"]
        if what == "curves":
            return web.json_response(curves(name, source))
        if what == "levels":
            return web.json_response({"levels": [_row(v, c) for v in CURVES for c in LEVELS]})
        if what == "export":
            return web.json_response({"format": request.query["format"], "text": "--flag 113\n", "notes": ["mind"]})
        if name not in self.recommendations:
            return web.json_response({"error": "no recommendation"}, status=404)
        return web.json_response(self.recommendations[name])

    async def compare(self, _: web.Request) -> web.Response:
        if self.comparison is None:
            return web.json_response({"error": "one is measured, the other simulated"}, status=409)
        return web.json_response(self.comparison)

    async def one_job(self, request: web.Request) -> web.Response:
        return web.json_response(self.one("jobs", "id", request.match_info["name"]))

    async def log(self, _: web.Request) -> web.Response:
        return web.json_response({"lines": ["first line", HOSTILE]})

    async def audit(self, _: web.Request) -> web.Response:
        return web.json_response({"moves": self.moves})

    async def presets(self, _: web.Request) -> web.Response:
        return web.json_response({"presets": ["h200-test"], "default": "h200-test"})

    async def change(self, request: web.Request) -> web.Response:
        body = await request.json() if request.can_read_body else None
        self.asked.append((request.method, request.path, body))
        return web.json_response(self._changed(request.path.split("/")[3:], body))

    def _changed(self, parts: list[str], body: Any) -> dict[str, Any]:
        if parts[-1] == "apply":
            wanted = {"threshold": 113, "resume_at": 85, "min_dwell": 16, "policy_id": "p7", "last_error": None}
            return {"asked": body, "read_back": self.read_back or wanted, "agrees": self.read_back is None}
        if parts[-1] == "recommendation":
            self.recommendations[parts[1]] = RECOMMENDATION
            return RECOMMENDATION
        if parts[0] == "jobs":
            state = "cancelled" if parts[-1] == "cancel" else "running"
            return job(id="j2" if len(parts) == 1 else parts[1], state=state, resumable=state == "cancelled")
        if parts == ["servers"]:
            self.servers.append(server(body["name"], url=body["url"]))
        if parts[-1] == "autopilot":
            return server(parts[1], autopilot={**body, "last_move": None})
        return self.servers[-1]


def _row(variant: str, c: int) -> dict[str, Any]:
    rate = CURVES[variant](0.95 * c)
    return {
        "variant": variant, "concurrency": c, "repeat": 1, "status": "done", "verdict": "ok", "flags": "",
        "decode_batch_mean": 0.95 * c, "output_tok_per_s": rate, "tpot_p50_s": 0.95 * c / rate, "ttft_p50_s": 0.05,
        "accept_len": 2.8,
    }  # fmt: skip


@web.middleware
async def guarded(request: web.Request, handler: Any) -> Any:
    """Ask for the token where there is one; the page itself, its files and the login are free."""
    backend = request.app[BACKEND]
    free = request.path in ("/", "/login") or request.path.startswith("/static/")
    if backend.token is not None and not free and request.cookies.get("specpivot") != "in":
        return web.json_response({"error": "log in first"}, status=401)
    return await handler(request)


BACKEND = web.AppKey("backend", Backend)


@asynccontextmanager
async def serving(backend: Backend) -> AsyncIterator[Backend]:
    """Serve on a free port; `url` says where."""
    app = web.Application(middlewares=[guarded])
    app[BACKEND] = backend
    api = "/api/v1"
    app.add_routes([
        web.get("/", backend.index), web.static("/static", PAGE), web.post("/login", backend.login),
        web.get(f"{api}/events", backend.events), web.get(f"{api}/compare", backend.compare),
        web.get(f"{api}/presets", backend.presets), web.get(f"{api}/{{kind:runs|jobs|servers}}", backend.listed),
        web.get(f"{api}/runs/{{name}}", backend.run), web.get(f"{api}/runs/{{name}}/{{what}}", backend.of_run),
        web.get(f"{api}/jobs/{{name}}/log", backend.log), web.get(f"{api}/servers/{{name}}/audit", backend.audit),
        web.get(f"{api}/jobs/{{name}}", backend.one_job),
        web.post(f"{api}/{{rest:.*}}", backend.change), web.delete(f"{api}/{{rest:.*}}", backend.change),
    ])  # fmt: skip
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    backend.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield backend
    finally:
        backend.drop()
        await runner.cleanup()
