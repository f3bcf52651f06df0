"""Closed loops against the mock in another process: exact concurrency, windows, failures, an early end.

Most points end with their list of requests, not with their window: a machine that stands still for seconds then loses
none of them.
"""

import contextlib
import json
import resource
import signal
import socket
import threading
import urllib.request
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from harness.errors import UserError
from harness.load import LoadResult, require_open_files, run_closed_loop, worker_count
from harness.load_plan import LoadPlan, Timeouts
from harness.metrics import level_metrics
from harness.mock import running_mock
from harness.mock_streams import Timing
from harness.records import PointKey, RequestRecord
from harness.workload import WorkloadPlan

KEY = PointKey("baseline", 5, 1)
WORK = WorkloadPlan(input_tokens=4, output_tokens=8)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A mock: 20 ms to the first chunk, then 5 ms each."""
    with running_mock(Timing(0.02, 0.005)) as base:
        yield base


def load(
    url: str, limit: int | None, seconds: float = 60.0, work: WorkloadPlan = WORK, **plan: Any
) -> tuple[LoadResult, list[RequestRecord]]:
    """Send `limit` requests, or for `seconds`, five at once."""
    records: list[RequestRecord] = []
    fields: dict[str, Any] = {"concurrency": 5, "warmup_s": 0.2, "duration_s": seconds, "drain_s": 60.0, "workers": 1}
    full = LoadPlan(url=url, api=work.api, **fields | plan)
    requests = islice(work.requests(full.concurrency, 1), limit)
    return run_closed_loop(full, requests, KEY, 2, records.extend), records


def stamps(url: str, reset: bool = False) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/{'reset' if reset else 'stamps'}") as answer:
        body: dict[str, Any] = json.load(answer)
        return body


def test_a_folder_of_the_same_name_is_not_run(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Client processes are of this checkout, whatever package called harness the working folder holds."""
    other = tmp_path / "harness"
    other.mkdir()
    (other / "__init__.py").touch()
    (other / "load_worker.py").write_text("raise SystemExit('another harness')\n")
    monkeypatch.chdir(tmp_path)
    _, records = load(url, 5)
    assert [r.error for r in records] == [None] * 5


@pytest.mark.parametrize("transport", ["raw", "aiohttp"])
@pytest.mark.parametrize("workers", [1, 2])
def test_concurrency_is_exact(url: str, transport: str, workers: int) -> None:
    """The server sees exactly C at once, however many processes and by either transport, and every record is there."""
    stamps(url, reset=True)
    result, records = load(url, 100, transport=transport, workers=workers)
    seen = stamps(url)
    assert (seen["in_flight_max"], seen["disconnects"]) == (5, 0)
    assert seen["requests"] == len(records) == len({r.index for r in records}) == 100
    assert {r.worker for r in records} == set(range(workers))
    assert {(r.error, r.attempt, r.variant) for r in records} == {(None, 2, "baseline")}
    assert result.workers == workers
    begun_s = sorted(r.start_s + r.send_delay_s for r in records)[4]  # all slots are busy from here on
    ended_s = min(max(r.start_s for r in records if r.worker == worker) for worker in range(workers))
    got = level_metrics(records, begun_s, ended_s)
    assert got.in_flight_mean is not None
    assert 3 < got.in_flight_mean <= 5  # how near to 5 depends on the machine, which is what the verdict is for
    assert got.ttft_p50_s is not None
    assert got.ttft_p50_s >= 0.02


@pytest.mark.parametrize("api", ["generate", "completions", "chat"])
def test_a_path_prefix_and_every_api(url: str, api: str) -> None:
    """The base URL's own path is kept in front of each API's."""
    result, records = load(f"{url}/crlf", 20, work=WorkloadPlan(api=api, input_tokens=4, output_tokens=8))
    assert [r.error for r in records] == [None] * 20
    assert not result.interrupted


def test_load_stays_on_until_the_window_has_drained(url: str) -> None:
    """Requests are still started after the window, as long as one of the window's is in flight."""
    result, records = load(url, None, seconds=3.0)
    inside = [r for r in records if result.window_start_s <= r.start_s < result.window_end_s]
    last_end_s = max(r.end_s for r in inside)
    after = [r.start_s for r in records if r.start_s >= result.window_end_s]
    assert after
    assert max(after) <= last_end_s


def test_starts_are_staggered(url: str) -> None:
    """The first requests are spread over the first half of the warm-up: that is when they were due, if not sent."""
    _, records = load(url, 5, work=WorkloadPlan(input_tokens=4, output_tokens=256), warmup_s=1.0)
    assert sorted(r.start_s for r in records) == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4], abs=0.001)


@pytest.mark.parametrize("transport", ["raw", "aiohttp"])
@pytest.mark.parametrize(
    ("mode", "error"),
    [("abort", "aborted"), ("drop", "connection_lost"), ("http_503", "http_status"), ("no_http", "malformed")],
)
def test_failures_over_a_socket(url: str, mode: str, error: str, transport: str) -> None:
    """A failing server gives errors of the right class by both transports; the loop goes on, and retries nothing."""
    stamps(url, reset=True)
    _, records = load(f"{url}/{mode}", 20, transport=transport)
    assert [r.error for r in records] == [error] * 20
    assert stamps(url)["requests"] == 20


