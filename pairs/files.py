"""Model folders: what needs neither PyTorch nor numpy.

A folder is written under a temporary name and renamed when it is whole, so that an interrupted command leaves none that
looks finished.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.errors import UserError

Config = dict[str, Any]

SINGLE = "model.safetensors"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to fill; it takes the name `path` when the block ends without an error.

    Raises:
        UserError: there is something at `path` already.
    """
    if path.exists():
        raise UserError(f"{path} exists; give another folder, or remove it")
    partial = path.with_name(path.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    yield partial
    partial.rename(path)


def read_config(folder: Path) -> Config:
    """The config.json of a model folder.

    Raises:
        UserError: there is none, or it is not JSON.
    """
    try:
        config: Config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{folder} is no model folder: {error}; give one with config.json and safetensors") from error
    return config


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def copy_tokenizer(source: Path, folder: Path) -> None:
    """SGLang asks a draft's folder for a tokenizer as well."""
    for name in TOKENIZER_FILES:
        if (source / name).exists():
            shutil.copy(source / name, folder / name)
