"""Prompts are seeded, different from one another, and a data set that a sweep reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.datasets import read_dataset
from harness.errors import UserError
from pairs.prompts import KINDS, Kind, main, prompts


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_gives_the_same_different_prompts(kind: Kind) -> None:
    """As many as asked for, none twice, the same on every call; no place of a template is left unfilled."""
    found = prompts(kind, 3000, seed=1)
    assert len(set(found)) == len(found) == 3000
    assert prompts(kind, 3000, seed=1) == found
    assert prompts(kind, 3000, seed=2) != found
    assert not [prompt for prompt in found if "{" in prompt or "}" in prompt or prompt != prompt.strip()]


def test_fewer_are_the_first_of_more() -> None:
    """A larger set holds the smaller one, so that a training can be enlarged."""
    assert prompts("code", 50, seed=3) == prompts("code", 200, seed=3)[:50]


def test_held_out_prompts_are_none_of_the_others() -> None:
    """Also where the templates give few."""
    known = frozenset(prompts("arithmetic", 2000, seed=1))
    assert not known & set(prompts("arithmetic", 500, seed=1, without=known))


def test_too_many_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says how many there are."""
    monkeypatch.setattr("pairs.prompts.PATIENCE", 1)
    with pytest.raises(UserError, match="templates of lists"):
        prompts("lists", 10**5, seed=1)


def test_the_command_writes_a_data_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON lines that a sweep reads as prompts, of one kind or of all."""
    main(["--kind", "prose", "--count", "5", "--seed", "4"])
    lines = capsys.readouterr().out
    (tmp_path / "prose.jsonl").write_text(lines)
    read = read_dataset(tmp_path / "prose.jsonl")
    assert [sample.text for sample in read] == prompts("prose", 5, seed=4)
    main(["--count", "2"])
    assert [json.loads(line)["kind"] for line in capsys.readouterr().out.splitlines()] == [
        k for k in KINDS for _ in "ab"
    ]
