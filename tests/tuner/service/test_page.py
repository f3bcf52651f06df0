"""The page as people read it: runs, curves, recommendation, comparison; nothing a server says becomes markup."""

from __future__ import annotations

import json
import re

import pytest

from tests.tuner.runs import CURVES
from tests.tuner.service.conftest import Stage
from tests.tuner.service.page_backend import HOSTILE, RECOMMENDATION, Backend, job, server, summary
from tests.tuner.service.page_browser import Page, shown


def test_runs_are_listed_and_simulated_ones_marked(stage: Stage) -> None:
    """Name, points, threshold and shape stand in a row; only the simulated run carries the mark; the filter filters."""

    async def scenario(_: Backend, page: Page) -> None:
        await page.until("document.querySelectorAll('.runs tbody tr').length === 2")
        night = await page.evaluate(
            "[...document.querySelectorAll('.runs tbody tr')].find((r) => /night/.test(r.textContent)).innerText"
        )
        assert re.split(r"\s*\t\s*", night)[:5] == ["night", "113", "pays up to the pivot", "81 of 81", "80"]
        assert await page.evaluate(shown(".runs tr:has(.badge.simulated) a")) == ["sim"]
        await page.click("#filter")
        await page.type("NIG")
        await page.until("document.querySelectorAll('.runs tbody tr').length === 1")
        assert await page.evaluate(shown(".runs tbody a")) == ["night"]

    stage.play(scenario)


def test_pointing_at_a_curve_shows_its_values(stage: Stage) -> None:
    """The readout holds throughput and interval of every variant at the level under the mouse."""

    async def scenario(_: Backend, page: Page) -> None:
        await page.until("document.querySelector('.wide svg.chart .v-eagle3 .mark')")
        assert await page.evaluate("document.querySelectorAll('.wide svg.chart .v-eagle3 .mark').length") == 9
        await page.point(".wide svg.chart .v-eagle3 .mark:last-of-type")
        await page.until("document.querySelector('.wide .readout').innerText.includes('concurrency 256')")
        rate = CURVES["eagle3"](0.95 * 256)
        row = await page.text(".wide .readout [data-variant=eagle3]")
        assert row == f" EAGLE-3, static{rate:,.0f}{0.97 * rate:,.0f} to {1.03 * rate:,.0f}"

    stage.play(scenario, "#/runs/night")


def test_arrow_keys_walk_along_a_curve(stage: Stage) -> None:
    """Focus shows the first level, arrows the next ones, End the last; the values are the chart's value text."""

    async def scenario(_: Backend, page: Page) -> None:
        await page.until("document.querySelector('.wide svg.chart .mark')")
        await page.tab_to("e.matches('.wide svg.chart')")
        said = "document.activeElement.getAttribute('aria-valuetext')"
        assert (await page.evaluate(said)).startswith("concurrency 1, decode batch 0.95")
        await page.press("ArrowRight", 2)
        assert (await page.evaluate(said)).startswith("concurrency 4,")
        rate = CURVES["baseline"](0.95 * 4)
        assert f"baseline {rate:,.0f} tokens/s" in await page.evaluate(said)
        await page.press("End")
        assert (await page.evaluate(said)).startswith("concurrency 256,")

    stage.play(scenario, "#/runs/night")


def test_curves_carry_the_pivot_and_their_units(stage: Stage) -> None:
    """The interval is a band between two levels, and moves with the x axis; every axis names its unit."""

    async def scenario(_: Backend, page: Page) -> None:
        await page.until("document.querySelector('.wide .pivot rect').getAttribute('width') > 5")
        assert await page.text(".wide .pivot text") == "pivot 113 (90 %: 101 to 126)"
        units = await page.evaluate(shown(".chart .unit"))
        assert units[:2] == ["output tokens per second", "concurrency, requests in flight"]
        assert "milliseconds per token, median request" in units
        assert len(units) == 6
        left = "Number(document.querySelector('.wide .pivot rect').getAttribute('x'))"
        before = await page.evaluate(left)
        await page.click("input[name=axis-x][value=batch] + span")
        await page.until(
            f"document.querySelector('.wide .chart').textContent.includes('mean decode batch') && {left} !== {before}"
        )
        ticks = await page.evaluate(shown(".wide .axes g text[text-anchor=middle]"))
        assert ticks == ["1", "2", "4", "8", "16", "32", "64", "128"]
        await page.click("input[name=axis-y][value=share] + span")
        await page.until("document.querySelector('.wide .unit').textContent === 'throughput relative to baseline'")

    stage.play(scenario, "#/runs/night")


@pytest.mark.parametrize(("name", "marked"), [("night", False), ("sim", True)])
def test_what_is_simulated_says_so_in_every_chart(stage: Stage, name: str, marked: bool) -> None:
    """A simulated run has a banner and a watermark in each chart; a measured one has neither."""

    async def scenario(_: Backend, page: Page) -> None:
        await page.until("document.querySelectorAll('svg.chart .line').length === 9")
        assert await page.evaluate("document.querySelectorAll('svg.chart .watermark').length") == (3 if marked else 0)
        assert await page.evaluate("document.querySelectorAll('main > .view > .banner').length") == int(marked)

    stage.play(scenario, f"#/runs/{name}")


