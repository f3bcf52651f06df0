"""`specpivot serve` as people run it, with the real SGLang behind it: it shows, it sets, and it switches."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.sglang_cpu.servers import NUM_STEPS, Server
from tests.sglang_cpu.slot import Patched
from tests.sglang_cpu.traffic import greedy, prompt
from tests.tuner.service.test_serve import COMMAND, call, served, until

USERS = 4
THRESHOLD = 2


@contextmanager
def busy(server: Server) -> Iterator[None]:
    """Four users who ask again and again; nothing may go wrong for any of them."""
    enough = threading.Event()

    def ask(number: int) -> None:
        while not enough.is_set():
            server.generate(text=prompt(number), sampling_params=greedy(128))

    with ThreadPoolExecutor(USERS) as pool:
        asking = [pool.submit(ask, number) for number in range(USERS)]
        try:
            yield
        finally:
            enough.set()
        for one in asking:
            one.result()


@pytest.mark.only_full
@pytest.mark.arrangements("0.5.16-v2")
def test_the_service_shows_sets_and_switches_a_real_server(patched: Patched, tmp_path: Path) -> None:
    """Live state, Apply with its read-back, and the autopilot on and off, each as the server itself tells it."""
    with served(COMMAND, tmp_path) as (url, _):
        box = f"{url}/api/v1/servers/box"
        call(f"{url}/api/v1/servers", {"name": "box", "url": patched.server.url})
        idle = until(lambda: call(box), lambda found: found["state"] != "down")
        assert (idle["state"], idle["problem"], idle["version"]) == ("up", None, patched.arrangement.release)
        assert (idle["worker"], idle["threshold"]) == (patched.state()["worker"], None)

        with busy(patched.server):
            live = until(lambda: call(box), lambda found: found["batch"] and found["batch"] > THRESHOLD)
            assert (live["state"], live["speculating"]) == ("up", True), live
            assert 1.0 < live["accept_len"] <= NUM_STEPS + 1
            assert live["tok_per_s"] > 0

            applied = call(f"{box}/apply", {"threshold": THRESHOLD})
            assert (applied["agrees"], applied["read_back"]["threshold"]) == (True, THRESHOLD)
            assert patched.state()["threshold"] == THRESHOLD
            off = until(lambda: call(box), lambda found: found["speculating"] is False)
            assert (off["state"], off["threshold"], off["steps_off"] > 0) == ("up", THRESHOLD, True), off

            order = {"state": "on", "bounds": [1, 12]}
            shown = call(f"{box}/autopilot", order)["autopilot"]
            assert (shown["state"], shown["bounds"]) == ("on", [1, 12])
            assert patched.state()["autopilot"]["state"] == "auto"
            until(lambda: patched.state()["autopilot"]["flipped_steps"], lambda steps: steps > 0)
            under = until(lambda: call(box), lambda found: found["batch"] and found["autopilot"]["state"] == "on")
            assert (under["state"], under["problem"]) == ("up", None)

            assert call(f"{box}/autopilot", {"state": "off"})["autopilot"]["state"] == "off"
            assert patched.state()["autopilot"]["state"] == "held"
