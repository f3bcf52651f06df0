"""What a client process does between reads: parse within its bounds, watch its limits, die with its parent."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from harness.api import PlannedRequest
from harness.load_client import Client
from harness.load_plan import Begin, Feed, LoadPlan, Need, Records
from harness.mock import running_mock
from harness.mock_streams import Ask, Timing, events
from harness.records import PointKey
from harness.stream import StreamReader
from harness.transport import Exchange, monotonic

ROOT = Path(__file__).resolve().parents[2]


def client_of(sent: list[object], slots: int = 2) -> Client:
    plan = LoadPlan(url="http://127.0.0.1:9", concurrency=slots)
    return Client(Begin(plan, PointKey("baseline", slots, 1), 1, 0, tuple(range(slots))), sent.append)


def exchange_of(client: Client, tokens: int, index: int = 0) -> tuple[Exchange, StreamReader]:
    """An exchange whose events have arrived and are not parsed."""
    exchange = Exchange(PlannedRequest(index, b"", 4, tokens), monotonic(), client.backlog)
    exchange.status = 200
    for body in events(Ask("generate", 4, tokens), Timing()):
        exchange.add(monotonic(), body)
    exchange.add(monotonic(), b"data: [DONE]\n\n")
    exchange.end_s = monotonic()
    return exchange, StreamReader("generate")


def test_records_of_streams_that_end_together_come_in_portions() -> None:
    """However many there are: none twice, none lost, in the order in which they ended, and never many at a time."""

    async def scenario() -> list[Records]:
        sent: list[object] = []
        client = client_of(sent)
        client._finished.extend(exchange_of(client, 1, index) for index in range(300))
        client.parse_everything()
        return [message for message in sent if isinstance(message, Records)]

    portions = asyncio.run(scenario())
    assert max(len(portion.records) for portion in portions) <= 128  # fewer where parsing has taken long
    assert [record.index for portion in portions for record in portion.records] == [*range(300)]


def test_unparsed_bytes_are_bounded() -> None:
    """Beyond the limit even streams in flight are parsed, however busy the loop is."""

    async def scenario() -> None:
        client = client_of([])
        client._limit = 10_000
        exchange, stream = exchange_of(client, 400)
        client.in_flight[exchange] = stream
        assert client.backlog.unparsed_bytes > 100_000
        job = asyncio.create_task(client.parse_in_idle_time())
        for _ in range(10_000):
            if client.backlog.unparsed_bytes <= 10_000:
                break
            await asyncio.sleep(0.001)
        job.cancel()
        assert len(stream.arrivals) > 300
        assert stream.completion_tokens == len(stream.arrivals)

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_parsing_stops_at_its_budget() -> None:
    """A slice of no time parses one batch of reads at most, and the record comes when the rest is parsed."""
    sent: list[object] = []
    client = client_of(sent)
    client._finished.append(exchange_of(client, 400))
    client.parse(0.0)
    assert (len(client._finished), sent) == (1, [])
    client.parse_everything()
    (message,) = sent
    assert isinstance(message, Records)
    assert (message.records[0].output_tokens, message.records[0].error) == (400, None)


def test_requests_are_asked_for_ahead_of_need() -> None:
    """One question at a time, again after each answer, and none when the list has ended."""
    sent: list[object] = []
    client = client_of(sent)
    client.ask()
    client.ask()
    assert sent == [Need(256)]
    client.feed(Feed([PlannedRequest(0, b"", None, None)]))
    assert sent == [Need(256), Need(255)]
    client.feed(Feed([], last=True))
    assert len(sent) == 2


SCRIPT = """
import sys
from harness.load import run_closed_loop
from harness.load_plan import LoadPlan
from harness.records import PointKey
from harness.workload import WorkloadPlan

plan = LoadPlan(url=sys.argv[1], concurrency=2, warmup_s=0.1, duration_s=600.0, workers=2)
work = WorkloadPlan(input_tokens=4, output_tokens=4)
on_records = lambda records: print(len(records), flush=True)
run_closed_loop(plan, work.requests(2, 1), PointKey("baseline", 2, 1), 1, on_records)
"""


def test_client_processes_die_with_a_killed_parent() -> None:
    """After SIGKILL no client process is left, and what was measured had already left them."""
    with running_mock(Timing(0.01, 0.005)) as url:
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", SCRIPT, url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as parent:
            assert parent.stdout is not None
            assert int(parent.stdout.readline()) > 0
            workers = psutil.Process(parent.pid).children()
            assert len(workers) == 2
            parent.send_signal(signal.SIGKILL)
        deadline = time.monotonic() + 200
        while any(worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE for worker in workers):
            assert time.monotonic() < deadline
            time.sleep(0.05)
