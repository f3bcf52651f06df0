"""Figures of an open loop, where a request has two beginnings: when it was due and when it was sent.

Latency from the schedule is what a user would see, latency from the send is what the server did; a client that shows
only the second hides its own queue. Goodput counts the requests that met all of their limits.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

from harness.records import TICK_S, RequestRecord

LATE_S = 0.01


class OpenMetrics(msgspec.Struct, frozen=True):
    """What became of the requests that were due inside the window.

    Attributes:
        offered_per_s: that were due; dropped ones are not among the records, add LoadResult.dropped.
        achieved_per_s: that were answered in full.
        late: sent more than LATE_S after their time.
        *_scheduled_*: counted from when they were due; *_sent_*: from when they were sent.
    """

    requests: int
    offered_per_s: float
    achieved_per_s: float
    late: int
    ttft_scheduled_p50_s: float | None
    ttft_scheduled_p99_s: float | None
    ttft_sent_p50_s: float | None
    ttft_sent_p99_s: float | None
    e2e_scheduled_p50_s: float | None
    e2e_scheduled_p99_s: float | None
    e2e_sent_p50_s: float | None
    e2e_sent_p99_s: float | None


class Slo(msgspec.Struct, frozen=True):
    """Limits that a good request meets, in seconds; None does not limit."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    gap_max_s: float | None = None
    e2e_s: float | None = None


class Goodput(msgspec.Struct, frozen=True):
    """Requests that met all limits: per second, and as a share of those that belong to the window."""

    good_per_s: float
    share: float | None


def open_metrics(records: Iterable[RequestRecord], window_start_s: float, window_end_s: float) -> OpenMetrics:
    """The figures of one open-loop point.

    Args:
        records: all its requests.
        window_start_s, window_end_s: the measuring window on the point's clock; requests belong by when they were due.
    """
    due = [r for r in records if window_start_s <= _due_s(r) < window_end_s]
    answered = [r for r in due if r.ok and r.chunk_ticks]
    length_s = window_end_s - window_start_s
    wait_s = np.array([r.start_s - _due_s(r) for r in answered])
    ttft_s = np.array([r.chunk_ticks[0] * TICK_S for r in answered])
    e2e_s = np.array([r.end_s - r.start_s for r in answered])
    figures: dict[str, float | None] = {}
    for name, sent in (("ttft", ttft_s), ("e2e", e2e_s)):
        for share in (50, 99):
            figures[f"{name}_sent_p{share}_s"] = float(np.percentile(sent, share)) if answered else None
            figures[f"{name}_scheduled_p{share}_s"] = float(np.percentile(sent + wait_s, share)) if answered else None
    return OpenMetrics(
        requests=len(due),
        offered_per_s=len(due) / length_s,
        achieved_per_s=sum(r.ok for r in due) / length_s,
        late=sum(r.start_s - _due_s(r) > LATE_S for r in due),
        **figures,
    )


def goodput(records: Iterable[RequestRecord], slo: Slo, window_start_s: float, window_end_s: float) -> Goodput:
    """Requests of the window that succeeded within all limits; latencies count from the schedule where there is one.

    A request of one token has no tpot, and one of one chunk has no gap: such a limit does not apply to it.
    """
    due = [r for r in records if window_start_s <= _due_s(r) < window_end_s]
    good = sum(_meets(r, slo) for r in due)
    return Goodput(good / (window_end_s - window_start_s), good / len(due) if due else None)


def _due_s(record: RequestRecord) -> float:
    return record.start_s if record.scheduled_s is None else record.scheduled_s


def _meets(record: RequestRecord, slo: Slo) -> bool:
    if not record.ok or not record.chunk_ticks:
        return False
    arrivals = list(record.arrivals())
    due_s, (first_s, first_tokens) = _due_s(record), arrivals[0]
    later = sum(tokens for _, tokens in arrivals) - first_tokens
    tpot_s = (arrivals[-1][0] - first_s) / later if later else None
    gap_s = max(record.chunk_ticks[1:], default=0) * TICK_S
    figures = ((first_s - due_s, slo.ttft_s), (tpot_s, slo.tpot_s), (gap_s, slo.gap_max_s))
    within = all(limit is None or figure is None or figure <= limit for figure, limit in figures)
    return within and (slo.e2e_s is None or record.end_s - due_s <= slo.e2e_s)
