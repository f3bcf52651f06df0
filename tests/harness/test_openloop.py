"""Schedules keep their rates, an open loop keeps its schedule, and both beginnings of a request are told."""

from collections.abc import Callable, Iterator
from itertools import islice, pairwise, takewhile
from typing import Any

import pytest

from harness.arrivals import burst, constant, gamma, poisson, ramp, scheduled
from harness.load import run_open_loop
from harness.load_plan import LoadPlan
from harness.mock import running_mock
from harness.mock_streams import Timing
from harness.openloop import Slo, goodput, open_metrics
from harness.records import PointKey, RequestRecord
from harness.workload import WorkloadPlan

KEY = PointKey("baseline", 8, 1)


def until(arrivals: Iterator[float], end_s: float) -> list[float]:
    return list(takewhile(lambda at: at < end_s, arrivals))


@pytest.mark.parametrize(
    "make",
    [
        lambda: constant(50.0),
        lambda: poisson(50.0, 1),
        lambda: gamma(50.0, 0.25, 1),
        lambda: gamma(50.0, 4.0, 1),
        lambda: ramp(20.0, 80.0, 200.0),
        lambda: ramp(20.0, 80.0, 200.0, 1),
        lambda: burst(25.0, 150.0, 10.0, 2.0, 1),
        lambda: burst(25.0, 150.0, 10.0, 2.0),
    ],
)
def test_schedules_keep_their_mean_rate(make: Callable[[], Iterator[float]]) -> None:
    """Fifty requests per second on average, in order, and the same each time."""
    times = until(make(), 200.0)
    assert len(times) == pytest.approx(50 * 200, rel=0.03)
    assert all(a <= b for a, b in pairwise(times))
    assert times == until(make(), 200.0)


def test_burstiness_is_the_gaps_variation() -> None:
    """The squared variation of gamma gaps is one over their shape."""
    for shape in (0.25, 1.0, 4.0):
        gaps = [b - a for a, b in pairwise(islice(gamma(10.0, shape, 3), 20_000))]
        mean = sum(gaps) / len(gaps)
        variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
        assert variance / mean**2 == pytest.approx(1 / shape, rel=0.1)


def test_a_ramp_rises_and_stays() -> None:
    """Its rate at the start, in the middle, at the end and beyond."""
    times = until(ramp(10.0, 110.0, 10.0), 12.0)
    per_second = [sum(second <= at < second + 1 for at in times) for second in range(12)]
    assert per_second[:10] == pytest.approx([15 + 10 * second for second in range(10)], abs=1)
    assert per_second[10:] == pytest.approx([110, 110], abs=1)


def test_bursts_come_at_the_end_of_each_period() -> None:
    """Eight calm seconds, then two at the burst's rate."""
    times = until(burst(10.0, 100.0, 10.0, 2.0), 20.0)
    assert sum(at % 10 < 8 for at in times) == pytest.approx(160, abs=2)
    assert sum(at % 10 >= 8 for at in times) == pytest.approx(400, abs=2)


def play(url: str, due: list[float], **more: Any) -> tuple[list[RequestRecord], int]:
    records: list[RequestRecord] = []
    fields: dict[str, Any] = {"concurrency": 8, "warmup_s": 0.0, "duration_s": 2.0, "workers": 2, "drain_s": 10.0}
    plan = LoadPlan(url=url, **fields | more)
    work = WorkloadPlan(input_tokens=4, output_tokens=4)
    result = run_open_loop(plan, scheduled(work.requests(8, 1), due), KEY, 1, records.extend)
    return sorted(records, key=lambda r: r.index), result.dropped


def test_the_schedule_is_kept() -> None:
    """Requests leave at their times, from whichever process; none is lost, and each says when it was due."""
    due = [0.0, 0.5, 0.5, 1.0, 1.5]
    with running_mock(Timing(0.02, 0.005)) as url:
        records, dropped = play(url, due)
    assert ([r.scheduled_s for r in records], dropped) == (due, 0)
    assert all(-0.001 <= r.start_s - at < 30 for r, at in zip(records, due, strict=True))  # never early
    assert {r.error for r in records} == {None}


def test_a_queue_at_the_client_shows_in_the_latency_from_the_schedule() -> None:
    """Ten per second into one slot of half a second each: latency grows from the schedule, not from the send."""
    with running_mock(Timing(0.5, 0.0)) as url:
        records, dropped = play(url, [0.1 * i for i in range(6)], concurrency=1, workers=1)
        got = open_metrics(records, 0.0, 0.6)
        assert (got.requests, dropped) == (6, 0)
        assert got.late in (5, 6)  # the first one finds the slot free, but may be late by the machine's fault
        assert got.e2e_sent_p50_s is not None
        assert got.e2e_scheduled_p50_s is not None
        assert got.e2e_sent_p50_s >= 0.5
        # The third and fourth of six waited for two and three others, less the time until they were due.
        assert got.e2e_scheduled_p50_s - got.e2e_sent_p50_s > 0.9
    with running_mock(Timing(3.0, 0.0)) as url:  # busy for long after the last one is due
        records, dropped = play(url, [0.1 * i for i in range(6)], concurrency=1, workers=1, drop_after_s=0.0)
        assert (len(records), dropped) == (1, 5)


def request(due_s: float, start_s: float, ticks: tuple[int, ...], **more: Any) -> RequestRecord:
    end_s = start_s + sum(ticks) * 1e-5
    return RequestRecord("baseline", 1, 1, 0, start_s, end_s, scheduled_s=due_s, chunk_ticks=ticks, **more)


def test_goodput_counts_what_met_every_limit() -> None:
    """Each limit alone, a failure, and a one-token answer, which has no tpot."""
    good = request(0.0, 0.0, (10_000, 1000, 1000))
    waited = request(0.0, 0.5, (10_000, 1000, 1000))
    stalled = request(0.0, 0.0, (10_000, 30_000, 1000))
    failed = request(0.0, 0.0, (10_000, 1000, 1000), error="aborted")
    short = request(0.0, 0.0, (10_000,))
    records = [good, waited, stalled, failed, short]
    assert goodput(records, Slo(), 0.0, 1.0).good_per_s == 4
    assert goodput(records, Slo(ttft_s=0.2), 0.0, 1.0).good_per_s == 3
    assert goodput(records, Slo(tpot_s=0.02), 0.0, 1.0).good_per_s == 3
    assert goodput(records, Slo(gap_max_s=0.02), 0.0, 1.0).share == pytest.approx(0.6)
    assert goodput(records, Slo(e2e_s=0.2), 0.0, 1.0).good_per_s == 2
    assert goodput([], Slo(), 0.0, 1.0).share is None
