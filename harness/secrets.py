"""Keys do not reach files, logs or terminals, not even by way of a server that repeats what it was sent."""

from __future__ import annotations

from collections.abc import Iterable

MIN_CHARS = 4  # a shorter "key" would be a part of many a word
HIDDEN = "***"


def hide(text: str, secrets: Iterable[str | None]) -> str:
    """The text without the secrets, and without the beginning of one where the text was cut off inside it."""
    for secret in secrets:
        if secret is None or len(secret) < MIN_CHARS:
            continue
        text = text.replace(secret, HIDDEN)
        cut = next((n for n in range(len(secret) - 1, MIN_CHARS - 1, -1) if text.endswith(secret[:n])), 0)
        text = text[: len(text) - cut] + HIDDEN if cut else text
    return text


def sent_in(headers: dict[str, str]) -> tuple[str, ...]:
    """The secrets in request headers: an authorization's last word."""
    return tuple(value.split()[-1] for name, value in headers.items() if name.lower() == "authorization" and value)
