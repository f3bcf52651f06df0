"""Fixtures for tests on the real SGLang, servers of one arrangement on two CPU cores, or all of them on a GPU.

Every test here carries the marker `sglang_full` (everything), and `sglang` unless its module says otherwise (the
subset that `make test` runs). A run that asks for one of the two by `-m` must run every test of it: a
skipped or deselected one makes the run fail. `-m sglang_gpu` takes the machine's GPU and the SGLang installed beside
this Python, for the arrangements of GPU_SUITE: without either there is nothing to run. SPECPIVOT_TEST_MACHINE=rehearsal
runs that selection on a CPU. SPECPIVOT_TEST_REPORT=FILE keeps results as they come, whatever ends the run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from tests.sglang_cpu import machines, report
from tests.sglang_cpu import models as tiny_models
from tests.sglang_cpu import slot as slot_module
from tests.sglang_cpu.machines import Machine
from tests.sglang_cpu.references import References
from tests.sglang_cpu.servers import ARRANGEMENTS, NUM_STEPS, Arrangement, Server, Wanted
from tests.sglang_cpu.slot import Patched, Slot, baseline, static_eagle
from tests.sglang_cpu.traffic import Answer

HERE = Path(__file__).parent
TEST_TIMEOUT_S = 900  # one test may build environments and start two servers on a busy machine
SERVER_FIXTURES = ("unpatched", "doomed", "patched", "wrong", "graphed", "paged", "tree", "two_ranks")
PAGED_SUBSET = (Arrangement("0.5.12.post1", "v1"), Arrangement("0.5.16", "v2"))
WRONG_SUBSET = (Arrangement("0.5.9", "v1"), Arrangement("0.5.23", "v2"))
TREES = tuple(one for one in ARRANGEMENTS if one.worker == "v1")  # v2 serves chains only
GRAPHED_SUBSET = (Arrangement("0.5.12.post1", "v1"), Arrangement("0.5.16", "v2"))
PARALLEL = (Arrangement("0.5.12.post1", "v1"), Arrangement("0.5.16", "v2"))
GPU_SUITE = (Arrangement("0.5.12.post1", "v1"), Arrangement("0.5.16", "v2"))
GPU_MODULES = (
    *("test_unpatched", "test_switching", "test_requests", "test_draft_kv", "test_memory", "test_with_graphs"),
    "test_tensor_parallel",
)
MACHINE = pytest.StashKey[Machine]()
_absent: list[str] = []


def pytest_configure(config: pytest.Config) -> None:
    config.stash[MACHINE] = _machine(config)
    config.addinivalue_line("markers", "sglang: a test on the real SGLang, in the subset of `make test`")
    config.addinivalue_line("markers", "sglang_full: a test on the real SGLang, subset and rest")
    config.addinivalue_line("markers", "sglang_gpu: a test on the real SGLang on a GPU")
    config.addinivalue_line("markers", "only_full: not in the subset")
    config.addinivalue_line("markers", "needs_grammars: needs a grammar backend, which a GPU machine may lack")
    config.addinivalue_line("markers", "arrangements(NAME...): the releases and worker classes that a test is about")


def _machine(config: pytest.Config) -> Machine:
    if "sglang_gpu" not in config.getoption("markexpr", ""):
        return machines.CPU
    return machines.REHEARSAL if os.environ.get("SPECPIVOT_TEST_MACHINE") == "rehearsal" else machines.gpu()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What a GPU does not run may need packages that its machine lacks."""
    ours = collection_path.parent == HERE and collection_path.stem.startswith("test_")
    return True if config.stash[MACHINE].name == "gpu" and ours and collection_path.stem not in GPU_MODULES else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    machine = config.stash[MACHINE]
    ours = [item for item in items if item.path.is_relative_to(HERE)]
    for item in ours:
        if _on_gpu(item, machine):
            item.add_marker(pytest.mark.sglang_gpu)
        item.add_marker(pytest.mark.sglang_full)
        if item.get_closest_marker("only_full") is None:
            item.add_marker(pytest.mark.sglang)
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_TIMEOUT_S))
    items.sort(key=_server_order)  # stable: what is not ours stays where it is


