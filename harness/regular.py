"""Files of a run folder are files: a FIFO in their place would block its reader for ever, a device feed it without end.
They are replaced in one step, so that a reader, or a crash, meets the old one or the new one.

Files that a person names (a sweep.toml, a data set) may be anything that ends, such as a shell's <(...).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

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


def replace_file(file: Path, body: bytes, mode: int = 0o666) -> None:
    """Write a file through a temporary one beside it, which is on the disk before it takes the name.

    Args:
        file: the file.
        body: all of it.
        mode: who may read and write it, less what the process masks.

    Raises:
        OSError: it could not be written; the old one is as it was.
    """
    with replacing(file, mode) as out:
        out.write(body)


@contextmanager
def replacing(file: Path, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """The same for whoever writes it piece by piece: the file is replaced where the block ends without an error."""
    temporary = require_regular(file.with_name(f".{file.name}.new"))
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as out:  # noqa: PTH123 - Path cannot set the mode
            yield out
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(file)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
