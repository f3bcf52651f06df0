"""Stops the servers of a SpecPivot process that was killed: `python -m harness.guard`, started by harness.servers.

It reads the process groups to watch from standard input, one number a line. The end of that input without the word
"done" means that its parent is gone, by SIGKILL or a crash: whatever is left of the groups is stopped. Standard
library only, in a session of its own, so that what kills the parent does not reach it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from harness.ourselves import environment, program

STOP_GRACE_S = 20.0  # from SIGTERM to SIGKILL


class Guard:
    """The parent's end."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe

    def watch(self, group: int) -> None:
        """Stop this process group should we be killed."""
        self._tell(f"{group}")

    def dismiss(self) -> None:
        """Everything was stopped properly."""
        self._tell("done")

    def _tell(self, word: str) -> None:
        with suppress(BrokenPipeError):  # somebody killed it; servers are then as safe as without it
            self._pipe.write(word.encode() + b"\n")
            self._pipe.flush()


@contextmanager
def guarding() -> Iterator[Guard]:
    """A guard for as long as the block lasts. Leave it only when the servers are stopped, or by dying."""
    process = subprocess.Popen(
        program("harness.guard"), stdin=subprocess.PIPE, start_new_session=True, env=environment()
    )
    assert process.stdin is not None
    try:
        guard = Guard(process.stdin)
        yield guard
        guard.dismiss()
    finally:
        with suppress(BrokenPipeError):
            process.stdin.close()
        process.wait()


def stop_groups(groups: Sequence[int], grace_s: float = STOP_GRACE_S) -> None:
    """Stop process groups, politely and then not; returns when none is left.

    Args:
        groups: their numbers.
        grace_s: from SIGTERM to SIGKILL.
    """
    for group in groups:
        signal_group(group, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while any(group_alive(group) for group in groups) and time.monotonic() < deadline:
        time.sleep(0.1)
    for group in groups:
        signal_group(group, signal.SIGKILL)


def signal_group(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def group_alive(group: int) -> bool:
    """Whether a process of the group still runs; a zombie does not, it only waits for a parent that may be slow."""
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return any(_runs_in(group, stat) for stat in Path("/proc").glob("[0-9]*/stat"))


def _runs_in(group: int, stat: Path) -> bool:
    try:
        # pid (name) state ppid pgrp ...; the name may hold anything, so count from its last bracket
        state, _, of, *_ = stat.read_text(errors="replace").rpartition(")")[2].split()
    except (OSError, ValueError):
        return False  # it has ended meanwhile
    return int(of) == group and state not in "ZX"


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends when its parent does
    groups = []
    for word in sys.stdin:
        if word.strip() == "done":
            return
        groups.append(int(word))
    stop_groups(groups)


if __name__ == "__main__":
    main()
