"""Users who come and go: how many are there, when each comes, and that the load keeps to it."""

from __future__ import annotations

import asyncio
from collections import deque
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness import load_loops
from harness.crowd import Crowd, joins, mean_users, users_at
from harness.load import run_closed_loop
from harness.load_client import Client
from harness.load_loops import ClosedLoop
from harness.load_plan import LoadPlan
from harness.mock import running_mock
from harness.mock_streams import Timing
from harness.records import PointKey, RequestRecord
from harness.transport import Exchange
from harness.workload import WorkloadPlan

RAMP: Crowd = ((2.0, 1.0), (6.0, 9.0), (10.0, 1.0))
BURSTS: Crowd = ((0.0, 2.0), (3.0, 2.0), (3.0, 6.0), (5.0, 6.0), (5.0, 2.0), (8.0, 2.0), (8.0, 6.0), (10.0, 6.0))


def test_users_along_the_lines() -> None:
    """Flat before and after, straight between, and after a jump at its time."""
    assert [users_at(RAMP, at_s) for at_s in (0.0, 2.0, 3.0, 6.0, 9.0, 10.0, 99.0)] == [1, 1, 3, 9, 3, 1, 1]
    assert [users_at(BURSTS, at_s) for at_s in (0.0, 2.999, 3.0, 4.999, 5.0, 9.0)] == [2, 2, 6, 6, 2, 6]


def test_each_user_comes_when_there_are_more_than_before() -> None:
    """The first is there from the start; the ninth comes just before the top; with bursts, once in each."""
    assert list(joins(RAMP, 0)) == [0.0]
    assert [list(joins(RAMP, user)) for user in (1, 4, 8, 9)] == [[2.0], [3.5], [5.5], []]
    assert [list(joins(BURSTS, user)) for user in (1, 2, 5, 6)] == [[0.0], [3.0, 8.0], [3.0, 8.0], []]


def test_the_mean_is_the_area() -> None:
    """By hand, over the whole shape, a part of it, and beyond it."""
    assert mean_users(RAMP, 2.0, 10.0) == 5
    assert mean_users(RAMP, 3.0, 4.0) == 4
    assert mean_users(RAMP, 0.0, 4.0) == pytest.approx((2 + 6) / 4)
    assert mean_users(BURSTS, 0.0, 10.0) == pytest.approx((3 * 2 + 2 * 6 + 3 * 2 + 2 * 6) / 10)


class Clock:
    """What the loop takes for the time."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_loop_lets_users_in_and_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of six slots two are used; at the jump all; after it, whose request ends leaves until two are left, and a
    second jump lets in as many as have left, not more."""
    clock = Clock()
    monkeypatch.setattr(load_loops, "monotonic", clock)
    done = cast(Exchange, SimpleNamespace(error=None, status=200, end_s=0.0))
    sent: list[Any] = []
    plan = LoadPlan("", concurrency=6, warmup_s=0.0, duration_s=100.0, crowd=BURSTS)
    client = SimpleNamespace(
        plan=plan,
        begin=SimpleNamespace(slots=tuple(range(6))),
        window=(0.0, 100.0),
        stopped=False,
        in_flight={},
        requests=deque([object()]),
        no_more_requests=False,
        submit=lambda due_s, after: sent.append(after),
        on_fed=None,
    )

    async def scenario() -> None:
        loop = ClosedLoop(cast(Client, client))
        loop.start(clock.now)
        for _ in range(6):
            loop._join(clock.now)
        assert len(sent) == 2
        clock.now = 103.0
        for _ in range(6):
            loop._join(clock.now)
        assert len(sent) == 6
        clock.now = 105.0
        for _ in range(3):
            sent[0](done)
        assert (len(sent), loop._users) == (6, 3)
        clock.now = 108.0
        for _ in range(4):
            loop._join(clock.now)
        assert (len(sent), loop._users) == (9, 6)
        sent[0](done)
        assert (len(sent), loop._users) == (10, 6)

    asyncio.run(scenario())


def at_once(records: list[RequestRecord]) -> int:
    """The most in flight among these requests."""
    events = sorted([(r.start_s, 1) for r in records] + [(r.end_s, -1) for r in records], key=lambda e: (e[0], e[1]))
    running = most = 0
    for _, step in events:
        running += step
        most = max(most, running)
    return most


@pytest.mark.parametrize("workers", [1, 2])
def test_client_processes_keep_to_the_crowd(workers: int) -> None:
    """Never more than six; two before the jump, and two of those who begin after the fall, however many processes."""
    crowd: Crowd = ((0.0, 2.0), (0.4, 2.0), (0.4, 6.0), (0.8, 6.0), (0.8, 2.0))
    records: list[RequestRecord] = []
    work = WorkloadPlan(input_tokens=4, output_tokens=8)
    with running_mock(Timing(0.02, 0.005)) as url:
        plan = LoadPlan(url, concurrency=6, warmup_s=0.2, duration_s=3.0, drain_s=60.0, workers=workers, crowd=crowd)
        run_closed_loop(plan, work.requests(6, 1), PointKey("eagle3", 6, 1), 1, records.extend)
    assert {record.error for record in records} == {None}
    assert at_once([record for record in records if record.end_s < 0.39]) <= 2
    assert at_once(records) <= 6
    assert at_once([record for record in records if record.start_s >= 0.8]) <= 2
