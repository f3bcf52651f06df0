"""What the benchmarks that measure servers have in common on their command lines: settings, models, servers."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from harness.config import load_config
from harness.errors import UserError


def add_settings(parser: argparse.ArgumentParser, config: str = "a sweep's settings") -> None:
    """--config, --model and --draft.

    Args:
        parser: takes them.
        config: what the file means here.
    """
    parser.add_argument("--config", type=Path, help=config)
    parser.add_argument("--model")
    parser.add_argument("--draft")


def settings_of(asked: argparse.Namespace, *flags: str) -> dict[str, Any]:
    """The file's keys, and over them model, draft and other flags of a sweep's names, where they are given."""
    given = {name: value for name in ("model", "draft", *flags) if (value := getattr(asked, name)) is not None}
    return (load_config(asked.config) if asked.config else {}) | given


def attached(words: list[str] | None) -> dict[str, str]:
    """VARIANT=URL, each as a sweep's --attach.

    Raises:
        UserError: a word is none.
    """
    for word in words or ():
        if "=" not in word:
            raise UserError(f"--attach {word}: give VARIANT=URL")
    return dict(word.split("=", 1) for word in words or ())