def _on_gpu(item: pytest.Item, machine: Machine) -> bool:
    arrangement = _arrangement(item)
    if item.path.stem not in GPU_MODULES or arrangement not in GPU_SUITE or arrangement.release not in machine.releases:
        return False
    if "two_ranks" in getattr(item, "fixturenames", ()) and machine.ranks < 2:
        return False
    return machine.grammars or not item.get_closest_marker("needs_grammars")


def _arrangement(item: pytest.Item) -> Arrangement | None:
    return item.callspec.params.get("arrangement") if hasattr(item, "callspec") else None


def _server_order(item: pytest.Item) -> tuple[str, int]:
    """Tests that need the same server follow one another."""
    if not item.path.is_relative_to(HERE):
        return ("", 0)
    arrangement = _arrangement(item)
    names = getattr(item, "fixturenames", ())
    kind = next((rank for rank, name in enumerate(SERVER_FIXTURES) if name in names), len(SERVER_FIXTURES))
    return (arrangement.name if arrangement else "zz", kind)


def pytest_deselected(items: list[pytest.Item]) -> None:
    for item in items:
        asked = item.config.getoption("markexpr")
        if asked in ("sglang", "sglang_full") and item.get_closest_marker(asked) is not None:
            _absent.append(f"{item.nodeid} deselected")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    result = yield
    if item.path.is_relative_to(HERE):
        report.add(result)
        if result.skipped:
            _absent.append(f"{item.nodeid} skipped")
    return result


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
def machine(pytestconfig: pytest.Config) -> Machine:
    """Where the servers run."""
    return pytestconfig.stash[MACHINE]


@pytest.fixture(scope="session")
def slot(request: pytest.FixtureRequest, machine: Machine, models: Path, logs: Path, probes: Path) -> Iterator[Slot]:
    """Holds the servers that run; where all of them can, they are started together."""
    wanted = _wanted_by(request.session.items, machine, models, probes)
    slot = Slot(machine, models, logs, () if machine.all_at_once else _groups(wanted, machine.resident))
    report.begin(machine)
    try:
        if machine.all_at_once:
            slot.start_all([one for servers in wanted.values() for one in servers])
        yield slot
    finally:
        report.end(slot)
        slot.empty()


def _wanted_by(
    items: list[pytest.Item], machine: Machine, models: Path, probes: Path
) -> dict[Arrangement, list[Wanted]]:
    """The servers that these tests will ask for, by arrangement, each in the order of their use."""
    make: dict[str, Callable[[Arrangement], Wanted]] = {
        "reference": lambda arrangement: baseline(arrangement, machine),
        "unpatched": lambda arrangement: static_eagle(arrangement, models),
        "accepted": lambda arrangement: static_eagle(arrangement, models),
        "patched": lambda arrangement: slot_module.patched(arrangement, models, probes),
        "wrong": lambda arrangement: slot_module.patched(arrangement, models, probes),
        "graphed": lambda arrangement: slot_module.graphed(arrangement, models, probes, machine),
        "paged": lambda arrangement: slot_module.paged(arrangement, models, probes),
        "tree": lambda arrangement: slot_module.tree(arrangement, models, probes),
    }
    used: dict[Arrangement, set[str]] = {}
    for item in items:
        if (arrangement := _arrangement(item)) is not None:
            used.setdefault(arrangement, set()).update(getattr(item, "fixturenames", ()))
    return {
        arrangement: list(dict.fromkeys(wanted(arrangement) for fixture, wanted in make.items() if fixture in names))
        for arrangement, names in used.items()
    }


def _groups(wanted: dict[Arrangement, list[Wanted]], size: int) -> list[list[Wanted]]:
    """Those of an arrangement, at most so many at a time."""
    return [servers[at : at + size] for servers in wanted.values() for at in range(0, len(servers), size)]


