"""The service's own files: replaced in one step, and readable by their owner alone."""

from __future__ import annotations

import os
from pathlib import Path


def write(file: Path, body: bytes) -> None:
    """Replace a file: after a crash there is the old one or the new one."""
    temporary = file.with_name(f".{file.name}.new")
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:  # noqa: PTH123 - Path cannot set the mode
        out.write(body)
        out.flush()
        os.fsync(out.fileno())
    temporary.replace(file)


def make_folder(folder: Path) -> Path:
    """A folder of the service's own."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder
