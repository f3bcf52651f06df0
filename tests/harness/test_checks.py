"""A point that must not be used gets the verdict that says why."""

from typing import Any

import msgspec
import pytest

from harness.checks import REMEDIES, Calibration, judge, sent_share
from harness.load_plan import ClientStats
from harness.metrics import LevelMetrics

GOOD = LevelMetrics(
    requests=100,
    duration_s=10.0,
    output_tok_per_s=1000.0,
    ttft_p50_s=0.05,
    gap_p50_s=0.01,
    e2e_p50_s=1.0,
    in_flight_mean=7.9,
    send_delay_p99_s=0.001,
    window_slope=0.01,
    slope_p=0.5,
    window_autocorrelation=0.1,
    cached_tokens=0,
    prompt_tokens=10_000,
)
IDLE = ClientStats(lag_p99_s=0.001, cpu=0.1)


def changed(**fields: Any) -> LevelMetrics:
    return msgspec.structs.replace(GOOD, **fields)


def test_a_good_point_is_done() -> None:
    """Nothing wrong: done, ok, no flags."""
    got = judge(GOOD, IDLE, 8)
    assert (got.status, got.verdict, got.flags) == ("done", "ok", "")


@pytest.mark.parametrize(("dropped", "verdict"), [(0, "ok"), (5, "ok"), (6, "load_not_delivered")])
def test_an_open_loop_is_judged_by_what_was_sent(dropped: int, verdict: str) -> None:
    """Few in flight and a trend are no faults there; too many dropped requests are. A closed loop drops nothing."""
    metrics = changed(in_flight_mean=0.5, window_slope=0.9, slope_p=0.001, requests=3)
    assert judge(metrics, IDLE, 1024, open_share=sent_share(100, dropped)).verdict == verdict
    assert judge(metrics, IDLE, 1024, open_share=sent_share(100, None)).verdict == "load_not_delivered"


@pytest.mark.parametrize(
    ("fields", "status", "verdict"),
    [
        ({"in_flight_mean": 7.5}, "invalid", "load_not_delivered"),
        ({"in_flight_mean": None}, "invalid", "load_not_delivered"),
        ({"send_delay_p99_s": 0.2}, "invalid", "client_limited"),
        ({"window_slope": -0.3, "slope_p": 0.001}, "invalid", "unstable"),
        ({"cached_tokens": 5000}, "invalid", "cached_prefix"),
        ({"errors": 30}, "partial", "errors"),
        ({"errors": 100, "ttft_p50_s": None}, "invalid", "errors"),
        ({"requests": 0, "errors": 3}, "invalid", "errors"),
        ({"requests": 0}, "invalid", "no_requests"),
    ],
)
def test_faults_of_the_point(fields: dict[str, Any], status: str, verdict: str) -> None:
    """Each fault has its verdict, and each verdict a remedy."""
    got = judge(changed(**fields), IDLE, 8)
    assert (got.status, got.verdict) == (status, verdict)
    assert verdict in REMEDIES


@pytest.mark.parametrize("client", [ClientStats(cpu=0.95), ClientStats(lag_p99_s=0.02)])
def test_a_busy_client_is_the_limit(client: ClientStats) -> None:
    """CPU or event-loop lag of the client invalidate the point."""
    assert judge(GOOD, client, 8).verdict == "client_limited"


def test_lag_is_small_beside_a_long_first_token() -> None:
    """The same lag is no limit where the first token takes a second."""
    assert judge(changed(ttft_p50_s=1.0), ClientStats(lag_p99_s=0.02), 8).verdict == "ok"


def test_beyond_the_calibration_is_client_limited() -> None:
    """More tokens per client process than selftest saw it take."""
    assert judge(GOOD, IDLE, 8, calibration=Calibration(900.0)).verdict == "client_limited"
    assert judge(GOOD, IDLE, 8, calibration=Calibration(900.0), workers=2).verdict == "ok"
    assert judge(changed(tokens_per_chunk=2.0), IDLE, 8, calibration=Calibration(900.0)).verdict == "ok"


def test_what_the_sweep_knows_goes_first() -> None:
    """A dead server, an interrupt and an unproven worker outweigh the figures."""
    assert judge(GOOD, IDLE, 8, server_died=True).verdict == "server_died"
    assert judge(GOOD, IDLE, 8, interrupted=True).status == "partial"
    got = judge(GOOD, IDLE, 8, unproven="the server says EAGLEWorker")
    assert (got.status, got.verdict) == ("invalid", "unproven_worker")


def test_a_shared_prefix_may_be_cached() -> None:
    """A chat template is the same for all prompts."""
    assert judge(changed(cached_tokens=5000), IDLE, 8, shared_prefix=True).verdict == "ok"


@pytest.mark.parametrize(
    ("fields", "flag"),
    [
        ({"degenerate": 50}, "degenerate_output"),
        ({"errors": 1}, "some_errors"),
        ({"inexact": 1}, "tokens_per_chunk_unknown"),
        ({"requests": 10}, "few_requests"),
        ({"window_autocorrelation": 0.8}, "autocorrelated"),
        ({"gap_p50_s": 0.001}, "gaps_imprecise"),
    ],
)
def test_flags_do_not_invalidate(fields: dict[str, Any], flag: str) -> None:
    """A remark leaves the point usable."""
    got = judge(changed(**fields), IDLE, 8)
    assert (got.verdict, got.flags) == ("ok", flag)
