"""What the tuning service costs: memory and CPU with servers registered and pages open.

    python -m benchmarks.service [--servers 20] [--pages 10] [--seconds 60]

The servers are mocks in a process of their own: each answers /server_info as a patched server does that decodes at many
batch sizes, with counters that move between any two looks, so that every look is an event for every page. A page loads
what the page loads, follows events, and draws the curves of a run. The service is `specpivot serve` as people start it,
and is measured from outside once all servers are up. The last line is JSON; nothing in it says anything about a server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import psutil
from aiohttp import web

ROOT = Path(__file__).resolve().parent.parent
LIMIT_MIB = 150.0
LIMIT_CORE = 0.10
BATCHES = 64
PAGE = ("", "static/style.css", "static/main.js", "api/v1/jobs", "api/v1/servers", "api/v1/runs")


def info(started_s: float, number: int) -> dict[str, Any]:
    """A patched server's /server_info, as large as a real one's and never twice the same."""
    steps = int((time.monotonic() - started_s) * 50)
    rows: list[dict[str, Any]] = [
        {"batch": batch, "state": state, "steps": steps, "tokens": steps * batch * 2, "seconds": steps * 0.01}
        for batch in range(1, BATCHES + 1)
        for state in (("on", "off") if batch <= BATCHES // 2 else ("off",))
    ]
    on, off = (sum(row["steps"] for row in rows if row["state"] == state) for state in ("on", "off"))
    block: dict[str, Any] = {"worker": "EAGLEWorkerV2", "module": "m", "version": "0.5.16", "source_hash": "0" * 64}
    block |= {"threshold": BATCHES // 2, "resume_at": 24, "min_dwell": 16, "policy_id": "p", "last_error": None}
    block |= {"steps_on": on, "steps_off": off, "switches": steps, "ungated": 0, "by_batch": rows, "ranks_agree": True}
    arguments = {f"argument_{n}": f"value {n}" for n in range(350)}
    return {**arguments, "version": "0.5.16", "random_seed": number, "internal_states": [{"specpivot": block}]}


async def mock_servers(count: int) -> None:
    """Serve so many until standard input ends; print their ports."""
    started_s = time.monotonic()
    runners, ports = [], []
    for number in range(count):

        async def answer(request: web.Request, number: int = number) -> web.Response:
            return web.json_response(info(started_s, number))

        app = web.Application()
        app.router.add_get("/server_info", answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        runners.append(runner)
        ports.append(runner.addresses[0][1])
    print(json.dumps(ports), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for runner in runners:
        await runner.cleanup()


async def page(session: aiohttp.ClientSession, url: str, run: str, counted: list[int]) -> None:
    """One open page."""
    for path in (*PAGE, f"api/v1/runs/{run}", f"api/v1/runs/{run}/curves"):
        async with session.get(f"{url}/{path}") as response:
            response.raise_for_status()
            await response.read()
    async with session.get(f"{url}/api/v1/events", timeout=aiohttp.ClientTimeout()) as response:
        async for line in response.content:
            counted[0] += line.startswith(b"event: ")


async def measured(url: str, service: psutil.Process, ports: list[int], pages: int, seconds: float) -> dict[str, Any]:
    """Register the servers, open the pages, and watch the service for a while."""
    counted = [0]
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        for number, port in enumerate(ports):
            body = {"name": f"server-{number}", "url": f"http://127.0.0.1:{port}"}
            async with session.post(f"{url}/api/v1/servers", json=body) as response:
                response.raise_for_status()
        async with session.get(f"{url}/api/v1/runs") as response:
            run = (await response.json())["runs"][0]["name"]
        peak_mib = [0.0]
        tasks = [asyncio.create_task(sampled(service, peak_mib))]
        tasks += [asyncio.create_task(page(session, url, run, counted)) for _ in range(pages)]
        await up(session, url, len(ports))
        await settled(service)
        report = await watched(session, url, service, seconds, counted)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return report | {"with_helper_peak_mib": round(peak_mib[0], 1)}


async def up(session: aiohttp.ClientSession, url: str, count: int) -> None:
    """Wait until every server is seen."""
    async with asyncio.timeout(120):
        while True:
            async with session.get(f"{url}/api/v1/servers") as response:
                found = (await response.json())["servers"]
            if sum(server["state"] == "up" for server in found) == count:
                return
            await asyncio.sleep(0.2)


async def sampled(service: psutil.Process, peak_mib: list[float]) -> None:
    """Note the most memory that the service and its helper have at a time."""
    while True:
        with suppress(psutil.NoSuchProcess):
            peak_mib[0] = max(peak_mib[0], sum(map(rss_mib, (service, *service.children(recursive=True)))))
        await asyncio.sleep(0.2)


async def settled(service: psutil.Process) -> None:
    """Wait until the helper that drew the curves has ended."""
    async with asyncio.timeout(120):
        while True:
            if not service.children(recursive=True):
                return
            await asyncio.sleep(0.2)


async def watched(
    session: aiohttp.ClientSession, url: str, service: psutil.Process, seconds: float, counted: list[int]
) -> dict[str, Any]:
    """CPU and memory over the window, and how long a list of servers takes meanwhile."""
    events, cpu_s, began_s = counted[0], cpu_of(service), time.monotonic()
    peak, answers_ms = 0.0, []
    while time.monotonic() - began_s < seconds:
        asked_s = time.monotonic()
        async with session.get(f"{url}/api/v1/servers") as response:
            await response.read()
        answers_ms.append((time.monotonic() - asked_s) * 1e3)
        peak = max(peak, rss_mib(service))
        await asyncio.sleep(1.0)
    elapsed_s = time.monotonic() - began_s
    return {
        "rss_mib": round(peak, 1),
        "core": round((cpu_of(service) - cpu_s) / elapsed_s, 4),
        "events_per_s": round((counted[0] - events) / elapsed_s, 1),
        "list_servers_p50_ms": round(sorted(answers_ms)[len(answers_ms) // 2], 1),
        "list_servers_max_ms": round(max(answers_ms), 1),
        "seconds": round(elapsed_s, 1),
    }


def cpu_of(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def rss_mib(process: psutil.Process) -> float:
    with suppress(psutil.NoSuchProcess):
        return float(process.memory_info().rss / 2**20)
    return 0.0


def some_run(results: Path) -> None:
    """A committed run, for curves to draw."""
    name = next(file.parent.name for file in sorted((ROOT / "results").glob("*/levels.csv")))
    for file in ("manifest.json", "levels.csv", "recommendation.json"):
        (results / name).mkdir(exist_ok=True)
        shutil.copy(ROOT / "results" / name / file, results / name / file)


def address(service: subprocess.Popen[str]) -> str:
    """Where the service says that it is."""
    assert service.stderr is not None
    for line in service.stderr:
        if "http://" in line:
            return line.split()[-1]
    raise SystemExit("the service did not start")


def main() -> None:
    """Run all of it, and print the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--servers", type=int, default=20)
    parser.add_argument("--pages", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--mock", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.mock:
        asyncio.run(mock_servers(given.servers))
        return
    me = [sys.executable, "-m", "benchmarks.service", "--mock", f"--servers={given.servers}"]
    with tempfile.TemporaryDirectory() as folder:
        some_run(Path(folder))
        mocks = subprocess.Popen(me, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        command = [sys.executable, "-m", "specpivot", "serve", "--port=0", f"--results={folder}"]
        environment = {name: value for name, value in os.environ.items() if name != "SPECPIVOT_TOKEN"}
        service = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
        try:
            assert mocks.stdout is not None
            ports = json.loads(mocks.stdout.readline())
            url = address(service)
            report = asyncio.run(measured(url, psutil.Process(service.pid), ports, given.pages, given.seconds))
        finally:
            service.terminate()
            mocks.communicate()
            service.communicate()
    report = {"benchmark": "service", "servers": given.servers, "pages": given.pages, **report}
    report |= {"limit_mib": LIMIT_MIB, "limit_core": LIMIT_CORE}
    print(json.dumps(report | {"ok": report["rss_mib"] < LIMIT_MIB and report["core"] < LIMIT_CORE}))


if __name__ == "__main__":
    main()
