"""Servers that are started are the ones that answer, and none is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from harness import servers
from harness.endpoint import Endpoint
from harness.errors import UserError
from harness.guard import guarding
from harness.servers import Server, ServerDied, attach, last_line, owns, reserved_ports, running
from harness.variants import ServerPlan
from tests.harness.faulty import document, talking

SIM = (sys.executable, "-m", "harness.sim.server", "--variant")


def quiet(line: str) -> None:
    """Says nothing."""


def test_ports_differ() -> None:
    """Servers that start side by side never get one port twice, not even those of two sweeps."""
    with reserved_ports(3) as ours, reserved_ports(3) as theirs:  # few: other sweeps may run on this machine
        assert len({*ours, *theirs}) == 6


def test_too_many_ports_are_refused() -> None:
    """There are 22 places: asking for more gets one line."""
    with pytest.raises(UserError, match="ports are free"), reserved_ports(23):
        pass


def test_started_servers_are_proven_and_stopped(tmp_path: Path) -> None:
    """Each answers from its own process; afterwards no process of either group is left."""
    plans = [
        ServerPlan("baseline", ("baseline",), (*SIM, "baseline")),
        ServerPlan("speculative", ("eagle3",), (*SIM, "eagle3")),
    ]
    with running(plans, tmp_path, 200.0, threading.Event(), quiet) as found:
        servers = [server for server in found.values() if isinstance(server, Server)]
        pids = [server.record.pid for server in servers]
        assert [server.record.worker for server in servers] == ["none", "EAGLEWorkerV2"]
        assert [server.patched for server in servers] == [False, True]
        assert len({server.record.server_run for server in servers}) == 2
    assert not any(psutil.pid_exists(pid) for pid in pids if pid)


def test_started_servers_are_quiet_unless_told_otherwise(tmp_path: Path) -> None:
    """The process has SGLang's variables for it and the record says so; a plan's own words win."""
    told = {"SGLANG_UVICORN_WORKER_HEALTHCHECK_TIMEOUT": "7"}
    plan = ServerPlan("baseline", ("baseline",), (*SIM, "baseline"), told)
    with running([plan], tmp_path, 200.0, threading.Event(), quiet) as found:
        server = found["baseline"]
        assert isinstance(server, Server)
        environment = psutil.Process(server.record.pid).environ()
    wanted = {"SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false", **told}
    for variables in (environment, server.record.env):
        assert {name: variables.get(name) for name in wanted} == wanted


def test_http_processes_that_still_import_are_waited_for() -> None:
    """They do not listen yet, so no connection finds them lacking; their titles do, where there are any."""
    title = [f"{servers.HTTP_TITLE}:1", "-c", "import time; time.sleep(600)"]
    with talking(document(b'{"tokenizer_worker_num": 2}')) as url, ExitStack() as began:
        for listen in (True, False, True):  # with none of them, one, two
            assert servers._all_listen(os.getpid(), Endpoint(url)) is listen
            child = began.enter_context(subprocess.Popen(title, executable=sys.executable))
            began.callback(child.kill)
            while psutil.Process(child.pid).cmdline()[:1] != title[:1]:
                time.sleep(0.01)
    with talking(document(b'{"tokenizer_worker_num": 1}')) as url:
        assert servers._all_listen(os.getpid(), Endpoint(url))


def test_a_listener_of_another_process_is_not_ours(tmp_path: Path) -> None:
    """The negative control of the port check: a server on the same port does not pass for one that failed to bind."""
    plan = ServerPlan("baseline", ("baseline",), (*SIM, "baseline"))
    with running([plan], tmp_path, 200.0, threading.Event(), quiet) as found:
        server = found["baseline"]
        assert isinstance(server, Server)
        port = int(server.endpoint.url.rsplit(":", 1)[1])
        sleeper = psutil.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
        try:
            assert not owns(sleeper, port)
        finally:
            sleeper.kill()
            sleeper.wait()


def test_a_server_that_ends_says_why(tmp_path: Path) -> None:
    """The last error of its log, its exit code and its log's name are in one line."""
    code = "import sys; print('loading'); print('ValueError: no such model'); sys.exit(7)"
    plan = ServerPlan("baseline", ("baseline",), (sys.executable, "-c", code))
    with running([plan], tmp_path, 200.0, threading.Event(), quiet) as found:
        died = found["baseline"]
    assert isinstance(died, ServerDied)
    assert "ended with code 7: ValueError: no such model" in str(died)


def test_a_server_that_is_never_healthy_is_given_up(tmp_path: Path) -> None:
    """The wait ends at its limit, and the process with it."""
    plan = ServerPlan("baseline", ("baseline",), (sys.executable, "-c", "import time; time.sleep(600)"))
    with running([plan], tmp_path, 0.5, threading.Event(), quiet) as found:
        assert "was not healthy after" in str(found["baseline"])


def test_ctrl_c_while_servers_are_stopped_kills_them(tmp_path: Path) -> None:
    """The interrupt goes on its way, and no process that ignores SIGTERM stays behind it."""
    code = "import signal; signal.signal(signal.SIGTERM, lambda *_: print('no', flush=True)); print('up', flush=True)"
    plan = ServerPlan("baseline", ("baseline",), (sys.executable, "-c", f"{code}\nwhile True: signal.pause()"))

    def says(word: str) -> None:
        while word not in (tmp_path / "x.log").read_text():
            time.sleep(0.05)

    def interrupt() -> None:
        says("no")  # it was asked to end, so the wait for it has begun
        os.kill(os.getpid(), signal.SIGINT)

    with guarding() as guard:
        process = servers._spawn(plan, 1, tmp_path / "x.log", guard)
        says("up")
        interrupting = threading.Thread(target=interrupt)
        interrupting.start()
        with pytest.raises(KeyboardInterrupt):
            servers.stop_all([process])
        interrupting.join()
    assert process.returncode == -signal.SIGKILL


def test_nothing_at_an_attached_url_is_named() -> None:
    """An unreachable URL gets one line with the remedy."""
    with reserved_ports(1) as (port,), pytest.raises(UserError, match="start it, or correct --attach"):
        attach(ServerPlan("baseline", ("baseline",), url=f"http://127.0.0.1:{port}"), None, None)


def test_last_line_of_an_empty_log(tmp_path: Path) -> None:
    """A server that said nothing is reported as such."""
    (tmp_path / "x.log").write_text("\n")
    assert last_line(tmp_path / "x.log") == "nothing was logged"
