"""Shapes without weights: the sizes that decide what a token costs, and a tokenizer with a word for every id."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.errors import UserError
from pairs.shapes import main, shapes

BILLION = 1e9


def parameters(config: dict[str, object]) -> float:
    """Weights of a target's layers and embeddings, from its sizes."""
    size = {name: value for name, value in config.items() if isinstance(value, int)}
    hidden, heads, layers = size["hidden_size"], size["num_attention_heads"], size["num_hidden_layers"]
    if "kv_lora_rank" not in size:
        attention = hidden * size["head_dim"] * 2 * (heads + size["num_key_value_heads"])
        return layers * (attention + 3 * hidden * size["intermediate_size"]) + 2 * hidden * size["vocab_size"]
    query = size["qk_nope_head_dim"] + size["qk_rope_head_dim"]
    rank = size.get("q_lora_rank", 0)
    attention = (hidden + heads * query) * rank if rank else hidden * heads * query
    attention += hidden * (size["kv_lora_rank"] + size["qk_rope_head_dim"]) + hidden * heads * size["v_head_dim"]
    attention += size["kv_lora_rank"] * heads * (size["qk_nope_head_dim"] + size["v_head_dim"])
    dense = min(size["first_k_dense_replace"], layers)
    experts = (size["n_routed_experts"] + size["n_shared_experts"]) * 3 * hidden * size["moe_intermediate_size"]
    mlp = dense * 3 * hidden * size["intermediate_size"] + (layers - dense) * experts
    return layers * attention + mlp + 2 * hidden * size["vocab_size"]


@pytest.mark.parametrize(
    ("name", "billions"),
    [("llama-3.1-8b", 8.0), ("llama-3.1-70b", 70.6), ("deepseek-v2-lite-dense", 2.6), ("kimi-k2.5-24-layers", 396.0)],
)
def test_a_target_has_the_size_of_its_name(name: str, billions: float) -> None:
    """Billions of weights; in bfloat16 the 70b one fits two GPUs of 139 GiB, and the one of experts eight."""
    target, draft = shapes()[name]
    assert parameters(target) / BILLION == pytest.approx(billions, rel=0.02)
    assert draft["hidden_size"] == target["hidden_size"]
    assert draft["vocab_size"] == target["vocab_size"]
    assert draft["num_key_value_heads"] == 8


def test_the_folders_are_whole_and_never_overwritten(tmp_path: Path) -> None:
    """Config and tokenizer for each of the two; a word stands for every id; a second call changes nothing."""
    main(["deepseek-v2-lite-dense", str(tmp_path / "made")])
    for name in ("target", "draft"):
        folder = tmp_path / "made" / name
        config = json.loads((folder / "config.json").read_text())
        vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
        assert sorted(vocabulary.values()) == list(range(config["vocab_size"]))
        assert (vocabulary["</s>"], vocabulary["w77"]) == (config["eos_token_id"], 77)
    with pytest.raises(UserError, match="exists"):
        main(["llama-3.1-8b", str(tmp_path / "made")])
    assert config == json.loads((tmp_path / "made" / "draft" / "config.json").read_text())
