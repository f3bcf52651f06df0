"""What the patched worker adds to a start: pairs, bars, and which servers are compared."""

from __future__ import annotations

import pytest

from benchmarks.startup import Start, extra, judged, variants_of
from harness.config import make_config
from harness.variants import server_plans


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


def test_servers_differ_in_the_worker_alone() -> None:
    """SGLang's own launcher against ours, with the same arguments beside the threshold that never disables."""
    settings = {"model": "TARGET", "draft": "DRAFT", "concurrency": [1, 8]}
    plans = [server_plans(make_config(settings | {"variants": variants_of(kind)})) for kind in ("static", "patched")]
    (static,), (patched,) = plans
    assert (static.command[2], patched.command[2]) == ("sglang.launch_server", "patched_worker")
    assert patched.command[3:] == (*static.command[3:], "--speculative-disable-batch-threshold", "-1")
    assert patched.env == static.env
