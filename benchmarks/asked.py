"""What the benchmarks that measure servers have in common: settings, models and servers on their command lines, and
run folders that the same command goes on with."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import msgspec

from harness.config import load_config
from harness.errors import UserError
from harness.records import Manifest
from harness.runfolder import MANIFEST, RunFolder, RunWriter

# What another sitting may change: how long a start may take, and on which GPU.
_FREE, _FREE_ENV = "start_timeout", "CUDA_VISIBLE_DEVICES"


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


def begun(folder: Path, made: Manifest) -> RunWriter:
    """A run folder begun with this manifest, or gone on with where it was begun with the same settings and requests.

    Raises:
        UserError: it was begun with others; the message names what differs.
    """
    if not (folder / MANIFEST).exists():
        return RunWriter.create(folder, made)
    before = RunFolder(folder).manifest
    then, now = _settings(before), _settings(made)
    differing = sorted(name for name in then.keys() | now.keys() if then.get(name) != now.get(name))
    if not differing and before.workload.sha256 != made.workload.sha256:
        differing = ["requests"]
    if differing:
        raise UserError(f"{folder} was begun with other {', '.join(differing)}; give another --out")
    return RunWriter.resume(folder)


def _settings(manifest: Manifest) -> dict[str, Any]:
    settings: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(manifest.config))  # as read from a file
    env = {name: value for name, value in settings.get("server_env", {}).items() if name != _FREE_ENV}
    return {name: value for name, value in settings.items() if name != _FREE} | {"server_env": env}
