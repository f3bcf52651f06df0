"""One Chromium for every test of the page, started when the first one asks for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest

from tests.tuner.service.page_backend import Backend, serving
from tests.tuner.service.page_browser import Chromium, Page, chromium

Scenario = Callable[[Backend, Page], Awaitable[None]]


@dataclass(eq=False)
class Stage:
    """A browser, and the event loop in which it and the back ends live."""

    runner: asyncio.Runner
    browser: Chromium

    def play(self, scenario: Scenario, at: str = "#/runs", backend: Backend | None = None) -> None:
        """Open the page at an address of a back end of its own, play, and fail on anything the page complains of.

        The scenario begins when the view is whole, or with the login form.
        """
        self.runner.run(self._played(scenario, at, backend or Backend()))

    async def _played(self, scenario: Scenario, at: str, backend: Backend) -> None:
        async with asyncio.timeout(250), serving(backend):
            page = await self.browser.open(f"{backend.url}/{at}")
            await (page.settled() if backend.token is None else page.until("document.querySelector('#login[open]')"))
            await scenario(backend, page)
            assert page.problems == []


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """The stage of the session."""
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        browser = runner.run(stack.enter_async_context(chromium(tmp_path_factory.mktemp("chromium"))))
        yield Stage(runner, browser)
        runner.run(stack.aclose())
