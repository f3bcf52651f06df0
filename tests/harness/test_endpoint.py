"""Whatever answers at a server's address, the control plane ends in time with a value, None or one line."""

from __future__ import annotations

import itertools
import json
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.endpoint import Endpoint, check_url, specpivot_block
from harness.errors import UserError
from harness.proof import identity, reported_arguments, simulation_of, steps_between, worker_of
from harness.servers import attach
from harness.variants import ServerPlan
from patched_worker.policy import Policy
from tests.harness.faulty import OK, TALKS, Talk, document, saying, talking

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
KEYS = (
    *("internal_states", "simulation", "memory_usage", "version", "speculative_algorithm", "disable_overlap_schedule"),
    *("effective_max_running_requests_per_dp", "random_seed"),
)


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """For answers that never come; where one comes, a busy machine may take its time."""
    monkeypatch.setattr(Endpoint.healthy, "__defaults__", (0.2,))
    monkeypatch.setattr(Endpoint.require_healthy, "__defaults__", (0.2,))
    monkeypatch.setattr(Endpoint._request, "__defaults__", ("GET", None, 0.2, False))


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize("name", TALKS)
def test_no_answer_of_use_is_no_answer(name: str) -> None:
    """Every question of the control plane ends, in time, as unanswered: never a traceback, never a wait without end."""
    with talking(TALKS[name]) as url:
        server = Endpoint(url)
        assert not server.healthy()
        assert (server.server_info(), server.metrics()) == (None, None)
        assert not server.flush_when_idle(0.0)
        with pytest.raises(UserError, match="did not take the threshold"):
            server.set_policy(Policy.from_threshold(4))
        with pytest.raises(UserError, match="no server answers"):
            attach(ServerPlan("baseline", ("baseline",), url=url), None, None)


@pytest.mark.parametrize(
    "body", [b"<html>", b"[1]", b'{"a": NaN}', b"[" * 100_000, b'{"a": "\xff"}', b'{"a": "\\ud800"}', b"nan" * 10**6]
)
def test_what_is_no_json_object_is_lacking(body: bytes) -> None:
    """Half a character, NaN and nesting without end could not be written into a manifest."""
    with talking(document(body)) as url:
        assert Endpoint(url).server_info() is None


@pytest.mark.parametrize(
    ("text", "samples"),
    [
        (b"a 1\na{x=\"y\"} 2\nb NaN\nc +Inf\n", {"a": 3.0}),
        (b"# TYPE a gauge\na{x= 1\n", None),
        (b"a{", None),
        (b"\xff\xfe", None),
        (b"b NaN\n", None),
    ],
)  # fmt: skip
def test_metrics_are_finite_or_lacking(text: bytes, samples: dict[str, float] | None) -> None:
    """A counter that is no number must not reach a row."""
    with talking(document(text)) as url:
        assert Endpoint(url).metrics() == samples


def test_a_key_is_not_carried_to_where_a_redirect_points() -> None:
    """Neither to another host nor to a proxy from the environment."""
    heard: list[bytes] = []

    def listen(connection: socket.socket, over: threading.Event) -> None:
        heard.append(connection.recv(65536))

    with talking(listen) as elsewhere:
        moved: Talk = saying(f"HTTP/1.1 302 Found\r\nlocation: {elsewhere}/\r\ncontent-length: 0\r\n\r\n".encode())
        with talking(moved) as url, pytest.MonkeyPatch.context() as patch:
            patch.setenv("http_proxy", elsewhere)
            assert not Endpoint(url, "hush").healthy(timeout_s=1.0)
    assert heard == []


def test_a_server_that_holds_another_resume_point_is_refused() -> None:
    """It may report the threshold that was asked for and still switch elsewhere."""
    info = {"internal_states": [{"specpivot": {"threshold": 8, "resume_at": 2, "min_dwell": 16}}]}
    with talking(document(json.dumps(info).encode())) as url, pytest.raises(UserError, match="'resume_at': 2"):
        Endpoint(url).set_policy(Policy.from_threshold(8, resume_at=6))


def test_words_of_a_server_cannot_write_on_the_terminal() -> None:
    """Escape sequences, newlines and megabytes become one short line."""
    words = "\x1b[2J\nfirst\r\nsecond" + "x" * 10_000
    info = {"internal_states": [{"specpivot": {"threshold": 1, "last_error": words}}]}
    answer = OK + b"content-length: %d\r\n\r\n" % len(json.dumps(info)) + json.dumps(info).encode()
    with talking(saying(answer)) as url, pytest.raises(UserError) as caught:
        Endpoint(url).set_policy(Policy.from_threshold(8))
    assert str(caught.value).isprintable()
    assert "[2J first second" in str(caught.value)
    assert len(str(caught.value)) <= 1000


@pytest.mark.parametrize("url", ["http://me:hush@host:1", "http://host:1/?token=hush", "http://host:1/#hush"])
def test_a_url_with_a_secret_is_refused_without_repeating_it(url: str) -> None:
    """It would be written into manifests and command lines."""
    with pytest.raises(UserError, match="must not hold a password") as caught:
        check_url(url)
    assert "hush" not in str(caught.value)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=3), JSON, max_size=5), JSON)