def test_recommendation_is_said_in_words(stage: Stage) -> None:
    """Answer, confidence, what was rejected and the warnings are read; the figures stand beside them."""

    async def scenario(_: Backend, page: Page) -> None:
        await page.see("Speculate up to a decode batch of 113")
        words = (await page.evaluate("document.querySelector('.answer').innerText")).replace("\u00a0", " ")
        for sentence in (*RECOMMENDATION["words"], *RECOMMENDATION["warnings"]):
            assert sentence in words
        assert "99.4 % (99.1 to 99.7)" in words

    stage.play(scenario, "#/runs/night")


def test_recommendation_is_made_on_demand(stage: Stage) -> None:
    """A run without one offers to work it out, and shows it when it is there."""

    async def scenario(backend: Backend, page: Page) -> None:
        await page.see("No recommendation yet.")
        await page.click(".afresh button")
        await page.see("Speculate up to a decode batch of 113")
        assert backend.asked == [("POST", "/api/v1/runs/sim/recommendation", {})]

    stage.play(scenario, "#/runs/sim")


def test_export_is_shown_and_copied(stage: Stage) -> None:
    """The text of the chosen format is shown; Copy puts just that into the clipboard."""

    async def scenario(_: Backend, page: Page) -> None:
        await page.until("document.querySelector('.export pre').textContent === '--flag 113\\n'")
        await page.evaluate("void (navigator.clipboard.writeText = async (text) => { window.copied = text; })")
        await page.click(".export button")
        await page.see("Copied.")
        assert await page.evaluate("window.copied") == "--flag 113\n"

    stage.play(scenario, "#/runs/night")


def test_two_runs_are_compared(stage: Stage) -> None:
    """Ratios with intervals are shown, what is clear is named better or worse, notes are listed."""
    row = {"metric": "output_tok_per_s", "variant": "eagle3", "concurrency": 8, "a": 1000.0, "b": 900.0, "ratio": 0.9}
    found = {
        "run_a": "night", "run_b": "sim", "source": "measured", "not_shared": 2, "notes": ["package sglang: 1 and 2"],
        "differences": [row | {"low": 0.85, "high": 0.95, "clear": True},
                        row | {"metric": "tpot_p50_s", "a": 0.01, "b": 0.01, "ratio": 1.0, "low": None, "high": None,
                               "clear": False}],
        "pivots": {"night": {"shape": "crossover", "threshold": 113, "interval": [101, None]}},
    }  # fmt: skip

    async def scenario(_: Backend, page: Page) -> None:
        await page.until("document.querySelectorAll('.ratios tbody tr').length === 2")
        assert await page.evaluate(
            "document.querySelector('.ratios tr.worse').innerText.replace(/\\s+/g, ' ').trim()"
        ) == ("EAGLE-3, static 8 1,000 900 0.900 0.850 to 0.950 worse")
        await page.see("1 of 2 figures differ clearly")
        await page.see("113, 90 %: 101 to never disabling")

    stage.play(scenario, "#/compare/night/sim", Backend(comparison=found))


def test_runs_that_must_not_be_compared_are_refused_with_the_reason(stage: Stage) -> None:
    """Choosing two such runs shows the service's own reason."""

    async def scenario(_: Backend, page: Page) -> None:
        await page.until("document.querySelectorAll('#run-a option').length === 3")
        for field, name in (("run-a", "night"), ("run-b", "sim")):
            await page.until(f"document.getElementById('{field}')")
            await page.evaluate(
                f"((f) => {{ f.value = '{name}'; f.dispatchEvent(new Event('change')); }})"
                f"(document.getElementById('{field}'))"
            )
            await page.until(
                f"document.getElementById('{field}').value === '{name}' && location.hash.includes('{name}')"
            )
        await page.see("Not comparable. one is measured, the other simulated")

    stage.play(scenario, "#/compare")


def hostile_backend() -> Backend:
    """Markup in everything that a server may say."""
    found = RECOMMENDATION | {"words": [HOSTILE] * 4, "warnings": [HOSTILE]}
    return Backend(
        runs=[summary(HOSTILE, variants=[HOSTILE], shape=HOSTILE)],
        jobs=[job(run=HOSTILE, message=HOSTILE, server=HOSTILE)],
        servers=[server(HOSTILE, state="lying", problem=HOSTILE, url=HOSTILE, worker=HOSTILE)],
        recommendations={HOSTILE: found},
        moves=[{"at_s": 1.0, "from": 1, "to": 2, "interval": None, "reason": HOSTILE, "dry_run": True}],
    )


def test_hostile_names_are_text(stage: Stage) -> None:
    """Markup in names, words, messages and logs is shown letter for letter in every view, never made into elements."""

    async def scenario(_: Backend, page: Page) -> None:
        await page.until("document.querySelector('.runs tbody a')")
        assert await page.text(".runs tbody a") == HOSTILE
        await page.click(".runs tbody a")
        await page.until(f"document.querySelector('.verdict').textContent === {json.dumps(HOSTILE)}")
        assert (await page.text("h1")).strip() == HOSTILE
        for route in ("#/jobs/j1", "#/servers", "#/jobs", "#/compare", "#/start", f"#/servers/{HOSTILE}"):
            await page.go(route)
            if route == "#/jobs/j1":
                await page.see(HOSTILE)
            assert await page.evaluate("document.querySelectorAll('main img, main b').length") == 0, route
        assert await page.evaluate("window.pwned") is None

    stage.play(scenario, backend=hostile_backend())


def test_an_address_that_leads_nowhere_says_so(stage: Stage) -> None:
    """A link to a run that is gone shows the service's own words."""

    async def scenario(_: Backend, page: Page) -> None:
        await page.see("there is no gone")

    stage.play(scenario, "#/runs/gone")
