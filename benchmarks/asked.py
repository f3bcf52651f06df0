"""What the benchmarks that measure servers are told, and what they need of a start: settings, models, servers."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.config import load_config
from harness.errors import UserError
from harness.records import Variant
from harness.runfolder import MANIFEST
from harness.servers import Server


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


def require_players(servers: Mapping[Variant, Server], variants: Sequence[Variant], run: Path) -> None:
    """Make sure that each of the variants has a server.

    Args:
        servers: by the variants that they can play.
        variants: what is to be measured.
        run: the folder whose manifest says why one is not there.

    Raises:
        UserError: one is not.
    """
    if lacking := [variant for variant in variants if variant not in servers]:
        raise UserError(f"no server plays {', '.join(lacking)}; its reason is above, or in {run / MANIFEST}")
