"""Where a name from a request may lead: one folder below the results folder, and nowhere else."""

from __future__ import annotations

import re
from pathlib import Path

from harness.runfolder import LEVELS, MANIFEST, PACKED_REQUESTS, REQUESTS
from tuner.service.refusal import Refusal

PATTERN = "^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
RECOMMENDATION = "recommendation.json"
STATE = ".service"  # begins with a dot: no run can be called so
_NAME = re.compile(PATTERN.removesuffix("$") + r"\Z")
_READ = (MANIFEST, LEVELS, REQUESTS, PACKED_REQUESTS, RECOMMENDATION)


def is_name(text: str) -> bool:
    """Whether a run, a job or a server may be called so."""
    return _NAME.match(text) is not None


def checked(text: str, what: str) -> str:
    """The name, when it is one.

    Raises:
        Refusal: it has another form.
    """
    if not is_name(text):
        raise Refusal(400, f"{text[:100]!r} is no name of a {what}; give letters, digits, dots, dashes and underscores")
    return text


def run_folder(results: Path, name: str) -> Path:
    """The folder of a run that exists, links followed, all of it inside the results folder.

    Args:
        results: the results folder, resolved.
        name: as a request gave it.

    Raises:
        Refusal: no name, no such run, or one that a link leads out of the results folder.
    """
    folder = results / checked(name, "run")
    try:
        real = folder.resolve(strict=True)
        inside = real.parent == results and all((folder / file).resolve().parent == real for file in _READ)
        there = inside and (real / MANIFEST).is_file()
    except (OSError, RuntimeError):  # another user's folder, too, which may not be looked into
        there = False
    if not there:
        raise Refusal(404, f"there is no run {name}; GET /api/v1/runs lists those there are")
    return real


def holds_run(folder: Path) -> bool:
    """Whether a manifest lies in a folder; a folder that may not be looked into has none."""
    try:
        return (folder / MANIFEST).is_file()
    except OSError:
        return False


def new_folder(results: Path, name: str) -> Path:
    """Where a new run of this name goes.

    Raises:
        Refusal: no name, or something is there already.
    """
    folder = results / checked(name, "run")
    if folder.is_symlink() or folder.exists():
        raise Refusal(409, f"{name} is there already; give the run another name")
    return folder
