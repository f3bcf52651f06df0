"""The one exception that users see: a line that names the thing and the remedy."""

from __future__ import annotations


class UserError(Exception):
    """Bad input or an unusable environment; the command line prints it as one line and exits with 2."""