@pytest.fixture(scope="session")
def references(slot: Slot, models: Path) -> References:
    """Answers of unpatched servers, asked once for each."""
    return References(slot, models)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every test that uses `arrangement` runs once for each release and worker class that its servers exist for."""
    if "arrangement" not in metafunc.fixturenames:
        return
    subset = {"paged": PAGED_SUBSET, "tree": TREES, "wrong": WRONG_SUBSET, "two_ranks": PARALLEL[-1:]}
    subset["graphed"] = GRAPHED_SUBSET
    used = next((name for name in subset if name in metafunc.fixturenames), None)
    chosen = {"tree": TREES, "two_ranks": PARALLEL}.get(used or "", ARRANGEMENTS)
    named = metafunc.definition.get_closest_marker("arrangements")
    if named is not None:
        chosen = [one for one in chosen if one.name in named.args]
    parameters = [
        pytest.param(one, id=one.name, marks=[] if used is None or one in subset[used] else [pytest.mark.only_full])
        for one in chosen
    ]
    metafunc.parametrize("arrangement", parameters)


@pytest.fixture
def reference(references: References, arrangement: Arrangement) -> dict[str, list[Answer]]:
    """The baseline's answers by part of the traffic; asked for before a test's own server starts."""
    return references.of(arrangement)


@pytest.fixture
def unpatched(
    slot: Slot, models: Path, arrangement: Arrangement, reference: dict[str, list[Answer]]
) -> Iterator[Server]:
    """Static EAGLE-3 of the wheel itself, healthy before and after the test."""
    server = slot.use(static_eagle(arrangement, models))
    yield server
    server.assert_healthy()


@pytest.fixture
def doomed(slot: Slot, models: Path, arrangement: Arrangement) -> Iterator[Server]:
    """Static EAGLE-3 for a test that kills it."""
    wanted = static_eagle(arrangement, models)
    yield slot.use(wanted)
    slot.stop(wanted)


@pytest.fixture(scope="session")
def probes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the servers' probes are controlled and leave what they saw."""
    return tmp_path_factory.mktemp("probes")


@pytest.fixture
def accepted(references: References, arrangement: Arrangement) -> list[float]:
    """What static EAGLE-3 accepts per step, for each request of the streams; asked for as `reference` is."""
    return references.accepted(arrangement)


@pytest.fixture
def patched(
    slot: Slot, models: Path, probes: Path, arrangement: Arrangement, reference: dict[str, list[Answer]]
) -> Iterator[Patched]:
    """A patched server with radix cache, page size 1 and strict memory checks."""
    server = slot.use(slot_module.patched(arrangement, models, probes))
    yield from _checked(Patched(arrangement, server, probes, slot.machine.kv_tolerance))


@pytest.fixture
def graphed(
    slot: Slot, models: Path, probes: Path, arrangement: Arrangement, reference: dict[str, list[Answer]]
) -> Iterator[Patched]:
    """A patched server whose plain steps replay graphs."""
    server = slot.use(slot_module.graphed(arrangement, models, probes, slot.machine))
    yield from _checked(Patched(arrangement, server, probes))


@pytest.fixture
def paged(
    slot: Slot, models: Path, probes: Path, arrangement: Arrangement, reference: dict[str, list[Answer]]
) -> Iterator[Patched]:
    """The same with pages of 16 slots, and requests retracted every third step."""
    server = slot.use(slot_module.paged(arrangement, models, probes))
    yield from _checked(Patched(arrangement, server, probes))


@pytest.fixture
def tree(
    slot: Slot, models: Path, probes: Path, arrangement: Arrangement, reference: dict[str, list[Answer]]
) -> Iterator[Patched]:
    """A patched v1 server whose draft proposes a tree."""
    server = slot.use(slot_module.tree(arrangement, models, probes))
    yield from _checked(Patched(arrangement, server, probes))


@pytest.fixture
def two_ranks(
    slot: Slot,
    models: Path,
    tmp_path_factory: pytest.TempPathFactory,
    arrangement: Arrangement,
    reference: dict[str, list[Answer]],
) -> Iterator[Patched]:
    """A patched server on two tensor-parallel ranks, whose probes see this server only; it ends with the test."""
    probes = tmp_path_factory.mktemp("ranks")
    wanted = slot_module.two_ranks(arrangement, models, probes)
    yield Patched(arrangement, slot.use(wanted), probes)
    slot.stop(wanted)


@pytest.fixture
def wrong(models: Path, probes: Path, arrangement: Arrangement) -> Wanted:
    """The server of `patched`, for tests that make it fail: they come when all others are done with it."""
    return slot_module.patched(arrangement, models, probes)


def _checked(patched: Patched) -> Iterator[Patched]:
    """Never off and the default sync at the start of a test; healthy, and no step ungated, at its end."""
    patched.set_policy(-1)
    if patched.arrangement.worker == "v2":
        patched.set_sync_steps(NUM_STEPS + 1)
    yield patched
    patched.server.assert_healthy()
    state = patched.state()
    assert state["ungated"] == 0, state
    assert state["last_error"] is None, state
