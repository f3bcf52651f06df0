"""A model folder is there whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import UserError
from pairs.files import copy_tokenizer, new_folder, read_config, write_json


def test_an_interrupted_folder_does_not_take_its_name(tmp_path: Path) -> None:
    """What failed leaves no folder of that name, and the next attempt starts empty."""
    (tmp_path / "model.partial").mkdir()
    (tmp_path / "model.partial" / "left.over").touch()
    with pytest.raises(ZeroDivisionError), new_folder(tmp_path / "model") as partial:
        write_json(partial / "config.json", {"hidden_size": 1 / len(list(partial.iterdir()))})
    assert not (tmp_path / "model").exists()
    with new_folder(tmp_path / "model") as partial:
        assert list(partial.iterdir()) == []
        write_json(partial / "config.json", {"hidden_size": 8})
    assert read_config(tmp_path / "model") == {"hidden_size": 8}


def test_what_exists_is_kept(tmp_path: Path) -> None:
    """A folder of that name is refused and untouched."""
    write_json(tmp_path / "config.json", {"hidden_size": 8})
    with pytest.raises(UserError, match="exists"), new_folder(tmp_path):
        pass
    assert read_config(tmp_path) == {"hidden_size": 8}


@pytest.mark.parametrize("text", [None, "", "{"])
def test_no_model_folder_is_one_line(tmp_path: Path, text: str | None) -> None:
    """A missing or damaged config.json names the folder."""
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError, match="is no model folder"):
        read_config(tmp_path)


def test_only_tokenizer_files_are_copied(tmp_path: Path) -> None:
    """Those that are there; weights stay where they are."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    for name in ("tokenizer.json", "model.safetensors"):
        (tmp_path / "a" / name).write_text("x")
    copy_tokenizer(tmp_path / "a", tmp_path / "b")
    assert [file.name for file in (tmp_path / "b").iterdir()] == ["tokenizer.json"]
