"""The page in front of the real service, with a committed run and a simulated server."""

from __future__ import annotations

import shutil
from pathlib import Path

import tuner
from harness.runfolder import RunFolder
from harness.sim.preset import DEFAULT_PRESET
from tests.tuner.service.conftest import Stage
from tests.tuner.service.page_browser import shown
from tests.tuner.service.services import TOKEN, serving, simulating
from tuner.levels import levels
from tuner.recommend import read

COMMITTED = "h200-0.5.12-v2-acc2.8"
RESULTS = Path(tuner.__file__).parent.parent / "results"


def copied(folder: Path) -> RunFolder:
    """The committed run in a results folder of its own, which the service may write to."""
    return RunFolder(Path(shutil.copytree(RESULTS / COMMITTED, folder / COMMITTED)))


def test_a_committed_run_is_shown_as_it_was_measured(stage: Stage, tmp_path: Path) -> None:
    """List, words, values under the mouse and export are the run's own; nothing calls it simulated."""
    run = copied(tmp_path)
    eagle3 = {level.concurrency: level for level in levels(run.levels())["eagle3"]}

    async def scenario() -> None:
        async with serving(tmp_path) as (_, client):
            page = await stage.browser.open(str(client.make_url("/")))
            await page.click(".runs tbody a")
            await page.settled()
            await page.see(read(run).words["recommended"].replace(" %", "\u00a0%"))
            await page.point(".wide svg.chart .v-eagle3 .mark:last-of-type")
            await page.until("document.querySelector('.wide .readout thead').textContent.includes('concurrency 256')")
            assert f"static{eagle3[256].tok_per_s:,.0f}" in await page.text(".wide .readout [data-variant=eagle3]")
            assert "--speculative-disable-batch-threshold never" in await page.text(".export pre")
            assert await page.evaluate("document.querySelectorAll('.watermark, .banner, .badge').length") == 0
            assert page.problems == []

    stage.runner.run(scenario())


def test_a_threshold_reaches_a_live_server(stage: Stage, tmp_path: Path) -> None:
    """Register a server, set a threshold, read it back; the card follows by itself, and says that it is simulated."""

    async def scenario() -> None:
        async with simulating() as url, serving(tmp_path) as (_, client):
            page = await stage.browser.open(str(client.make_url("/#/servers")))
            await page.settled()
            await page.click("#server-name")
            await page.type("box")
            await page.press("Tab")
            await page.type(url)
            await page.press("Enter")
            await page.until("document.querySelector('[data-server=box][data-state=up] .badge.simulated')")
            await page.go("#/servers/box")
            await page.click("#hand-threshold")
            await page.type("31")
            await page.press("Enter")
            await page.click("#dialog button.main")
            await page.see("Agrees. box reads back what was asked.")
            await page.press("Escape")
            await page.until(
                "[...document.querySelectorAll('.live > div')].some((e) => e.textContent === 'threshold31')"
            )
            await page.click("section:last-of-type button")
            await page.click("#dialog button.main")
            await page.see("No server is registered yet.")
            assert page.problems == []

    stage.runner.run(scenario())


def test_the_presets_are_offered(stage: Stage, tmp_path: Path) -> None:
    """A sweep on simulated servers offers what the service can simulate, the usual one first chosen."""

    async def scenario() -> None:
        async with serving(tmp_path) as (_, client):
            page = await stage.browser.open(str(client.make_url("/#/start")))
            await page.settled()
            assert DEFAULT_PRESET in await page.evaluate(shown("#preset option"))
            assert await page.evaluate("document.getElementById('preset').value") == DEFAULT_PRESET
            assert page.problems == []

    stage.runner.run(scenario())


def test_the_token_lets_in(stage: Stage, tmp_path: Path) -> None:
    """A service with a token shows its login first, and the page after it."""
    copied(tmp_path)

    async def scenario() -> None:
        async with serving(tmp_path, token=TOKEN) as (_, client):
            page = await stage.browser.open(str(client.make_url("/")))
            await page.until("document.activeElement.id === 'token'")
            await page.type(TOKEN)
            await page.press("Enter")
            await page.until("document.querySelectorAll('.runs tbody tr').length === 1")
            await page.until("document.querySelector('#link').textContent === 'live'")
            assert page.problems == []

    stage.runner.run(scenario())
