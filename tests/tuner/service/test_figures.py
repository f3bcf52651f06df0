"""What Prometheus learns of the service: in its format, bounded in number, and true."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.tuner.runs import write_run
from tests.tuner.service.services import call, serving, simulating, until


async def scraped(client: Any) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample by its name and labels."""
    async with client.get("/metrics") as response:
        text = await response.text()
        assert response.content_type == "text/plain"
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in samples}


def test_requests_jobs_and_servers_are_counted(tmp_path: Path) -> None:
    """By route and not by what was in its place, so that nobody can fill the memory with names."""
    write_run(tmp_path / "run", [])

    async def scenario() -> None:
        async with simulating() as url, serving(tmp_path) as (_, client):
            await call(client, "POST", "/api/v1/servers", {"name": "box", "url": url})
            for name in ("run", "a", "b", "c"):
                await call(client, "GET", f"/api/v1/runs/{name}")
            for path in ("/x", "/y", "/api/v1/z"):
                async with client.get(path) as response:
                    assert response.status == 404

            async def up() -> Any:
                found = await scraped(client)
                return found if ("specpivot_server_batch", (("server", "box"),)) in found else None

            found = await until(up, "two looks at the server")
            assert found["specpivot_server_state", (("server", "box"), ("state", "up"))] == 1
            route = ("route", "/api/v1/runs/{run}")
            counted = "specpivot_service_requests_total"
            assert found[counted, (("method", "GET"), route, ("status", "200"))] == 1
            assert found[counted, (("method", "GET"), route, ("status", "404"))] == 3
            assert found[counted, (("method", "GET"), ("route", "none"), ("status", "404"))] == 3
            assert found["specpivot_service_jobs", (("state", "running"),)] == 0
            assert found["specpivot_server_state", (("server", "box"), ("state", "down"))] == 0
            assert found["specpivot_server_batch", (("server", "box"),)] == 0
            assert found["process_resident_memory_bytes", ()] > 0
            assert not [name for name, labels in found if ("server", "box") in labels and name.endswith("threshold")]
            await call(client, "POST", "/api/v1/servers/box/apply", {"threshold": 5})

            async def set_now() -> bool:
                return (await scraped(client)).get(("specpivot_server_threshold", (("server", "box"),))) == 5

            await until(set_now, "the threshold is there")

    asyncio.run(scenario())
