"""The one exception that users see: a line that names the thing and the remedy."""

from __future__ import annotations


class UserError(Exception):
    """Bad input or an unusable environment; the command line prints it as one line and exits with 2."""

    def __str__(self) -> str:
        return one_line(super().__str__())


MAX_CHARS = 1000


def one_line(text: str) -> str:
    """Text of unknown origin fit for a terminal: one line, no control characters, not endless."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= MAX_CHARS else line[: MAX_CHARS - 3] + "..."
