"""The service's switch against the autopilot itself, on a simulated server."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from patched_worker import autopilot
from patched_worker.policy import Policy
from tests.tuner.service.services import call, serving, simulating, until
from tuner.service import server_routes
from tuner.service.workerblock import AUTOPILOT, ShownMove


def test_every_mode_of_the_autopilot_has_a_word() -> None:
    """What is asked for by a word is read back as the same one."""
    gates = {mode: autopilot.Autopilot(3, Policy.from_threshold(9), autopilot.Order(mode)) for mode in autopilot.Mode}
    assert {AUTOPILOT[str(gate.snapshot()["state"])]: mode for mode, gate in gates.items()} == server_routes.MODES


def test_a_move_is_read_as_it_is_told() -> None:
    """What the worker writes into /server_info is what the audit log takes."""
    move = autopilot.Move(512, 3.5, 9, 12, "why", True)
    assert msgspec.convert(asdict(move), ShownMove) == ShownMove(512, 9, 12, "why", True)


def test_a_simulated_servers_autopilot_is_switched_and_watched(tmp_path: Path) -> None:
    """On, within bounds, while it serves; set by hand, it is off; nothing it says makes it a liar."""

    async def load(url: str) -> None:
        body = {"input_ids": [5] * 16, "sampling_params": {"max_new_tokens": 64}}
        async with aiohttp.ClientSession() as session:
            while True:
                async with session.post(f"{url}/generate", json=body) as response:
                    await response.read()

    async def scenario() -> None:
        async with simulating() as url, serving(tmp_path) as (_, client):
            await call(client, "POST", "/api/v1/servers", {"name": "box", "url": url})
            busy = [asyncio.create_task(load(url)) for _ in range(4)]
            order: dict[str, Any] = {"state": "on", "bounds": [1, 64]}
            status, server = await call(client, "POST", "/api/v1/servers/box/autopilot", order)
            assert (status, server["autopilot"]["state"], server["autopilot"]["bounds"]) == (200, "on", [1, 64])

            async def decoding() -> Any:
                found = (await call(client, "GET", "/api/v1/servers/box"))[1]
                assert found["state"] != "lying", found["problem"]
                return found if found["batch"] and found["autopilot"]["state"] == "on" else None

            await until(decoding, "it decodes under its autopilot")
            assert (await call(client, "GET", "/api/v1/servers/box/audit"))[0] == 200
            assert (await call(client, "POST", "/api/v1/servers/box/apply", {"threshold": 5}))[1]["agrees"] is True

            async def held() -> bool:
                found = (await call(client, "GET", "/api/v1/servers/box"))[1]
                return bool(found["autopilot"]["state"] == "off" and found["threshold"] == 5)

            await until(held, "the threshold set by hand takes the wheel")
            for task in busy:
                task.cancel()
            await asyncio.gather(*busy, return_exceptions=True)

    asyncio.run(scenario())
