"""A real Chromium for the tests of the page, driven over its DevTools protocol.

Every wait is for a condition that the page itself reports. Whatever the page logs as an error (an exception, a refused
inline style) is kept, and the stage fails the test for it.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
from base64 import b64decode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp

from tests.needs import lacking

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
    "--no-default-browser-check", "--disable-extensions",
    "--disable-features=SpareRendererForSitePerProcess", "--remote-debugging-port=0",
)  # fmt: skip
PATIENCE_S = 100.0
# Keys that type nothing, or more than their own name: code and number of the key, and the text it types.
KEYS = {"Tab": (9, ""), "Enter": (13, "\r"), " ": (32, " "), "Escape": (27, ""), "ArrowRight": (39, ""),
        "ArrowLeft": (37, ""), "ArrowDown": (40, ""), "Home": (36, ""), "End": (35, "")}  # fmt: skip


def program() -> str:
    """The browser on PATH, by one of its names."""
    found = next((path for name in PROGRAMS if (path := shutil.which(name))), None)
    if found is None:
        lacking("Chromium: apt-get install chromium")
    return found


def shown(selector: str) -> str:
    """JavaScript for the text of every element that fits, in one list."""
    return f"[...document.querySelectorAll({json.dumps(selector)})].map((e) => e.textContent)"


class Navigated(AssertionError):
    """The document in which something was evaluated gave way to another one."""


@dataclass(eq=False)
class Page:
    """A tab, and what it complained of since its address was opened."""

    call: Callable[..., Any]
    problems: list[str] = field(default_factory=list)

    async def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, awaited where it is a promise."""
        answer = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{expression}: {answer['exceptionDetails']['exception'].get('description')}")
        return answer["result"].get("value")

    async def until(self, expression: str) -> Any:
        """Wait until an expression is true, and return its value; an error counts as not yet."""
        poll = (
            "new Promise((done) => { const look = () => { let found = null; try { found = "
            + expression
            + "; } catch {}"
            " if (found) done(found); else setTimeout(look, 15); }; look(); })"
        )
        try:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    with suppress(Navigated):  # the page that was asked went away: ask the one that came
                        return await self.evaluate(poll)
        except TimeoutError:
            shown = await self.evaluate("document.body.innerText.slice(0, 3000)")
            raise AssertionError(f"never true: {expression}\nproblems: {self.problems}\nthe page:\n{shown}") from None

    async def see(self, text: str) -> None:
        """Wait until the page shows a text."""
        await self.until(f"document.body.innerText.includes({json.dumps(text)})")

    async def text(self, selector: str) -> str:
        """What an element shows, once it is there."""
        return str(await self.until(f"document.querySelector({json.dumps(selector)}).textContent"))

    async def go(self, route: str) -> None:
        """Another view of the page, by its address, once it is whole."""
        await self.evaluate(
            f"((route) => {{ if (location.hash === route) return; location.hash = route;"
            f" document.querySelector('main').setAttribute('aria-busy', 'true'); }})({json.dumps(route)})"
        )
        await self.settled()

    async def settled(self) -> None:
        """Wait until the view that was asked for is there: nothing moves any more by itself."""
        await self.until("document.querySelector('main[aria-busy=false] h1, main[aria-busy=false] .failed')")

    async def press(self, key: str, times: int = 1) -> None:
        """Press and release a key."""
        number, text = KEYS[key]
        code = {"Tab": "Tab", " ": "Space"}.get(key, key)
        for _ in range(times):
            about = {"key": key, "code": code, "windowsVirtualKeyCode": number}
            await self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **about)
            await self.call("Input.dispatchKeyEvent", type="keyUp", **about)

    async def tab_to(self, expression: str) -> None:
        """Press Tab until the focused element, called `e`, fits."""
        for _ in range(80):
            await self.press("Tab")
            if await self.evaluate(f"((e) => Boolean({expression}))(document.activeElement)"):
                return
        raise AssertionError(f"Tab never reaches {expression}")

    async def type(self, text: str) -> None:
        """Type into whatever has the focus."""
        await self.call("Input.insertText", text=text)

    async def point(self, selector: str, across: float = 0.5, down: float = 0.5) -> tuple[float, float]:
        """Move the mouse over an element, by default to its middle."""
        place = await self.until(
            f"((e) => {{ e.scrollIntoView({{block: 'center'}}); const r = e.getBoundingClientRect();"
            f" const at = [r.x + {across} * r.width, r.y + {down} * r.height];"
            f" return r.width && e.contains(document.elementFromPoint(...at)) && at; }})"
            f"(document.querySelector({json.dumps(selector)}))"
        )
        await self.call("Input.dispatchMouseEvent", type="mouseMoved", x=place[0], y=place[1])
        return place[0], place[1]

    async def click(self, selector: str) -> None:
        """Click an element as a person does: at the place where it is."""
        x, y = await self.point(selector)
        for kind in ("mousePressed", "mouseReleased"):
            await self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    async def look(self, width: int = 1280, height: int = 900, scheme: str = "light") -> None:
        """Set the size of the window and the colour scheme."""
        phone = width < 500
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        await self.call("Emulation.setEmulatedMedia", features=features)

    async def picture(self, whole: bool = True) -> bytes:
        """A screenshot as PNG, for whoever wants to look."""
        answer = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return b64decode(answer["data"])


