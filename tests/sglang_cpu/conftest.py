"""Fixtures for tests on the real SGLang, one server at a time on two CPU cores.

Every test here carries the marker `sglang_full` (everything), and `sglang` unless its module says otherwise (the
subset that `make test` runs). A run that asks for one of the two by `-m` must run every test of it: a skipped or
deselected one makes the run fail.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sglang_cpu import models as tiny_models
from tests.sglang_cpu import servers
from tests.sglang_cpu.references import References
from tests.sglang_cpu.servers import ARRANGEMENTS, Arrangement, Server

HERE = Path(__file__).parent
TEST_TIMEOUT_S = 900  # one test may build environments and start two servers on a busy machine
_absent: list[str] = []


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "sglang: a test on the real SGLang, in the subset of `make test`")
    config.addinivalue_line("markers", "sglang_full: a test on the real SGLang, subset and rest")
    config.addinivalue_line("markers", "only_full: not in the subset")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not item.path.is_relative_to(HERE):
            continue
        item.add_marker(pytest.mark.sglang_full)
        if item.get_closest_marker("only_full") is None:
            item.add_marker(pytest.mark.sglang)
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_TIMEOUT_S))


def pytest_deselected(items: list[pytest.Item]) -> None:
    for item in items:
        asked = item.config.getoption("markexpr")
        if asked in ("sglang", "sglang_full") and item.get_closest_marker(asked) is not None:
            _absent.append(f"{item.nodeid} deselected")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and report.nodeid.startswith("tests/sglang_cpu/"):
        _absent.append(f"{report.nodeid} skipped")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if _absent and session.config.getoption("markexpr") in ("sglang", "sglang_full"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in _absent:
        terminalreporter.write_line(f"every SGLang test must run: {line}", red=True)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the constructed target and drafts."""
    folder = tmp_path_factory.mktemp("models")
    tiny_models.make(folder)
    return folder


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where servers log; `SPECPIVOT_SERVER_LOGS` keeps the logs of a run."""
    kept = os.environ.get("SPECPIVOT_SERVER_LOGS")
    if kept is None:
        return tmp_path_factory.mktemp("logs")
    Path(kept).mkdir(parents=True, exist_ok=True)
    return Path(kept)


@pytest.fixture(scope="session")
def references(models: Path, logs: Path) -> References:
    return References(models, logs)


@pytest.fixture(scope="session", params=ARRANGEMENTS, ids=lambda arrangement: arrangement.name)
def unpatched_session(
    request: pytest.FixtureRequest, models: Path, logs: Path, references: References
) -> Iterator[tuple[Arrangement, Server]]:
    arrangement: Arrangement = request.param
    references.of(arrangement.release)  # first: one server at a time
    arguments = [*servers.eagle_arguments(models, "draft-with-memory"), *arrangement.arguments()]
    name = f"{arrangement.name}-unpatched"
    with servers.serve(name, arrangement.release, models, logs, arguments, arrangement.environment()) as server:
        yield arrangement, server


@pytest.fixture
def unpatched(unpatched_session: tuple[Arrangement, Server]) -> Iterator[tuple[Arrangement, Server]]:
    """An arrangement and a server with static EAGLE-3, healthy before and after the test."""
    unpatched_session[1].assert_healthy()
    yield unpatched_session
    unpatched_session[1].assert_healthy()
