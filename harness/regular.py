"""Files of a run folder are files: a FIFO in their place would block its reader for ever, a device feed it without end.
They are replaced in one step, so that a reader, or a crash, meets the old one or the new one.

Files that a person names (a sweep.toml, a data set) may be anything that ends, such as a shell's <(...).
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from harness.errors import UserError


def require_regular(file: Path) -> Path:
    """The file, unless something that is none lies there; what is missing is left to whoever opens it.

    Raises:
        UserError: it is a FIFO, a device, a socket or a folder.
    """
    with suppress(OSError):
        if not stat.S_ISREG(file.stat().st_mode):
            raise UserError(f"{file} is no regular file; take it away, or restore it from a copy")
    return file


def replace_file(file: Path, body: bytes) -> None:
    """Write a file through a temporary one beside it, which is on the disk before it takes the name.

    Raises:
        OSError: it could not be written; the old one is as it was.
    """
    temporary = require_regular(file.with_name(f".{file.name}.new"))
    try:
        with temporary.open("wb") as out:
            out.write(body)
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(file)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
