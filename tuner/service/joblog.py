"""What a job said: the end of its log, and the last line of it that says something."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from harness.errors import MAX_CHARS, one_line
from harness.runfolder import LEVELS
from tuner.history import HISTORY

MAX_READ_BYTES = 256 * 1024
MAX_LINES = 2000
HEADING = "variant  "  # of the table of points
_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def file(base: Path) -> Path:
    """Where a job's log lies."""
    return base.with_name(base.name + ".log")


def tail(base: Path, lines: int) -> list[str]:
    """The last lines, oldest first, fit for a page."""
    return _lines(_end(base, MAX_READ_BYTES))[-lines:]


def message(base: Path) -> str:
    """The last line that says something: no heading, and not the JSON that a command ends with."""
    for line in reversed(_lines(_end(base, 4096))):
        if line and not line.startswith(("{", HEADING)):
            return one_line(line)[:300]
    return ""


def changed_s(run: Path) -> float | None:
    """When a run's last point, or stage of a tuning, was written."""
    found = []
    for name in (LEVELS, HISTORY):
        with suppress(OSError):
            found.append((run / name).stat().st_mtime)
    return max(found, default=None)


def _end(base: Path, size: int) -> str:
    try:
        with file(base).open("rb") as log:
            log.seek(0, 2)
            begin = max(0, log.tell() - size)
            log.seek(begin)
            body = log.read(size)
    except OSError:
        return ""
    return (body.partition(b"\n")[2] if begin else body).decode(errors="replace")


def _lines(text: str) -> list[str]:
    return [_plain(line) for line in text.splitlines()]


def _plain(line: str) -> str:
    """Without control characters; the spaces of a table stay."""
    return "".join(c if c.isprintable() else " " for c in _CODES.sub("", line)).rstrip()[:MAX_CHARS]
