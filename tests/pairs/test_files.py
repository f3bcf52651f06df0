"""A model folder is there whole or not at all."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from harness.errors import UserError
from pairs.files import copy_tokenizer, identity, new_folder, read_config, run, same_settings, write_json


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


@pytest.mark.parametrize("text", [None, "", "{", "[8]"])
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


def model(folder: Path, weights: bytes = b"weights", hidden: int = 8) -> Path:
    """A folder with what makes a model."""
    folder.mkdir()
    write_json(folder / "config.json", {"hidden_size": hidden})
    write_json(folder / "tokenizer.json", {})
    (folder / "model.safetensors").write_bytes(weights)
    return folder


def test_a_model_is_known_by_what_it_is(tmp_path: Path) -> None:
    """A copy elsewhere is the same one; other values of the same size, another config or tokenizer are not."""
    first = model(tmp_path / "first")
    shutil.copytree(first, tmp_path / "copy")
    other_tokenizer = model(tmp_path / "words")
    write_json(other_tokenizer / "tokenizer.json", {"model": "BPE"})
    others = [model(tmp_path / "values", b"WEIGHTS"), model(tmp_path / "config", hidden=16), other_tokenizer]

    assert identity(tmp_path / "copy") == identity(first)
    assert len({identity(folder) for folder in (first, *others)}) == 4
    with pytest.raises(UserError, match="is no model folder"):
        identity(tmp_path)


def test_what_was_begun_with_others_is_refused(tmp_path: Path) -> None:
    """The same settings go on; a refusal names what differs, and the folder stays as it was."""
    for _ in range(2):
        same_settings(tmp_path / "out", {"steps": 8, "rate": 1e-3, "target": "a"})
    before = (tmp_path / "out" / "settings.json").read_text()
    with pytest.raises(UserError, match="begun with another target "):
        same_settings(tmp_path / "out", {"steps": 8, "rate": 1e-3, "target": "b"})
    with pytest.raises(UserError, match="begun with another steps, target "):
        same_settings(tmp_path / "out", {"steps": 9, "rate": 1e-3})

    assert (tmp_path / "out" / "settings.json").read_text() == before


def test_bad_input_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    """As specpivot's own commands end; other errors are not hidden."""

    def refuse() -> None:
        raise UserError("give another")

    with pytest.raises(SystemExit) as ended:
        run(refuse)
    assert ended.value.code == 2
    assert capsys.readouterr().err == "specpivot: give another\n"
    with pytest.raises(ZeroDivisionError):
        run(lambda: print(1 / 0))
