"""May this point be used? One verdict, which says why not, and flags, which are remarks.

A figure that the client could not have measured right, or a load that the server did not get, must never reach a
curve. The limits stand here as constants, and docs/load-generator.md gives their reasons.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.load_plan import ClientStats
from harness.metrics import LevelMetrics
from harness.records import Status

DELIVERED_SHARE = 0.95  # of C, in flight on average over the window; of an open loop's requests, sent at all
CPU_LIMIT = 0.85  # of one core, the busiest client process
LAG_SHARE_OF_TTFT = 0.1  # event-loop lag (p99) that may hide in the time to first token ...
LAG_FLOOR_S = 0.005  # ... beside what any shared machine has
SEND_DELAY_SHARE_OF_E2E = 0.05
TOLERATED_ERRORS = 0.01  # share of requests
TREND_LIMIT = 0.15  # relative change of throughput over the window ...
TREND_P = 0.01  # ... that is not chance
CACHED_SHARE = 0.02  # of prompt tokens: random prompts share a first token by chance
DEGENERATE_SHARE = 0.1
AUTOCORRELATION_LIMIT = 0.5
FEW_REQUESTS_PER_SLOT = 2
# Remedy of each verdict, for people.
REMEDIES: dict[str, str] = {
    "server_died": "see the server's log, then resume",
    "client_crashed": "see the client's words on standard error, then resume",
    "interrupted": "resume the run",
    "no_requests": "measure longer: no request started inside the window",
    "errors": "see error_detail in requests.jsonl",
    "load_not_delivered": "raise the file and connection limits, or use more client processes",
    "client_limited": "use more client processes or a machine of its own for the client; see selftest",
    "unproven_worker": "see the server's worker proof in manifest.json",
    "row_lost": "resume the run: levels.csv was damaged, and the proof of what ran stood in it alone",
    "cached_prefix": "flush the cache, or switch the radix cache off",
    "unstable": "warm up longer, measure longer, and look for other load on the machine",
}


@dataclass(frozen=True, slots=True)
class Judgement:
    status: Status
    verdict: str  # "ok", or a key of REMEDIES
    flags: str  # space-separated


@dataclass(frozen=True, slots=True)
class Calibration:
    """What selftest found this client able to do.

    Attributes:
        max_tok_per_s: tokens per second, each in a chunk of its own, that one client process can take in.
    """

    max_tok_per_s: float


def judge(
    metrics: LevelMetrics,
    client: ClientStats,
    concurrency: int,
    *,
    workers: int = 1,
    interrupted: bool = False,
    server_died: bool = False,
    unproven: str | None = None,
    shared_prefix: bool = False,
    calibration: Calibration | None = None,
    open_share: float | None = None,
) -> Judgement:
    """Decide whether a point may be used.

    Args:
        metrics: its figures.
        client: what the client measured of itself.
        concurrency: what was asked for.
        workers: client processes that shared it.
        interrupted, server_died: from LoadResult.
        unproven: why the worker class is not proven; None where it is, or nothing was claimed.
        shared_prefix: prompts share a prefix by design (a chat template), so cached tokens are expected.
        calibration: this machine's limits, where selftest has measured them.
        open_share: from `sent_share`. An open loop may have any number in flight and any trend.
    """
    flags = " ".join(_flags(metrics, client, concurrency if open_share is None else 0))
    if server_died:
        return Judgement("partial" if metrics.requests else "invalid", "server_died", flags)
    if interrupted:
        return Judgement("partial" if metrics.requests else "invalid", "interrupted", flags)
    if not metrics.requests:
        return Judgement("invalid", "errors" if metrics.errors else "no_requests", flags)
    if metrics.errors > TOLERATED_ERRORS * metrics.requests:
        return Judgement("partial" if metrics.ttft_p50_s is not None else "invalid", "errors", flags)
    if unproven is not None:
        verdict = "unproven_worker"
    elif client_limited(metrics, client, workers, calibration):
        verdict = "client_limited"
    else:
        verdict = _fault(metrics, concurrency) if open_share is None else _open_fault(open_share)
        if verdict == "ok" and not shared_prefix and _cached(metrics):
            verdict = "cached_prefix"
    return Judgement("done" if verdict == "ok" else "invalid", verdict, flags)


def _cached(metrics: LevelMetrics) -> bool:
    return (metrics.cached_tokens or 0) > CACHED_SHARE * metrics.prompt_tokens


def sent_share(sent: int, dropped: int | None) -> float | None:
    """The part of an open loop's requests that was sent; None for a closed loop, which drops nothing."""
    return None if dropped is None else sent / max(1, sent + dropped)


def _open_fault(share: float) -> str:
    return "load_not_delivered" if share < DELIVERED_SHARE else "ok"


def _fault(metrics: LevelMetrics, concurrency: int) -> str:
    if (metrics.in_flight_mean or 0.0) < DELIVERED_SHARE * concurrency:
        return "load_not_delivered"
    trend = abs(metrics.window_slope or 0.0)
    if trend > TREND_LIMIT and (metrics.slope_p or 0.0) < TREND_P:
        return "unstable"
    return "ok"


def client_limited(
    metrics: LevelMetrics, client: ClientStats, workers: int = 1, calibration: Calibration | None = None
) -> bool:
    """Whether the client, not the server, may have set the figures."""
    if client.cpu > CPU_LIMIT:
        return True
    if client.lag_p99_s > LAG_FLOOR_S + LAG_SHARE_OF_TTFT * (metrics.ttft_p50_s or 0.0):
        return True
    if (metrics.send_delay_p99_s or 0.0) > LAG_FLOOR_S + SEND_DELAY_SHARE_OF_E2E * (metrics.e2e_p50_s or 0.0):
        return True
    # The mock sends a chunk per token; it is chunks that cost a client.
    chunks_per_s = (metrics.output_tok_per_s or 0.0) / max(metrics.tokens_per_chunk or 1.0, 1.0)
    return calibration is not None and chunks_per_s > calibration.max_tok_per_s * workers


def _flags(metrics: LevelMetrics, client: ClientStats, concurrency: int) -> list[str]:
    remarks = {
        "some_errors": 0 < metrics.errors <= TOLERATED_ERRORS * metrics.requests,
        "degenerate_output": metrics.degenerate > DEGENERATE_SHARE * metrics.requests,
        "tokens_per_chunk_unknown": metrics.inexact > 0,
        "few_requests": metrics.requests < FEW_REQUESTS_PER_SLOT * concurrency,
        "autocorrelated": (metrics.window_autocorrelation or 0.0) > AUTOCORRELATION_LIMIT,
        "gaps_imprecise": metrics.gap_p50_s is not None and client.lag_p99_s > metrics.gap_p50_s / 2,
    }
    return [name for name, holds in remarks.items() if holds]
