"""What every command that measures shares: its own line, where its run goes, and its last line."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path

import msgspec


def command_line() -> list[str]:
    """Our command line, fit to be written down: a key's value is not."""
    words, hide = [], False
    for word in (Path(sys.argv[0]).name, *sys.argv[1:]):
        name, equals, _ = word.partition("=")
        secret = name in ("--api-key", "--admin-api-key")
        words.append("***" if hide else f"{name}=***" if secret and equals else word)
        hide = secret and not equals
    return words


def default_folder() -> Path:
    """Where a run goes that was given no --out."""
    return Path("results") / f"local-{datetime.now():%Y%m%d-%H%M%S}"


def load_libraries() -> None:
    """Load what computes figures, before signals are handled: an import that one breaks off may fail by any name.

    It takes half a second, which a command that measures nothing or was refused does not spend.
    """
    import scipy.stats  # noqa: F401  loaded for those who use it later


def last_line(document: msgspec.Struct) -> None:
    """Print the one compact JSON document that standard output ends with."""
    print(msgspec.json.encode(document).decode(), flush=True)
