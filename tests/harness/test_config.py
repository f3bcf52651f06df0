"""Flags and sweep.toml are checked in one place, and every complaint names the thing and the remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.config import SweepConfig, load_config, make_config, variants_to_run
from harness.errors import UserError


def test_defaults_are_a_valid_sweep() -> None:
    """Nothing given is something to measure."""
    assert make_config({"sim": "preset"}).concurrency == (1, 2, 4, 8, 16, 32, 64)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"variants": ["eagel3"]}, "did you mean 'eagle3'"),
        ({"concurrency": [0]}, "each from 1 to 65536"),
        ({"concurrency": []}, "at least one level"),
        ({"concurrency": [4, 4]}, "given twice"),
        ({"concurrency": ["x"]}, "Expected `int`"),
        ({"variants": ["baseline", "baseline"]}, "given twice"),
        ({"repeats": 0}, "repeats"),
        ({"duration": float("nan")}, "duration"),
        ({"warmup": -1}, "warmup"),
        ({"threshold": -3}, "threshold"),
        ({"threshold": 4, "resume_at": 9}, "resume_at"),
        ({"variants": ["dynamic"]}, "needs a threshold"),
        ({"attach": {"baseline": "not a url"}}, "no server URL"),
        ({"attach": {"base": "http://127.0.0.1:1"}}, "did you mean 'baseline'"),
        ({"sim": "a", "model": "b"}, "only one of"),
        ({"model": "m", "variants": ["eagle3"]}, "--draft"),
        ({"tp": 0}, "tp"),
        ({"tokenizer": "folder"}, "add --dataset FILE"),
        ({"tokenizer": "folder", "dataset": "f", "api": "chat"}, "its own template"),
    ],
)
def test_bad_values_get_one_line(values: dict[str, Any], message: str) -> None:
    """Each is refused before anything is started."""
    with pytest.raises(UserError, match=message) as caught:
        make_config(values)
    assert "\n" not in str(caught.value)


def test_a_misspelt_key_is_named(tmp_path: Path) -> None:
    """A typo in sweep.toml must not silently measure something else."""
    file = tmp_path / "sweep.toml"
    file.write_text("concurency = [1]\n")
    with pytest.raises(UserError, match="did you mean 'concurrency'"):
        load_config(file)


@pytest.mark.parametrize("body", ["= 3", "a = 1\na = 2", "\x00"])
def test_bad_toml_gets_one_line(tmp_path: Path, body: str) -> None:
    """Broken TOML is named by file."""
    file = tmp_path / "sweep.toml"
    file.write_text(body)
    with pytest.raises(UserError, match="not valid TOML"):
        load_config(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """An absent --config is not a traceback."""
    with pytest.raises(UserError, match="cannot read"):
        load_config(tmp_path / "none.toml")


def test_default_variants_follow_what_is_given() -> None:
    """Without a threshold there is no `dynamic`; without a draft there is no speculation."""
    assert "dynamic" not in variants_to_run(SweepConfig(sim="x"))
    assert "dynamic" in variants_to_run(SweepConfig(sim="x", threshold=8))
    assert variants_to_run(SweepConfig(model="m")) == ("baseline", "baseline_no_overlap")
