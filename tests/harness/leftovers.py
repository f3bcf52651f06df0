"""Nothing that a command started may outlive it: one assertion for every test of a fault."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from harness.errors import UserError
from harness.guard import group_alive
from harness.runfolder import RunFolder

MARK = "LEFTOVERS_OF_TEST"  # every process that a test starts inherits it, whoever starts it
PATIENCE_S = 200  # the guard of a killed sweep lets its servers have 20 s


@contextmanager
def nothing_left(folder: Path) -> Iterator[None]:
    """Whatever the block starts is gone after it: processes, process groups and ports.

    Args:
        folder: where the block puts its run folders, directly or one level below.
    """
    mark = uuid.uuid4().hex
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MARK, mark)
        yield
    deadline = time.monotonic() + PATIENCE_S
    while (left := [*_marked(mark), *_servers_of(folder)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == [], left


def _marked(mark: str) -> list[str]:
    """Processes that carry the mark, with the ports they listen on, and ours that do not show yet what they carry."""
    ours = {process.pid for process in psutil.Process().children(recursive=True)}
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # ended meanwhile, or not ours to look at
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            if process.environ().get(MARK) == mark:
                found.append(f"{process.pid} {process.cmdline()} on {_ports(process)}")
            elif process.pid in ours and not process.cmdline():
                found.append(f"{process.pid} between fork and exec")  # it has neither arguments nor environment there
    return found


def _ports(process: psutil.Process) -> list[int]:
    """The ports a process listens on; none where that cannot be read, which must not hide the process."""
    with suppress(psutil.Error):
        return [c.laddr[1] for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    return []


def _servers_of(folder: Path) -> list[str]:
    """Servers that the runs in a folder say they started, whose process group is still there.

    Their ports tell nothing: another command on this machine may have one by now. Whatever listens carries the mark.
    """
    found = []
    for file in [*folder.glob("manifest.json"), *folder.glob("*/manifest.json")]:
        with suppress(UserError):  # a test may have damaged it on purpose
            for server in RunFolder(file.parent).manifest.servers.values():
                if server.pid is not None and group_alive(server.pid):
                    found.append(f"{server.server_run} at {server.url}")
    return found
