"""The committed configurations are sweeps that can run, and those of one campaign differ only in what it varies."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from harness.config import load_config, make_config
from pairs.prompts import KINDS

CONFIGS = sorted((Path(__file__).parent.parent / "results" / "configs").glob("*.toml"))
CAMPAIGN = [file for file in CONFIGS if file.name.startswith(("h200-0.5.16-v2-acc", "h200-0.5.16-v2-pair-"))]
MODELS = {"model": "TARGET", "draft": "DRAFT"}
VARIED = {"concurrency", "warmup", "duration", "input_tokens", "random_range_ratio", "server_env", "server_args"}
GPU_KV_GIB = 100.0  # of an H200's 140 GiB, beside two sets of weights
KV_GIB_PER_TOKEN = 128 / 2**20  # Llama-3.1-8B in bfloat16


def shared_part(document: dict[str, Any]) -> dict[str, Any]:
    """What no configuration of the campaign may change; the fixed acceptance needs dummy weights, the pair its own."""
    dummy = ("--load-format", "dummy")
    arguments = [word for word in document["server_args"] if word not in dummy]
    varied = VARIED | {"dataset", "tokenizer"}
    return {key: value for key, value in document.items() if key not in varied} | {"server_args": arguments}


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.stem)
def test_a_configuration_does_what_its_name_says(file: Path) -> None:
    """It is accepted; worker and acceptance in its name are those it sets; its command writes a folder of its name."""
    config = make_config(load_config(file) | MODELS)
    fixed = re.search(r"-acc(\d\.\d)", file.stem)
    assert f"-{config.worker}-" in file.stem
    assert fixed is None or config.server_env["SGLANG_SIMULATE_ACC_LEN"] == fixed[1]
    assert f"--out results/{file.stem}" in file.read_text()


def test_the_campaign_is_complete_and_even() -> None:
    """Four acceptances at three contexts, five kinds of prompts; everything else is equal."""
    names = {file.stem.removeprefix("h200-0.5.16-v2-") for file in CAMPAIGN}
    fixed = {f"acc{accept}-ctx{context}" for accept in (1.6, 2.0, 2.4, 2.8) for context in ("128", "2k", "8k")}
    assert names == fixed | {f"pair-{kind}" for kind in KINDS}
    first, *others = [shared_part(load_config(file)) for file in CAMPAIGN]
    assert all(other == first for other in others)


@pytest.mark.parametrize("file", CAMPAIGN, ids=lambda file: file.stem)
def test_both_servers_fit_on_one_gpu(file: Path) -> None:
    """The KV caches of two resident servers, each for the longest requests at the largest load."""
    config = make_config(load_config(file) | MODELS)
    assert config.resident == "together"
    longest = (config.input_tokens + config.output_tokens) * (1 + config.random_range_ratio)
    assert 2 * config.max_concurrency * longest * KV_GIB_PER_TOKEN < GPU_KV_GIB


def test_the_readme_names_the_campaign() -> None:
    """By families written with braces."""
    page = (CONFIGS[0].parent.parent / "README.md").read_text()
    families = [re.escape(family) for family in re.findall(r"h200-[\w.{},-]+", page)]
    patterns = [re.sub(r"\\{([^}]*)\\}", lambda m: f"({m[1].replace(',', '|')})", text) for text in families]
    for file in CAMPAIGN:
        assert any(re.fullmatch(pattern, file.stem) for pattern in patterns), file.stem
