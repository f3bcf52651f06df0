"""A service inside the test's own event loop, with runs, simulated servers and a client that holds it to its word."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from jsonschema import Draft202012Validator

from harness.sim.app import make_app as make_simulation
from harness.sim.preset import DEFAULT_PRESET, load_preset
from harness.sim.service import ServerSettings
from harness.sim.service import Service as Simulation
from tuner.service import registry
from tuner.service.api import ROUTES
from tuner.service.app import make_app
from tuner.service.openapi import document
from tuner.service.safety import door
from tuner.service.service import Service
from tuner.service.store import make_folder

TOKEN = "a-token-for-tests"
PATIENT_S = 150.0  # what nothing takes, on the slowest machine
OPENAPI = msgspec.json.decode(document(ROUTES))
Client = TestClient[web.Request, web.Application]


@asynccontextmanager
async def serving(
    results: Path, token: str | None = None, patience_s: float = 30.0, **entrance: Any
) -> AsyncIterator[tuple[Service, Client]]:
    """A service on `results` that looks at its servers often, and waits for them as long as a busy machine may take."""
    make_folder(results)
    with mock.patch.object(registry, "PATIENCE_S", patience_s):
        service = Service(results, door("127.0.0.1", token, **entrance), look_every_s=0.02)
        async with _open(service) as client:
            yield service, client


@asynccontextmanager
async def _open(service: Service) -> AsyncIterator[Client]:
    try:
        async with TestClient(TestServer(make_app(service))) as client:
            yield client
            service.hub.close()
    finally:
        await service.close()


@asynccontextmanager
async def simulating(**settings: Any) -> AsyncIterator[str]:
    """A simulated SGLang server in the same event loop; yields its URL."""
    made = ServerSettings(**({"preset": load_preset(DEFAULT_PRESET), "variant": "dynamic"} | settings))
    async with TestServer(make_simulation(Simulation(made))) as server:
        yield str(server.make_url("")).rstrip("/")


async def call(client: Client, method: str, path: str, body: Any = None, **how: Any) -> tuple[int, Any]:
    """Status and JSON of an answer, which must be as openapi.json says."""
    if method == "POST" and "data" not in how:
        how["json"] = {} if body is None else body
    async with client.request(method, path, **how) as response:
        content = await response.read()
        answer = msgspec.json.decode(content) if response.content_type == "application/json" else content.decode()
        hold_to_word(method, response.url.path, response.status, response.content_type, answer)
        return response.status, answer


def hold_to_word(method: str, path: str, status: int, media: str, answer: Any) -> None:
    """Assert that openapi.json has this operation, with this status, and that its schema takes the answer."""
    for template, operations in OPENAPI["paths"].items():
        pattern = re.sub(r"{\w+}", "[^/]+", template)
        if re.fullmatch(pattern, path) and method.lower() in operations:
            content = operations[method.lower()]["responses"][str(status)]["content"]
            assert media in content, (path, status, media)
            schema = {**content[media]["schema"], "components": OPENAPI["components"]}
            Draft202012Validator(schema).validate(answer)
            return
    raise AssertionError(f"openapi.json does not know {method} {path}")


async def until(holds: Callable[[], Awaitable[Any]], what: str) -> Any:
    """Wait for a condition, which may take long on a busy machine; what it gave when it held."""
    deadline = time.monotonic() + PATIENT_S
    while time.monotonic() < deadline:
        if found := await holds():
            return found
        await asyncio.sleep(0.02)
    raise AssertionError(f"it never came: {what}")
