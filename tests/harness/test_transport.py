"""Servers behind TLS and proxies, over sockets: which transport reaches what, and what a person is told where not."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.endpoint import Endpoint
from harness.errors import UserError
from harness.load import LoadResult, run_closed_loop
from harness.load_plan import LoadPlan
from harness.mock import running_mock
from harness.mock_streams import Timing
from harness.records import PointKey, RequestRecord
from harness.runfolder import RunFolder
from harness.transport import TransportName, make_transport, needs_aiohttp
from harness.transport_aiohttp import AiohttpTransport
from harness.transport_raw import RawTransport
from harness.verify import verify_run
from harness.workload import WorkloadPlan
from specpivot import app
from tests.harness.relays import CA, http_proxy, tls_terminator

REQUESTS = 12


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy but the test's own."""
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture(scope="module")
def mock() -> Iterator[str]:
    with running_mock(Timing(0.01, 0.002)) as base:
        yield base


@pytest.fixture
def trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests' CA is one that this process and its client processes trust."""
    monkeypatch.setenv("SSL_CERT_FILE", str(CA))


def load(url: str, transport: TransportName = "auto") -> tuple[LoadResult, list[RequestRecord]]:
    """A few requests over three connections."""
    records: list[RequestRecord] = []
    plan = LoadPlan(url=url, concurrency=3, warmup_s=0.1, duration_s=60.0, workers=1, transport=transport)
    requests = islice(WorkloadPlan(input_tokens=4, output_tokens=8).requests(3, 1), REQUESTS)
    return run_closed_loop(plan, requests, PointKey("baseline", 3, 1), 1, records.extend), records


