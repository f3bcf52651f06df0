"""What the patched worker adds to a start: pairs, bars, and which servers are compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import startup
from benchmarks.startup import Start, extra, judged, variants_of
from harness.bench import Bench
from harness.config import SweepConfig, make_config
from harness.errors import UserError
from harness.variants import server_plans
from tests.harness.commands import SIM


def test_a_difference_is_paired_and_has_an_interval() -> None:
    """By hand: differences of 1 and 3 have a standard deviation of sqrt(2), and t is 12.706 with one degree."""
    found = extra([10.0, 20.0], [11.0, 23.0], bar=1.5)
    assert (found.mean, found.low, found.high) == pytest.approx((2.0, 2 - 12.7062, 2 + 12.7062), abs=1e-3)
    assert found.met
    assert not extra([10.0, 20.0, 30.0], [12.0, 22.01, 31.99], bar=1.5).met
    assert (extra([10.0], [11.0], 0.5).low, extra([10.0], [11.0], 0.5).met) == (None, False)


def test_memory_is_judged_where_it_was_seen() -> None:
    """Rounds of static and patched starts; without a GPU there is nothing to say of memory."""
    starts = [
        Start("static", 60.0, 90.0),
        Start("patched", 71.0, 90.6),
        Start("static", 62.0, 90.0),
        Start("patched", 72.0, 90.5),
    ]
    found = judged("measured", starts)
    assert (found.start_extra_s.mean, found.start_extra_s.met) == (10.5, True)
    assert found.memory_extra_gib is not None
    assert (found.memory_extra_gib.mean, found.memory_extra_gib.met) == (pytest.approx(0.55), True)
    assert judged("measured", [Start("static", 1.0), Start("patched", 1.0)]).memory_extra_gib is None


def test_a_start_that_fails_leaves_the_rounds_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second round's patched server dies: the first is in the file and is judged; without one there is nothing."""
    seconds = iter((90.0, 60.0, 71.0, 62.0))

    def started(kind: startup.Kind, config: SweepConfig, logs: Path) -> Start:
        second = next(seconds, None)
        if second is None:
            raise UserError("server speculative ended")
        return Start(kind, second)

    monkeypatch.setattr(startup, "start", started)
    settings = {"sim": SIM, "concurrency": [1]}
    document = json.loads(startup.measure(settings, 3, tmp_path / "startup.json"))
    assert document == json.loads((tmp_path / "startup.json").read_text())
    assert [one["start_s"] for one in document["starts"]] == [60.0, 71.0]
    assert document["start_extra_s"]["mean"] == 11.0
    with pytest.raises(UserError, match="ended"):
        startup.measure(settings, 3, None)


def test_servers_differ_in_the_worker_alone() -> None:
    """SGLang's own launcher against ours, with the same arguments beside the threshold that never disables."""
    settings = {"model": "TARGET", "draft": "DRAFT", "concurrency": [1, 8]}
    plans = [server_plans(make_config(settings | {"variants": variants_of(kind)})) for kind in ("static", "patched")]
    (static,), (patched,) = plans
    assert (static.command[2], patched.command[2]) == ("sglang.launch_server", "patched_worker")
    assert patched.command[3:] == (*static.command[3:], "--speculative-disable-batch-threshold", "-1")
    assert patched.env == static.env


def test_a_server_that_was_not_loaded_is_no_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it holds is not what it will hold."""
    monkeypatch.setattr(Bench, "warm_up", lambda self, server: "server_busy")
    config = make_config({"sim": SIM, "variants": variants_of("static"), "concurrency": [1]})
    with pytest.raises(UserError, match=r"static server was not loaded \(server_busy\)"):
        startup.start("static", config, tmp_path)
