"""What the service says no with: a status and one line for the person, as {"error": "..."}."""

from __future__ import annotations

from harness.errors import one_line


class Refusal(Exception):
    """An answer other than success.

    Args:
        status: 400 what was asked makes no sense, 401 no or a wrong token, 403 from another site, 404 not there,
            409 not now or not with this, 413 too long, 503 no more at once.
        text: names the thing and the remedy.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(one_line(text))
        self.status = status
