"""How the page looks and whom it serves: colours, contrast, phones, screen readers; what its files may hold."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.needs import REQUIRE_ALL
from tests.tuner.runs import CURVES
from tests.tuner.service.conftest import Stage
from tests.tuner.service.page_backend import PAGE, Backend, summary
from tests.tuner.service.page_browser import Page, program
from tuner.style import BAND, LOOKS

# Relative luminance and contrast of two computed colours, by the formulas of WCAG 2.
CONTRAST = """((front, back) => {
  const light = (colour) => colour.match(/[\\d.]+/g).slice(0, 3).map((part) => part / 255)
    .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
    .reduce((sum, part, i) => sum + part * [0.2126, 0.7152, 0.0722][i], 0);
  const [a, b] = [light(front), light(back)].sort((x, y) => y - x);
  return (a + 0.05) / (b + 0.05);
})"""


def test_variants_have_the_colours_and_labels_of_the_plots(stage: Stage) -> None:
    """Colours, markers and labels are those of tuner/style.py, and the pivot its colour."""

    async def scenario(_: Backend, page: Page) -> None:
        looks = await page.evaluate("import('/static/looks.js').then((module) => module.LOOKS)")
        assert looks.keys() == LOOKS.keys()
        for name, look in LOOKS.items():
            colour = f"getComputedStyle(document.documentElement).getPropertyValue('--{name}').trim()"
            assert await page.evaluate(colour) == look.colour
            assert (looks[name]["label"], looks[name]["marker"]) == (look.label, look.marker)
            assert looks[name].get("dashed", False) == (look.line == "--")
        assert (
            await page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--band').trim()") == BAND
        )

    stage.play(scenario)


def test_dark_and_light_are_both_readable(stage: Stage) -> None:
    """The paper is light or dark as the system asks, and all text on it has the contrast of WCAG AA, curves 3:1."""

    async def colours(page: Page, scheme: str) -> dict[str, Any]:
        await page.look(scheme=scheme)
        style = "getComputedStyle(document.querySelector({!r}))"
        paper = await page.evaluate(style.format("body") + ".backgroundColor")
        worst = {}
        for selector in (
            "body",
            ".dim",
            "a",
            ".warnings li",
            ".state",
            ".readout th",
            ".pivot text",
            *(f".v-{v}" for v in CURVES),
        ):
            prop = "fill" if selector == ".pivot text" else "color"
            colour = await page.evaluate(f"{style.format(selector)}.{prop}")
            worst[selector] = await page.evaluate(f"{CONTRAST}({colour!r}, {paper!r})")
        return {"paper": paper, "contrast": worst}

    async def scenario(_: Backend, page: Page) -> None:
        await page.until(
            "['.pivot text', '.warnings li', '.state'].every((selector) => document.querySelector(selector))"
        )
        light, dark = await colours(page, "light"), await colours(page, "dark")
        assert light["paper"] == "rgb(255, 255, 255)"
        assert max(map(int, re.findall(r"\d+", dark["paper"]))) < 40
        for found in (light, dark):
            for selector, contrast in found["contrast"].items():
                assert contrast >= (3 if selector.startswith(".v-") else 4.5), (selector, contrast)

    stage.play(scenario, "#/runs/night")


ROUTES = (
    "#/runs",
    "#/runs/night",
    "#/servers",
    "#/servers/box",
    "#/jobs",
    "#/jobs/j1",
    "#/start",
    "#/compare/night/sim",
)


def test_nothing_but_tables_scrolls_sideways_on_a_phone(stage: Stage) -> None:
    """At 360 pixels no view is wider than the window, whatever the names."""

    async def scenario(backend: Backend, page: Page) -> None:
        backend.runs.append(summary("a-run-with-a-very-long-name-" * 3))
        await page.look(width=360, height=740)
        for route in ROUTES:
            await page.go(route)
            if route == "#/runs/night":
                await page.until("document.querySelectorAll('svg.chart .line').length === 9")
            wide = await page.evaluate("document.scrollingElement.scrollWidth")
            assert wide <= 360, (route, wide)

    stage.play(scenario)


async def nameless(page: Page) -> list[str]:
    """Roles of what takes the focus without saying what it is. The main part takes it for the skip link only."""
    nodes = (await page.call("Accessibility.getFullAXTree"))["nodes"]
    focusable = {"name": "focusable", "value": {"type": "booleanOrUndefined", "value": True}}
    reached = [node for node in nodes if focusable in node.get("properties", []) and not node["ignored"]]
    assert len(reached) > 5
    found = [node["role"]["value"] for node in reached if not node.get("name", {}).get("value")]
    return [role for role in found if role != "main"]


def test_everything_that_takes_the_focus_has_a_name(stage: Stage) -> None:
    """What Tab reaches says what it is to a screen reader, in every view; and each view has one main heading."""

    async def scenario(_: Backend, page: Page) -> None:
        for route in ROUTES:
            await page.go(route)
            assert await nameless(page) == [], route
            assert await page.evaluate("document.querySelectorAll('h1').length") == 1, route
        await page.evaluate("void document.querySelector('main').append(document.createElement('button'))")
        assert await nameless(page) == ["button"]

    stage.play(scenario)


def test_files_keep_to_the_rules() -> None:
    """Nothing is parsed as markup or code, nothing comes from elsewhere, no module is long."""
    forbidden = re.compile(
        r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\(|new Function| style="
        r"|https?://(?!www\.w3\.org/2000/svg|HOST)"
    )
    for file in PAGE.iterdir():
        text = file.read_text(encoding="utf-8")
        assert forbidden.findall(text) == [], file.name
        if file.suffix == ".js":
            assert len(text.splitlines()) < 300, file.name
            assert max(map(len, text.splitlines())) <= 120, file.name
    assert forbidden.findall('<p style="x">') == [" style="]


def test_a_missing_browser_is_a_failure_in_ci(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without Chromium the tests of the page say what to install; in CI they fail, elsewhere they are skipped."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv(REQUIRE_ALL, "1")
    with pytest.raises(pytest.fail.Exception, match="apt-get install chromium"):
        program()
    monkeypatch.delenv(REQUIRE_ALL)
    with pytest.raises(pytest.skip.Exception, match="apt-get install chromium"):
        program()
