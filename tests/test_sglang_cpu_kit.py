"""The parts of the SGLang kit that need no SGLang: a kit that compares nothing would pass every test."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.sglang_cpu import models
from tests.sglang_cpu.traffic import Answer, differences

ROOT = Path(__file__).parents[1]
ANSWER = Answer(tokens=(7, 8), finish="length", logprobs=(-0.5, -1.5), top=(((-0.5, 7),), ((-1.5, 8),)))


def _digest(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_models_are_the_same_bytes_on_every_run(tmp_path: Path) -> None:
    """Constructed from fixed seeds: two runs agree, the target and its two drafts differ."""
    models.make(tmp_path / "a")
    models.make(tmp_path / "b")

    first = _digest(tmp_path / "a")
    assert first == _digest(tmp_path / "b")
    weights = [digest for name, digest in first.items() if name.endswith(".safetensors")]
    assert len(set(weights)) == len(weights) == 3


def test_safetensors_header_covers_the_file(tmp_path: Path) -> None:
    """Offsets are contiguous and end where the file ends."""
    models.make(tmp_path)
    data = (tmp_path / "draft" / "model.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])

    spans = sorted(entry["data_offsets"] for name, entry in header.items() if name != "__metadata__")
    assert [start for start, _ in spans] == [0, *(end for _, end in spans[:-1])]
    assert spans[-1][1] == len(data) - 8 - length


def test_text_is_encoded_one_token_per_byte(tmp_path: Path) -> None:
    """The encoder agrees with the vocabulary that is written for the server."""
    models.make(tmp_path)
    vocabulary = json.loads((tmp_path / "target" / "tokenizer.json").read_text())["model"]["vocab"]

    assert models.encode("a b!") == [vocabulary[character] for character in ("a", "\u0120", "b", "!")]


@pytest.mark.parametrize(
    "other",
    [
        replace(ANSWER, tokens=(7, 9)),
        replace(ANSWER, finish="stop"),
        replace(ANSWER, logprobs=(-0.5, -1.51)),
        replace(ANSWER, logprobs=(-0.5,)),
        replace(ANSWER, top=(((-0.5, 7),), ((-1.6, 8),))),
    ],
    ids=["token", "finish", "logprob", "missing", "top"],
)
def test_differences_are_seen(other: Answer) -> None:
    """Every field of an answer counts; a rounding error does not."""
    assert differences([ANSWER], [replace(ANSWER, logprobs=(-0.5001, -1.5))]) == []
    assert len(differences([other], [ANSWER])) == 1


@pytest.mark.parametrize(("selection", "status"), [([], 0), (["-k", "refused_policy"], 1)], ids=["all", "some"])
def test_deselected_sglang_test_turns_a_run_red(selection: list[str], status: int) -> None:
    """A run of the SGLang tests that leaves one out does not pass."""
    command = [sys.executable, "-m", "pytest", "tests/sglang_cpu", "-m", "sglang", "--collect-only", *selection]

    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)

    assert finished.returncode == status, finished.stdout
