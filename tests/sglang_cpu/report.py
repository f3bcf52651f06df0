"""Results of a run, written line by line to the file that SPECPIVOT_TEST_REPORT names, so that they outlast whatever
ends the run. Without it nothing is written.
"""

from __future__ import annotations

import json
import os
import time
import urllib.error
from pathlib import Path

import pytest

from harness.environment import collect_environment
from tests.sglang_cpu.machines import Machine
from tests.sglang_cpu.slot import Slot

ROOT = Path(__file__).parents[2]
BLOCK = ("steps_on", "steps_off", "off_graph_steps", "switches", "ungated", "ranks", "ranks_agree", "last_error")
PLACES = (str(ROOT), str(Path.home()))  # of this machine: no business of a report's reader


def begin(machine: Machine) -> None:
    """Where and with what this runs."""
    facts = collect_environment()
    gpus = ", ".join(f"{gpu['name']} (sm{gpu['sm']}), driver {facts['driver']}" for gpu in facts["gpus"])
    packages = ", ".join(f"{name} {version}" for name, version in facts["packages"].items())
    _write(f"# {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}, {machine.name}: {gpus or facts['cpu']}")
    _write(f"# Python {facts['python']}, {packages or 'SGLang in environments of its own'}")


def add(result: pytest.TestReport) -> None:
    """One line per test, and the text of what failed."""
    if result.when != "call" and result.outcome == "passed":
        return
    phase = "" if result.when == "call" else f" ({result.when})"
    _write(f"{result.outcome.upper():7} {result.duration:7.1f} s  {result.nodeid.rpartition('/')[2]}{phase}")
    if result.failed:
        _write("\n".join(f"    {line}" for line in result.longreprtext.splitlines()))


def end(slot: Slot) -> None:
    """What each patched server that still runs says of itself, and what it captured."""
    for wanted, server in slot.running():
        if wanted.module != "patched_worker":
            continue
        try:
            block = server.internal_state()["specpivot"]
        except (urllib.error.URLError, ConnectionError, KeyError) as error:
            _write(f"# {wanted.name}: no state, {error!r}")
            continue
        who = f"{block['worker']} of SGLang {block['version']}, source {block['source_hash']}"
        _write(f"# {wanted.name}: {who}; {json.dumps({key: block.get(key) for key in BLOCK})}")
        for line in server.log_text().splitlines():
            if "specpivot: captured" in line:
                _write(f"# {wanted.name}: {line.partition('specpivot: ')[2]}")


def _write(text: str) -> None:
    name = os.environ.get("SPECPIVOT_TEST_REPORT")
    if not name:
        return
    for place in PLACES:
        text = text.replace(place, "~")
    with Path(name).open("a") as file:
        file.write(text + "\n")
