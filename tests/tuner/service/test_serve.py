"""`specpivot serve` as people run it: a job outlives a killed service, and the next one finds it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from harness.sim.preset import DEFAULT_PRESET
from tests.tuner.runs import write_run
from tuner.service.runner import mark_of

ROOT = Path(__file__).parent.parent.parent.parent
PATIENT_S = 150.0
COMMAND = (sys.executable, "-m", "specpivot", "serve")
SERVICE = (sys.executable, "-m", "tuner.service")  # what it becomes
PATIENT_TEST_S = 400


@contextmanager
def served(command: tuple[str, ...], results: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A service process and its address."""
    words = [*command, "--port=0", f"--results={results}"]
    process = subprocess.Popen(words, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said = []
    try:
        for line in process.stderr:
            said.append(line)
            if found := re.search(r"http://\S+", line):
                break
        else:
            raise AssertionError(said)
        drain = threading.Thread(target=process.stderr.read)
        drain.start()
        yield found.group(), process
    finally:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        process.wait(PATIENT_S)
        drain.join()
        process.stderr.close()


def call(url: str, body: Any = None) -> Any:
    """The JSON of an answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENT_S) as response:
        return json.load(response)


def until(ask: Callable[[], Any], holds: Callable[[Any], bool]) -> Any:
    """What was answered once it is so."""
    deadline = time.monotonic() + PATIENT_S
    while time.monotonic() < deadline:
        if holds(found := ask()):
            return found
        time.sleep(0.1)
    raise AssertionError(found)


@pytest.mark.timeout(PATIENT_TEST_S)
def test_a_job_outlives_a_killed_service(tmp_path: Path) -> None:
    """Started, killed beside it with SIGKILL, found running by the next service, finished, and its run is whole."""
    options = {"variants": ["baseline"], "concurrency": [1, 2], "repeats": 1, "duration": 1, "warmup": 0.3}
    ask = {"kind": "sweep", "run": "one", "sim": DEFAULT_PRESET, "options": {**options, "output_tokens": 16}}
    with served(COMMAND, tmp_path) as (url, process):
        job = call(f"{url}/api/v1/jobs", ask)
        pid_file = tmp_path / ".service" / "jobs" / f"{job['id']}.pid"
        until(pid_file.exists, bool)
        process.kill()
        process.wait()
    pid, mark = pid_file.read_text().split()
    assert mark_of(int(pid)) == mark
    with served(SERVICE, tmp_path) as (url, _):
        seen = call(f"{url}/api/v1/jobs/{job['id']}")
        assert seen["state"] in ("running", "done", "failed")  # it may have ended by now, and how is looked at below
        ended = until(lambda: call(f"{url}/api/v1/jobs/{job['id']}"), lambda found: found["state"] != "running")
        assert (ended["points_done"], ended["points_planned"]) == (2, 2)
        # A busy machine may spoil both points, which is no matter of the service's.
        assert (ended["state"], ended["exit_code"]) in [("done", 0), ("done", 3), ("failed", 4)]
        (run,) = call(f"{url}/api/v1/runs")["runs"]
        assert (run["name"], run["source"], run["points_done"], run["job"]) == ("one", "simulated", 2, job["id"])
        log = call(f"{url}/api/v1/jobs/{job['id']}/log")["lines"]
        assert any("simulated servers" in line for line in log)
        # Only what the service keeps may be in its folder, and nobody else may read it.
        assert (tmp_path / ".service").stat().st_mode & 0o777 == 0o700
        code, said = refused(*SERVICE, "--port=0", f"--results={tmp_path}")
        assert (code, "another service uses" in said) == (2, True)


def test_the_service_needs_none_of_the_large_libraries() -> None:
    """It starts and stays small: what needs numpy is in another process."""
    code = (
        "import sys, tuner.service.__main__;"
        " print([m for m in ('numpy', 'pandas', 'scipy', 'matplotlib', 'optuna', 'typer') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_fails_while_it_serves_is_not_blamed_on_the_results_folder(tmp_path: Path) -> None:
    """Its own error ends it, with a traceback: there is no better folder to give."""
    code = (
        "import tuner.service.__main__ as main\n"
        "async def serve(*_): raise OSError(24, 'Too many open files')\n"
        "main.serve = serve\n"
        f"main.main(['--results', {str(tmp_path)!r}])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=PATIENT_S)
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1] == "OSError: [Errno 24] Too many open files"


# A service whose process that knows numpy tells by a file `asked` that it heard, and answers when `go` is there.
SLOW = """
import sys, tuner.service.__main__ as main, tuner.service.desk as desk
desk.PROGRAM = (sys.executable, "-c", WORK)
main.SHUTDOWN_S = 300.0
sys.exit(main.main())
"""
WORK = """
import json, pathlib, sys, time
for line in sys.stdin:
    pathlib.Path(FOLDER, "asked").touch()
    while not pathlib.Path(FOLDER, "go").exists():
        time.sleep(0.01)
    print(json.dumps({"ok": {"late": True}}), flush=True)
"""


@pytest.mark.timeout(PATIENT_TEST_S)
def test_what_is_being_asked_when_the_service_ends_is_answered(tmp_path: Path) -> None:
    """SIGTERM while the process that knows numpy works: nobody new is let in, the answer comes, then all is gone."""
    write_run(tmp_path / "results" / "run")
    slow = SLOW.replace("WORK", repr(WORK.replace("FOLDER", repr(str(tmp_path)))))
    with (
        served((sys.executable, "-c", slow), tmp_path / "results") as (url, process),
        ThreadPoolExecutor(1) as client,
    ):
        try:
            answer = client.submit(call, f"{url}/api/v1/runs/run/curves")
            until((tmp_path / "asked").exists, bool)
            process.send_signal(signal.SIGTERM)
            until(lambda: listens(url), lambda there: not there)
        finally:
            (tmp_path / "go").touch()
        assert answer.result(PATIENT_S) == {"late": True}
        assert process.wait(PATIENT_S) == 0


def listens(url: str) -> bool:
    """Whether somebody new is let in."""
    parts = urllib.parse.urlsplit(url)
    try:
        with socket.create_connection((str(parts.hostname), int(parts.port or 0)), PATIENT_S):
            return True
    except ConnectionError:
        return False


def refused(*words: str) -> tuple[int, str]:
    """Exit code and last line of a service that does not start."""
    environment = {name: value for name, value in os.environ.items() if name != "SPECPIVOT_TOKEN"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENT_S)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("command", "flags", "message"),
    [
        (COMMAND, ["--host=0.0.0.0"], "set SPECPIVOT_TOKEN"),
        (SERVICE, ["--host=0.0.0.0"], "set SPECPIVOT_TOKEN"),
        (SERVICE, ["--host=192.0.2.1", "--public-name=x"], "set SPECPIVOT_TOKEN"),
        (SERVICE, ["--port=99999"], "give 0 (any that is free) to 65535"),
        (SERVICE, [f"--results={__file__}"], "give another --results"),
    ],
)
def test_bad_input_gets_one_line_and_exit_code_2(
    tmp_path: Path, command: tuple[str, ...], flags: list[str], message: str
) -> None:
    """On the real command, and on what it becomes: no traceback."""
    code, said = refused(*command, f"--results={tmp_path}", *flags)
    assert (code, message in said) == (2, True), said
