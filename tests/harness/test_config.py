"""Flags and sweep.toml are checked in one place, and every complaint names the thing and the remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.config import SweepConfig, load_config, make_config, variants_to_run
from harness.errors import UserError

HOSTILE = (
    *("5", "-1", "0", "true", '"x"', "[]", "[5]", "[[1]]", "{}", "{a=1}", "nan", "inf", "-inf", "1e308", "100000000"),
    *("9223372036854775807", "99999999999999999999999", '"\\u0000"', '["baseline"]', "1979-05-27", '["a",5]'),
    *('{baseline="http://x:99999"}', '{baseline="http://[::1"}', '"\\u001b[2J"'),
)


def test_defaults_are_a_valid_sweep() -> None:
    """Nothing given is something to measure."""
    assert make_config({"sim": "preset"}).concurrency == (1, 2, 4, 8, 16, 32, 64)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"variants": ["eagel3"]}, "did you mean 'eagle3'"),
        ({"concurrency": [0]}, "each from 1 to 65536"),
        ({"sim": "any", "topk": 4}, "simulated servers draft chains; give --topk 1"),
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


@pytest.mark.parametrize("name", [field.encode_name for field in msgspec.structs.fields(SweepConfig)])
def test_any_value_of_a_file_is_taken_or_refused(tmp_path: Path, name: str) -> None:
    """Each key with each kind of nonsense: a checked configuration or one line."""
    for value in HOSTILE:
        (tmp_path / "sweep.toml").write_text(f"{name} = {value}\n")
        try:
            made = make_config(load_config(tmp_path / "sweep.toml"))
            refused = ""
        except UserError as error:
            refused = str(error)
        assert refused or made.repeats <= 1000
        assert refused.isprintable()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"variants": 5}, "variants"),
        ({"repeats": 10**9}, "at most 1000"),
        ({"input_tokens": 10**9}, "at most 4194304"),
        ({"vocab_size": 2**63}, "at most 16777216"),
        ({"client_workers": 10**6}, "client_workers"),
        ({"duration": 1e308}, "at most 86400"),
        ({"time_scale": 1e300}, "at most 1000"),
        ({"start_timeout": float("nan")}, "start_timeout"),
        ({"model": "a\0b"}, "NUL"),
        ({"model": "\udcff"}, "UTF-8"),
        ({"server_env": {"HF_TOKEN": "hush"}}, "export it instead"),
        ({"server_args": ["--api-key=hush"]}, "leave --api-key out"),
    ],
)
def test_what_would_fail_late_or_leak_is_refused_early(values: dict[str, object], words: str) -> None:
    """Before memory, processes or patience are spent, and before a secret is written down."""
    with pytest.raises(UserError, match=words) as caught:
        make_config(values)
    assert "hush" not in str(caught.value)
