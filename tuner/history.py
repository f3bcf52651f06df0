"""search_history.jsonl: each point and stage of a tuning as it happens, with the seconds spent so far.

A tuning that is resumed has spent what its histories tell, those of combinations below it too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec

from harness.regular import require_regular
from harness.runfolder import WriteFailed

HISTORY = "search_history.jsonl"


class _Line(msgspec.Struct, frozen=True):
    kind: str = ""
    spent_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0


def spent_before(out: Path) -> float:
    """Seconds that a tuning has used in its lives so far, by the last point or stage that its histories tell of."""
    return max((line.spent_s for line in _told(out)), default=0.0)


def points_before(out: Path) -> int:
    """Points that a tuning has measured so far, wherever they are kept; one that was measured anew counts twice."""
    return sum(line.kind == "point" for line in _told(out))


def _told(out: Path) -> Iterator[_Line]:
    for file in (out / HISTORY, *out.glob(f"*/{HISTORY}")):
        lines = require_regular(file).read_bytes().splitlines() if file.exists() else []
        for line in lines:
            with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # cut off by a crash
                yield msgspec.json.decode(line, type=_Line)


def note_history(out: Path, kind: str, **what: Any) -> None:
    """Add a line to search_history.jsonl.

    Raises:
        WriteFailed: it could not be written.
    """
    line = {"at": datetime.now(UTC).isoformat(timespec="seconds"), "kind": kind, **what}
    try:
        with (out / HISTORY).open("ab") as history:
            history.write(msgspec.json.encode(line) + b"\n")
    except OSError as error:
        raise WriteFailed(f"cannot write {out / HISTORY}: {error.strerror}; what was measured is kept") from error
