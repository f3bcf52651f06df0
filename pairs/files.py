"""Model folders, and the end of a command: what needs neither PyTorch nor numpy.

A folder is written under a temporary name and renamed when it is whole, so that an interrupted command leaves none that
looks finished.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.errors import UserError

Config = dict[str, Any]

SINGLE = "model.safetensors"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


def run(main: Callable[[], None]) -> None:
    """A command line: bad input is one line on standard error and exit code 2, as specpivot's own."""
    try:
        main()
    except UserError as error:
        print(f"specpivot: {error}", file=sys.stderr)
        sys.exit(2)


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
        UserError: there is none, or it is no JSON object.
    """
    try:
        config: Config = dict(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{folder} is no model folder: {error}; give one with config.json and safetensors") from error
    return config


def identity(folder: Path) -> str:
    """SHA-256 of a model's config, tokenizer and weights: equal for copies, wherever they lie.

    Raises:
        UserError: it is no model folder.
    """
    read_config(folder)
    files = [folder / name for name in ("config.json", *TOKENIZER_FILES)] + sorted(folder.glob("*.safetensors"))
    digest = hashlib.sha256()
    for file in files:
        if file.exists():
            with file.open("rb") as opened:
                digest.update(f"{file.name} {hashlib.file_digest(opened, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()


def same_settings(out: Path, settings: dict[str, object]) -> None:
    """Begin a folder with these settings, or go on with it: what others left must not be taken for this one's.

    Raises:
        UserError: it was begun with others.
    """
    out.mkdir(parents=True, exist_ok=True)
    file = out / "settings.json"
    begun = json.loads(file.read_text(encoding="utf-8")) if file.exists() else settings
    other = sorted(name for name in {*begun, *settings} if begun.get(name) != settings.get(name))
    if other:
        raise UserError(f"{out} was begun with another {', '.join(other)} ({file}); give the same, or another --out")
    write_json(file, settings)


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def copy_tokenizer(source: Path, folder: Path) -> None:
    """SGLang asks a draft's folder for a tokenizer as well."""
    for name in TOKENIZER_FILES:
        if (source / name).exists():
            shutil.copy(source / name, folder / name)
