"""What is kept of a job on disk, and what follows from it alone."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import msgspec

from tuner.service import answers
from tuner.service.names import is_name
from tuner.service.progress import Progress


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """ID.json.

    Attributes:
        server: a registered server's name, or sim:PRESET.
        arguments: of the command line, from the word sweep or tune on.
        points_planned: as the settings say, for as long as there is no manifest; each takes about `point_s`.
        cancels: how often it was asked to stop since then.
        exit_code: None while it runs, and where it ended without one.
        message: the last line of its log, once it has ended.
    """

    id: str
    kind: answers.JobKind
    run: str
    server: str
    arguments: list[str]
    points_planned: int
    point_s: float
    created_s: float
    started_s: float
    cancels: int = 0
    state: answers.JobState = "running"
    ended_s: float | None = None
    exit_code: int | None = None
    message: str = ""


class Plan(msgspec.Struct, frozen=True):
    """What a job is to do.

    Attributes:
        server: what it occupies: a registered server's name, or sim:PRESET.
        flags: of its command, without its run folder.
        points: how many it will measure (of a tuning, the most), and `point_s` how long each takes about.
    """

    kind: answers.JobKind
    server: str
    flags: list[str]
    points: int
    point_s: float


def stored(folder: Path) -> list[Record]:
    """Every record in a folder, oldest first; a damaged one is left out."""
    found = []
    for file in folder.glob("*.json"):
        with suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
            record = msgspec.json.decode(file.read_bytes(), type=Record)
            if record.id == file.stem and is_name(record.run):
                found.append(record)
    return sorted(found, key=lambda record: (record.created_s, record.id))


def resumable(record: Record) -> bool:
    """Whether there is something left to measure."""
    if record.state == "done":
        return record.kind == "sweep" and record.exit_code == 3
    return record.state != "running"


def why_not(record: Record) -> str:
    """Why it is not resumable, after "job ID"."""
    return "runs already" if record.state == "running" else "is finished; nothing is left to measure"


def eta_s(record: Record, progress: Progress, last_s: float | None) -> float | None:
    """Seconds left: at first by the plan, later by the run's points (of a tuning, at most, as its budget ends it).

    Args:
        record: of a job that runs.
        progress: of its run.
        last_s: when its last point was written, as time.time() counts.
    """
    left = progress.planned - progress.done
    if left <= 0 and record.kind == "sweep":
        return None
    left_s = record.point_s * left if progress.left_s is None else progress.left_s
    return max(0.0, left_s - (time.time() - max(record.started_s, last_s or 0.0)))


def number(file: Path) -> int | None:
    """The number in a file; None where there is none."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None