@pytest.mark.parametrize(
    ("mode", "limits", "error"),
    [
        ("hang", Timeouts(first_token_s=0.3), "first_token_timeout"),
        ("hang_inside", Timeouts(chunk_s=0.3), "chunk_timeout"),
        ("hang_inside", Timeouts(total_s=0.4), "total_timeout"),
    ],
)
def test_timeouts_see_through_keep_alive_comments(url: str, mode: str, limits: Timeouts, error: str) -> None:
    """A stream that only pings is given up, each limit as its own class, with the time it really took."""
    _, records = load(f"{url}/{mode}", 10, timeouts=limits)
    assert [r.error for r in records] == [error] * 10
    assert all(0.29 < r.end_s - r.start_s < 10 for r in records)


def test_a_stalled_stream_cannot_hold_the_point(url: str) -> None:
    """What is still in flight when the drain ends is cancelled and recorded."""
    result, records = load(f"{url}/hang", None, seconds=4.0, drain_s=0.3)
    assert {r.error for r in records} == {"cancelled"}
    assert len(records) == 5
    assert not result.interrupted


def test_a_list_that_ends_early_ends_the_point(url: str) -> None:
    """A finite list is sent once, completely, and then the point is over."""
    _, records = load(url, 12)
    assert sorted(r.index for r in records) == list(range(12))


def test_stop_keeps_what_there_is(url: str) -> None:
    """A stop event ends the point at once; finished requests are delivered, those in flight as cancelled."""
    stop = threading.Event()
    records: list[RequestRecord] = []
    plan = LoadPlan(url=url, concurrency=3, warmup_s=0.1, duration_s=60.0, workers=1)

    def on_progress(now_s: float) -> None:
        if any(record.ok for record in records):
            stop.set()

    result = run_closed_loop(plan, WORK.requests(3, 1), KEY, 1, records.extend, on_progress, stop)
    assert result.interrupted
    assert result.window_end_s < 30
    assert {r.error for r in records} == {None, "cancelled"}


def test_ctrl_c_keeps_what_there_is(url: str) -> None:
    """SIGINT reaches this process only, and ends the point as a stop does."""
    records: list[RequestRecord] = []
    plan = LoadPlan(url=url, concurrency=3, warmup_s=0.1, duration_s=60.0, workers=2)
    sent: list[bool] = []

    def on_progress(now_s: float) -> None:
        if any(record.ok for record in records) and not sent:
            sent.append(True)
            signal.raise_signal(signal.SIGINT)

    result = run_closed_loop(plan, WORK.requests(3, 1), KEY, 1, records.extend, on_progress)
    assert result.interrupted
    assert any(r.ok for r in records)


def test_nobody_listens() -> None:
    """A refused connection is a dead server, not a hang."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        result, records = load(f"http://127.0.0.1:{port}", None)
    assert (result.server_died, records) == (True, [])
    assert "refused" in result.detail


@pytest.fixture
def full_queue() -> Iterator[str]:
    """A server that accepts nobody, and whose queue of those who wait is full."""
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        with contextlib.suppress(TimeoutError):
            for _ in range(100):
                waiting = stack.enter_context(socket.socket())
                waiting.settimeout(0.5)
                waiting.connect(listening.getsockname())
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.parametrize("transport", ["raw", "aiohttp"])
def test_a_connection_that_does_not_come_about(full_queue: str, transport: str) -> None:
    """Ahead of the point it is a dead server; for a request it is a class of its own."""
    result, records = load(full_queue, 5, transport=transport, timeouts=Timeouts(connect_s=0.3))
    if transport == "raw":
        assert (result.server_died, result.detail, records) == (True, "connecting timed out", [])
    else:  # opens its connections with the first requests
        assert [r.error for r in records] == ["connect_timeout"] * 5


def test_a_server_that_dies_ends_the_point() -> None:
    """Its requests are on record as lost, and the point does not run on against nothing."""
    with running_mock(Timing(0.02, 0.005)) as base:
        process_end = threading.Event()
        records: list[RequestRecord] = []
        plan = LoadPlan(url=base, concurrency=2, warmup_s=0.1, duration_s=60.0, workers=1)

        def on_progress(now_s: float) -> None:
            if any(record.ok for record in records) and not process_end.is_set():
                process_end.set()
                with contextlib.suppress(OSError):  # it hangs up, in one way or another
                    urllib.request.urlopen(f"{base}/quit").close()

        result = run_closed_loop(plan, WORK.requests(2, 1), KEY, 1, records.extend, on_progress)
    assert result.server_died
    assert result.window_end_s < 50
    assert {"connection_lost", "connect_failed"} >= {r.error for r in records if r.error}
    assert any(r.ok for r in records)


def test_workers_share_the_cores() -> None:
    """Never more processes than streams, and what was asked for otherwise."""
    assert worker_count(LoadPlan(url="", concurrency=1)) == 1
    assert worker_count(LoadPlan(url="", concurrency=3, workers=8)) == 3


def test_too_few_files_are_refused_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the limit that would be needed."""
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, 256))
    with pytest.raises(UserError, match="is 256, this load needs 1064"):
        require_open_files(1000)
