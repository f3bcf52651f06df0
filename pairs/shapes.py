"""Targets and drafts without weights, for servers with `--load-format dummy`: real speed, meaningless text.

Each shape is two folders with a config.json and one tokenizer of numbered words, so that nothing is downloaded and
nothing large is written. What a token costs depends on the sizes alone; acceptance must be prescribed
(SGLANG_SIMULATE_ACC_LEN).

    python -m pairs.shapes llama-3.1-8b results/local-8b        # results/local-8b/target and results/local-8b/draft
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pairs.files import Config, new_folder, run, write_json

SPECIALS = ("<s>", "</s>", "<unk>")
MAX_POSITIONS = 16384
# DeepSeek-V2-Lite's; SGLang's latent attention expects a scaling of this kind.
YARN: Config = {
    "type": "yarn",
    "factor": 40,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 0.707,
    "mscale_all_dim": 0.707,
    "original_max_position_embeddings": 4096,
}


def llama(hidden: int, layers: int, heads: int, intermediate: int, vocab: int = 128256) -> Config:
    """A Llama of grouped-query attention with 8 KV heads of 128."""
    return _common(hidden, layers, heads, vocab) | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": intermediate,
        "rope_theta": 500000.0,
        "mlp_bias": False,
    }


def draft_of(target: Config, intermediate: int, heads: int) -> Config:
    """An EAGLE-3 draft: one Llama layer of the target's width with ordinary attention, and a head of 32,000 tokens."""
    return llama(target["hidden_size"], 1, heads, intermediate, target["vocab_size"]) | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": min(32000, target["vocab_size"]),
    }


def dense_mla(hidden: int, layers: int, heads: int, intermediate: int, vocab: int) -> Config:
    """DeepSeek-V2's latent attention with an ordinary MLP in every layer: attention is what is looked at."""
    return _latent(hidden, layers, heads, vocab, first_k_dense_replace=layers) | {
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "intermediate_size": intermediate,
        "moe_intermediate_size": 1408,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "num_experts_per_tok": 6,
        "q_lora_rank": None,
        "topk_method": "greedy",
        "scoring_func": "softmax",
        "routed_scaling_factor": 1.0,
        "norm_topk_prob": False,
    }


def mixture_of_experts(layers: int) -> Config:
    """The text model of Kimi K2.5 with fewer layers: what one layer costs is the original's."""
    return _latent(7168, layers, 64, 163840, first_k_dense_replace=1) | {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "n_routed_experts": 384,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "q_lora_rank": 1536,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "routed_scaling_factor": 2.827,
        "norm_topk_prob": True,
    }


def shapes() -> dict[str, tuple[Config, Config]]:
    """Target and draft by name."""
    small, large = llama(4096, 32, 32, 14336), llama(8192, 80, 64, 28672)
    latent, experts = dense_mla(2048, 27, 16, 10944, 102400), mixture_of_experts(24)
    return {
        "llama-3.1-8b": (small, draft_of(small, 14336, 32)),
        "llama-3.1-70b": (large, draft_of(large, 28672, 64)),
        "deepseek-v2-lite-dense": (latent, draft_of(latent, 8192, 16)),
        "kimi-k2.5-24-layers": (experts, draft_of(experts, 18432, 56)),
    }


def make(out: Path, target: Config, draft: Config) -> None:
    """Write OUT/target and OUT/draft.

    Raises:
        UserError: there is something at OUT already.
    """
    with new_folder(out) as folder:
        for name, config in (("target", target), ("draft", draft)):
            (folder / name).mkdir()
            write_json(folder / name / "config.json", config)
            write_json(folder / name / "tokenizer.json", _words(config["vocab_size"]))
            write_json(folder / name / "tokenizer_config.json", _tokenizer_config())


def _common(hidden: int, layers: int, heads: int, vocab: int) -> Config:
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "vocab_size": vocab,
        "max_position_embeddings": MAX_POSITIONS,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": 0,
        "eos_token_id": 1,
    }


def _latent(hidden: int, layers: int, heads: int, vocab: int, first_k_dense_replace: int) -> Config:
    return _common(hidden, layers, heads, vocab) | {
        "num_key_value_heads": heads,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "first_k_dense_replace": first_k_dense_replace,
        "moe_layer_freq": 1,
        "n_group": 1,
        "topk_group": 1,
        "rope_theta": 10000.0,
        "rope_scaling": dict(YARN),
    }


def _words(vocab: int) -> dict[str, object]:
    """A tokenizer with one word per id, "w3" for token 3."""
    ids = {**{word: number for number, word in enumerate(SPECIALS)}, **{f"w{n}": n for n in range(3, vocab)}}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": ids, "unk_token": "<unk>"},
    }


def _tokenizer_config() -> dict[str, object]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "clean_up_tokenization_spaces": False,
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m pairs.shapes", description="Model folders without weights.")
    parser.add_argument("shape", choices=list(shapes()))
    parser.add_argument("out", type=Path)
    given = parser.parse_args(arguments)
    make(given.out, *shapes()[given.shape])


if __name__ == "__main__":
    run(main)