def test_any_server_info_is_read(info: dict[str, Any], block: Any) -> None:
    """Readers of /server_info take any JSON object; counters without sense are a ValueError, which is a verdict."""
    for shown in (info, {**info, "internal_states": [{"specpivot": block}]}):
        worker_of(shown)
        identity(shown)
        reported_arguments(shown)
        simulation = simulation_of(shown)
        assert simulation is None or 0 < simulation["time_scale"] < 1e6
        found = specpivot_block(shown)
        if found is not None:
            with pytest.raises(ValueError, match="malformed"):
                steps_between(found, {**found, "by_batch": block})


def test_a_worker_that_never_disables_says_null_and_is_believed() -> None:
    """patched_worker.control reports no threshold as null, the wire's word for it is -1: both are the same policy."""
    state = {"specpivot": {"threshold": None, "min_dwell": 16, "resume_at": None}}
    with talking(document(json.dumps({"internal_states": [state]}).encode())) as url:
        assert Endpoint(url).set_policy(Policy.from_threshold(None))["threshold"] == -1
        with pytest.raises(UserError, match="refused threshold 8"):
            Endpoint(url).set_policy(Policy.from_threshold(8))


def flushing(refusals: int, running: int | None, busy: bytes | None = b"400 Bad Request") -> Talk:
    """A server whose /flush_cache refuses so often, or does not answer, and whose gauge shows so many running requests,
    or is not there."""
    turn = itertools.count()

    def talk(connection: socket.socket, over: threading.Event) -> None:
        asks = connection.recv(65536, socket.MSG_PEEK)
        if b"flush_cache" in asks:
            refused = (
                TALKS["silent"] if busy is None else saying(b"HTTP/1.1 " + busy + b"\r\ncontent-length: 0\r\n\r\n")
            )
            (refused if next(turn) < refusals else document(b"Cache flushed."))(connection, over)
        else:
            gauge = b"" if running is None else b"sglang:num_running_reqs %d\n" % running
            document(gauge)(connection, over)

    return talk


@pytest.mark.parametrize(
    ("talk", "idle"),
    [
        (flushing(0, running=1), True),  # the gauge lags behind
        (flushing(3, running=1), True),
        (flushing(10**6, running=0), False),  # a request that the gauge does not show yet
        (flushing(2, running=0, busy=None), True),
        (flushing(10**6, running=0, busy=None), False),  # the scheduler captures a graph
        (flushing(10**6, running=0, busy=b"404 Not Found"), True),
        (flushing(10**6, running=1, busy=b"404 Not Found"), False),
        (flushing(10**6, running=None, busy=b"401 Unauthorized"), None),
    ],
)
def test_whether_a_server_is_idle_is_said_by_its_flush(talk: Talk, idle: bool | None) -> None:
    """SGLang empties its cache only when nothing runs; where it cannot be asked to, its gauges decide."""
    with talking(talk) as url:
        assert Endpoint(url, patience_s=0.5).flush_when_idle(timeout_s=60 if idle else 0.7) is idle


UNAVAILABLE = TALKS["overloaded"]


def processes(count: int, ready: Callable[[int], bool]) -> Talk:
    """A server of several HTTP processes on one port; each connection falls to the next one, which is up or is not."""
    turn = itertools.count()

    def talk(connection: socket.socket, over: threading.Event) -> None:
        asks = connection.recv(65536, socket.MSG_PEEK)
        if b"server_info" in asks:
            document(b'{"tokenizer_worker_num": %d}' % count)(connection, over)
        else:
            (document(b"{}") if ready(next(turn)) else UNAVAILABLE)(connection, over)

    return talk


def test_a_server_is_up_when_each_of_its_http_processes_is() -> None:
    """One that has warmed up says so for itself only."""
    for count, ready, up in (
        (4, lambda turn: True, True),
        (4, lambda turn: turn % 4 != 3, False),
        (1, lambda turn: turn % 4 != 3, True),  # asked once
        (4, lambda turn: False, False),
    ):
        with talking(processes(count, ready)) as url:
            assert Endpoint(url).all_healthy(timeout_s=60) is up, (count, up)


def test_garbage_collection_is_frozen_in_each_http_process() -> None:
    """One that is asked does not tell the others."""
    asked: set[int] = set()

    def ready(turn: int) -> bool:
        asked.add(turn % 4)
        return True

    with talking(processes(4, ready)) as url:
        assert Endpoint(url).freeze_gc()
    assert asked == {0, 1, 2, 3}
    with talking(processes(4, lambda turn: turn % 4 != 3)) as url:
        assert not Endpoint(url).freeze_gc()


def test_a_server_that_is_not_ready_is_asked_again() -> None:
    """503 is no death: it answers, and will do so better."""
    with talking(processes(1, lambda turn: turn > 3)) as url:
        assert Endpoint(url).becomes_healthy(timeout_s=60)
    with talking(UNAVAILABLE) as url:
        assert not Endpoint(url).becomes_healthy(timeout_s=0.5)


def test_a_dead_server_is_not_waited_for() -> None:
    """Nobody listens, or something else does: neither becomes healthy by waiting."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    assert not Endpoint(f"http://127.0.0.1:{port}").becomes_healthy(timeout_s=1000)
    with talking(TALKS["too_many"]) as url:
        assert not Endpoint(url).becomes_healthy(timeout_s=1000)