@pytest.mark.usefixtures("trusted")
def test_tls(mock: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Whole answers over https, by a CA named in the environment, and no warning from the event loop."""
    with tls_terminator(mock, "/models/one") as url:
        _, records = load(url)
    assert [(record.error, record.output_tokens) for record in records] == [(None, 8)] * REQUESTS
    assert min(record.chunk_ticks[0] for record in records) > 900  # 9 ms
    assert capfd.readouterr().err == ""


def test_an_untrusted_certificate_is_named(mock: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Every request failed to connect, and says that it was the certificate and what to do."""
    with tls_terminator(mock) as url:
        _, records = load(url)
        with pytest.raises(
            UserError, match=r"certificate of .* is not trusted: .*; name its CA's file in SSL_CERT_FILE"
        ):
            Endpoint(url).require_healthy("--url")
    assert {record.error for record in records} == {"connect_failed"}
    assert all(re.search("is not trusted: .*SSL_CERT_FILE", record.error_detail or "") for record in records)
    assert capfd.readouterr().err == ""


@pytest.mark.usefixtures("trusted")
def test_https_through_a_proxy(mock: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """A tunnel for each connection, which carries several requests."""
    asked: list[str] = []
    with tls_terminator(mock) as url, http_proxy(asked) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy)
        _, records = load(url)
        assert set(asked) == {f"CONNECT {url.removeprefix('https://')}"}
    assert len(asked) == 3
    assert [record.error for record in records] == [None] * REQUESTS
    assert capfd.readouterr().err == ""


def test_http_through_a_proxy(mock: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every request goes by the proxy, with the whole URL, although the raw transport would be faster."""
    asked: list[str] = []
    with http_proxy(asked) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy)
        monkeypatch.setenv("http_proxy", proxy)
        _, records = load(mock)
    assert asked == [f"POST {mock}/generate"] * REQUESTS
    assert [record.error for record in records] == [None] * REQUESTS


@pytest.mark.usefixtures("trusted")
def test_no_proxy_is_heeded(mock: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host in NO_PROXY is reached directly, by either transport."""
    asked: list[str] = []
    with tls_terminator(mock) as url, http_proxy(asked) as proxy:
        for name, value in (("http_proxy", proxy), ("https_proxy", proxy), ("no_proxy", "127.0.0.1")):
            monkeypatch.setenv(name, value)
        for each in (url, mock):
            _, records = load(each)
            assert [record.error for record in records] == [None] * REQUESTS
    assert asked == []


@pytest.mark.usefixtures("trusted")
def test_a_proxy_that_refuses(mock: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No tunnel is no connection, with the proxy's status in the words."""
    with tls_terminator(mock) as url, http_proxy([], refuses=True) as proxy:
        monkeypatch.setenv("https_proxy", proxy)
        _, records = load(url)
    assert {record.error for record in records} == {"connect_failed"}
    assert all("403" in (record.error_detail or "") for record in records)


def test_auto_takes_raw_where_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """TLS and a proxy need aiohttp; everything else is raw."""

    async def kinds(*urls: str) -> list[type]:
        return [type(make_transport("auto", url, {})) for url in urls]

    assert asyncio.run(kinds("http://host:1/x", "https://host/x")) == [RawTransport, AiohttpTransport]
    monkeypatch.setenv("http_proxy", "http://proxy:1")
    monkeypatch.setenv("no_proxy", "near")
    assert asyncio.run(kinds("http://far:1/x", "http://near:1/x")) == [AiohttpTransport, RawTransport]
    assert not needs_aiohttp("http://near:1")
    with pytest.raises(UserError, match="raw transport speaks http only"):
        make_transport("raw", "https://host/x", {})


@pytest.fixture(scope="module")
def simulated() -> Iterator[str]:
    """A simulated patched server."""
    command = [sys.executable, "-m", "harness.sim.server", "--port", "0", "--variant", "eagle3"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        assert server.stdout is not None
        try:
            words = (word for line in server.stdout for word in line.split())
            yield next(word for word in words if word.startswith("http://")).rstrip("/,.;")
        finally:
            server.kill()


QUICK = ["--warmup", "0.3", "--duration", "2.5", "--input-tokens", "8", "--output-tokens", "8", "--concurrency", "2"]


@pytest.mark.usefixtures("trusted")
def test_bench_over_tls_with_a_prefix(simulated: str, tmp_path: Path) -> None:
    """One point over https: control plane and load both keep the prefix, and the run verifies."""
    with tls_terminator(simulated, "/models/one") as url:
        result = CliRunner().invoke(app, ["bench", "--url", url, "--out", str(tmp_path / "run"), *QUICK])
    said = json.loads(result.stdout.splitlines()[-1])
    assert (said["url"], said["source"], said["point"]["errors"]) == (url, "simulated", 0)
    assert said["point"]["server_tokens"] > 0
    assert verify_run(tmp_path / "run").problems == ()


@pytest.mark.usefixtures("trusted")
def test_a_sweep_over_tls_with_a_prefix(simulated: str, tmp_path: Path) -> None:
    """Two variants of one attached server over https: the policy is set and proven through the terminator."""
    with tls_terminator(simulated, "/models/one") as url:
        attached = [flag for name in ("eagle3", "forced_off") for flag in ("--attach", f"{name}={url}")]
        command = ["sweep", "--variants", "eagle3,forced_off", *attached, "--repeats", "1", "--out"]
        result = CliRunner().invoke(app, [*command, str(tmp_path / "run"), *QUICK])
    rows = {row.variant: row for row in RunFolder(tmp_path / "run").levels()}
    assert set(rows) == {"eagle3", "forced_off"}, result.output
    assert all(row.requests > 0 and row.errors == 0 and row.verdict != "unproven_worker" for row in rows.values())
    assert (rows["eagle3"].steps_off, rows["forced_off"].steps_on) == (0, 0)
    assert verify_run(tmp_path / "run").problems == ()


def test_bench_says_that_the_certificate_is_not_trusted(simulated: str, tmp_path: Path) -> None:
    """One line with the remedy, before anything is written."""
    with tls_terminator(simulated) as url:
        result = CliRunner().invoke(app, ["bench", "--url", url, "--out", str(tmp_path / "run"), *QUICK])
    assert isinstance(result.exception, UserError)
    assert "SSL_CERT_FILE" in str(result.exception)
    assert not (tmp_path / "run").exists()
