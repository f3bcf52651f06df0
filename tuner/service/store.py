"""The service's own files: replaced in one step, and readable by their owner alone."""

from __future__ import annotations

from pathlib import Path

from harness.regular import replace_file

NEW = ".new"


def write(file: Path, body: bytes) -> None:
    """Replace a file: after a crash there is the old one or the new one."""
    replace_file(file, body, 0o600)


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
