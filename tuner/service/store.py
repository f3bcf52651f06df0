"""The service's own files: replaced in one step, and readable by their owner alone."""

from __future__ import annotations

import os
from pathlib import Path

NEW = ".new"


def write(file: Path, body: bytes) -> None:
    """Replace a file: after a crash there is the old one or the new one."""
    temporary = file.with_name(f".{file.name}{NEW}")
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:  # noqa: PTH123 - Path cannot set the mode
        out.write(body)
        out.flush()
        os.fsync(out.fileno())
    temporary.replace(file)


def make_folder(folder: Path) -> Path:
    """A folder of the service's own."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def discard_half_written(folder: Path) -> None:
    """Remove what `write` had not finished when an earlier service was killed; a runner's own file may be whole soon.

    Args:
        folder: in which no other service writes.
    """
    for ours in ("json", "pid"):
        for temporary in folder.glob(f".*.{ours}{NEW}"):
            temporary.unlink(missing_ok=True)
