"""What the tuner's commands say and read: people on standard error, one JSON document on standard output."""

from __future__ import annotations

import sys
from typing import Any, get_args

import msgspec
from rich.console import Console

from harness.errors import UserError
from tuner.recommend import Recommendation
from tuner.words import BESIDE


def tell(found: Recommendation) -> None:
    """A recommendation for people, on standard error."""
    out = console()
    if found.source == "simulated":
        out.print("SIMULATED: nothing below was measured", style="bold red")
    out.print(found.words["recommended"], style="bold", soft_wrap=True, markup=False)
    for part in (*BESIDE, "confidence", "rejected", "would_change"):
        if part in found.words:
            out.print(found.words[part], soft_wrap=True, markup=False)
    for warning in found.warnings:
        out.print(f"warning: {warning}", style="yellow", soft_wrap=True, markup=False)


def last_line(document: Any) -> None:
    """One compact JSON document on standard output."""
    sys.stdout.write(msgspec.json.encode(document).decode() + "\n")
    sys.stdout.flush()


def console() -> Console:
    return Console(stderr=True, highlight=False)


def share(text: str) -> float:
    """A share given as 5% or 0.05.

    Raises:
        UserError: neither, or not from 0 to below 1.
    """
    try:
        value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise UserError(f"{text!r} is not a share; give 5% or 0.05")
    return value


def choice(text: str, allowed: Any, option: str) -> Any:
    """One of the words of a Literal type.

    Raises:
        UserError: another word.
    """
    words = get_args(allowed)
    if text not in words:
        raise UserError(f"{option} {text!r} is unknown; give one of {', '.join(words)}")
    return text