@dataclass(eq=False)
class Chromium:
    """The browser's end of the DevTools connection."""

    socket: aiohttp.ClientWebSocketResponse
    waiting: dict[int, asyncio.Future[dict[str, Any]]] = field(default_factory=dict)
    tab: Page | None = None
    sent: int = 0

    async def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol, of a tab or of the browser."""
        self.sent += 1
        number = self.sent
        self.waiting[number] = asyncio.get_running_loop().create_future()
        message = {"id": number, "method": method, "params": params} | ({"sessionId": session} if session else {})
        await self.socket.send_json(message)
        try:
            answer = await self.waiting[number]
        finally:
            del self.waiting[number]
        if "error" in answer:
            refused = Navigated if "navigated" in answer["error"]["message"] else AssertionError
            raise refused(f"{method}: {answer['error']}")
        return dict(answer["result"])

    async def listen(self) -> None:
        """Hand out answers, and keep what pages complain of; ends with the connection."""
        async for message in self.socket:
            told = json.loads(message.data)
            if (waiting := self.waiting.get(told.get("id", 0))) and not waiting.done():
                waiting.set_result(told)
            elif self.tab and told.get("method") == "Runtime.executionContextsCleared":
                self.tab.problems.clear()  # another address: what follows is of its page
            elif self.tab and "method" in told and (problem := complaint(told)):
                self.tab.problems.append(problem)
        for waiting in self.waiting.values():
            if not waiting.done():
                waiting.set_exception(ConnectionError("Chromium closed the connection"))

    async def open(self, url: str) -> Page:
        """The page at an address, in the one tab that all tests share: one each costs more than the tests do.

        No cookie, window size or place of the mouse of an earlier test is left.
        """
        tab = self.tab = self.tab or await self._new_tab()
        await self.call("Storage.clearCookies")
        await tab.look()
        await tab.call("Input.dispatchMouseEvent", type="mouseMoved", x=0, y=0)
        await tab.call("Page.navigate", url=url)
        return tab

    async def _new_tab(self) -> Page:
        target = (await self.call("Target.createTarget", url="about:blank"))["targetId"]
        session = (await self.call("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
        tab = Page(partial(self.call, session=session))
        for domain in ("Runtime", "Log", "Page"):
            await tab.call(f"{domain}.enable")
        return tab


def complaint(event: dict[str, Any]) -> str | None:
    """What an event of a page says that a page without fault would not. An answer such as 404 is no fault of it."""
    params = event.get("params", {})
    if event["method"] == "Runtime.exceptionThrown":
        details = params["exceptionDetails"]
        return str(details.get("exception", {}).get("description") or details["text"])
    if event["method"] == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert", "warning"):
        return f"console.{params['type']}: {params['args']}"
    entry = params.get("entry", {})
    if event["method"] == "Log.entryAdded" and entry["level"] == "error" and entry["source"] != "network":
        return str(entry["text"])
    return None


@asynccontextmanager
async def chromium(folder: Path) -> AsyncIterator[Chromium]:
    """Start the browser with an empty profile in `folder`; end it with all its processes."""
    process = _start(folder)
    try:
        address = await _address(process, folder)
        async with aiohttp.ClientSession() as http, http.ws_connect(address, max_msg_size=0) as socket:
            browser = Chromium(socket)
            listening = asyncio.create_task(browser.listen())
            yield browser
            listening.cancel()
    finally:
        _end(process)


def _start(folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "chromium.log").open("wb") as log:
        return subprocess.Popen(
            [program(), *FLAGS, f"--user-data-dir={folder / 'profile'}", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            env={**os.environ, "HOME": str(folder)},
        )  # fmt: skip


async def _address(process: subprocess.Popen[bytes], folder: Path) -> str:
    """Where the browser listens: it writes it into its profile when it is ready."""
    file = folder / "profile" / "DevToolsActivePort"
    async with asyncio.timeout(PATIENCE_S):
        while not (file.exists() and file.read_text().count("\n")):
            said = (folder / "chromium.log").read_text(errors="replace")
            assert process.poll() is None, f"Chromium ended with {process.returncode}: {said[-2000:]}"
            await asyncio.sleep(0.02)
    port, path = file.read_text().split("\n")[:2]
    return f"ws://127.0.0.1:{port}{path}"


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the whole process group: Chromium is many processes."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(timeout=10)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue
    process.wait(timeout=60)
