"""Two tiny models and two EAGLE-3 drafts for them, constructed and not trained: the same bytes on every run.

The target is a random Llama whose output head prefers one successor for each token (a single cycle through the
vocabulary), with attention and MLP strong enough that the context often wins: a wrong KV row shows as another greedy
token. Both drafts know the cycle, so part of their proposals is accepted.

- `draft` attends to its own position only: high acceptance, blind to earlier draft KV.
- `draft-with-memory` also attends by content to all earlier positions and mixes in the target's hidden states: its
  proposals change when an earlier row of its KV is stale, which greedy output alone can never show.

    python -m tests.sglang_cpu.models DIRECTORY
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Weights = dict[str, NDArray[np.float32]]

VOCAB, HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE = 512, 128, 4, 4, 2, 32, 256
BOS, EOS, PAD = 0, 1, 2
FIRST_TOKEN = 3  # the first three ids are special
CONTEXT_STRENGTH = 1.25  # smaller: more proposals are accepted; larger: the context decides more tokens
MAX_POSITIONS = 2048


def make(directory: Path) -> None:
    """Write `target`, `draft` and `draft-with-memory` under the directory."""
    random = np.random.default_rng(0)
    embedding = _normal(random, VOCAB, HIDDEN)
    embedding[:, 0] = 6.0  # one direction common to all tokens: the drafts' attention needs a constant
    head = _successor_head(random, embedding)
    _write(
        directory / "target", _target(random, embedding, head), _config("LlamaForCausalLM", LAYERS, KV_HEADS, 10000.0)
    )
    draft_config = _config("LlamaForCausalLMEagle3", 1, HEADS, 10.0) | {
        "draft_vocab_size": VOCAB,
        "eagle_config": {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": [0, 1, 2]},
    }
    _write(directory / "draft", _draft(head), draft_config)
    _write(directory / "draft-with-memory", _with_memory(_draft(head)), draft_config)


def _normal(random: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    return random.standard_normal(shape, dtype=np.float32)


def _successor_head(random: np.random.Generator, embedding: NDArray[np.float32]) -> NDArray[np.float32]:
    """An output head that answers a token's own embedding with its successor in one cycle through the vocabulary."""
    cycle = FIRST_TOKEN + random.permutation(VOCAB - FIRST_TOKEN)
    head = np.zeros((VOCAB, HIDDEN), dtype=np.float32)
    head[np.roll(cycle, -1)] = embedding[cycle]
    head[:, 0] = 0.0
    return head * np.float32(0.3)


def _target(random: np.random.Generator, embedding: NDArray[np.float32], head: NDArray[np.float32]) -> Weights:
    weights: Weights = {"model.embed_tokens.weight": embedding, "lm_head.weight": head, "model.norm.weight": _ones()}
    shapes = {
        "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN, 2.0),
        "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN, 2.0),
        "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN, 1.0),
        "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM, CONTEXT_STRENGTH),
        "mlp.gate_proj": (INTERMEDIATE, HIDDEN, 1.0),
        "mlp.up_proj": (INTERMEDIATE, HIDDEN, 1.0),
        "mlp.down_proj": (HIDDEN, INTERMEDIATE, CONTEXT_STRENGTH),
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        for name, (rows, columns, gain) in shapes.items():
            weights[f"{prefix}{name}.weight"] = _normal(random, rows, columns) * np.float32(gain / columns**0.5)
        weights[f"{prefix}input_layernorm.weight"] = _ones()
        weights[f"{prefix}post_attention_layernorm.weight"] = _ones()
    return weights


def _draft(head: NDArray[np.float32]) -> Weights:
    """One layer whose constant queries and keys let the rotary embedding pick the own position; it copies the token."""
    random = np.random.default_rng(1)
    width = HEADS * HEAD_DIM
    query = np.zeros((width, 2 * HIDDEN), dtype=np.float32)
    query[:, 0] = 2.0
    value = np.zeros((width, 2 * HIDDEN), dtype=np.float32)
    value[:, :HIDDEN] = np.eye(HIDDEN)
    fuse = np.zeros((HIDDEN, 3 * HIDDEN), dtype=np.float32)
    fuse[:, 2 * HIDDEN :] = 0.05 * np.eye(HIDDEN)
    weights: Weights = {
        "fc.weight": fuse,
        "lm_head.weight": head,
        "midlayer.self_attn.q_proj.weight": query,
        "midlayer.self_attn.k_proj.weight": query.copy(),
        "midlayer.self_attn.v_proj.weight": value,
        "midlayer.self_attn.o_proj.weight": np.eye(HIDDEN, dtype=np.float32),
        "midlayer.mlp.gate_proj.weight": _normal(random, INTERMEDIATE, HIDDEN) * np.float32(0.05),
        "midlayer.mlp.up_proj.weight": _normal(random, INTERMEDIATE, HIDDEN) * np.float32(0.05),
        "midlayer.mlp.down_proj.weight": _normal(random, HIDDEN, INTERMEDIATE) * np.float32(0.05),
    }
    norms = ("midlayer.hidden_norm", "midlayer.input_layernorm", "midlayer.post_attention_layernorm", "norm")
    return weights | {f"{name}.weight": _ones() for name in norms}


def _with_memory(weights: Weights) -> Weights:
    """The draft with half its heads attending by content to every position, and values that carry hidden states."""
    random = np.random.default_rng(2)
    half, width = HEADS * HEAD_DIM // 2, 2 * HIDDEN
    changed = {name: weights[f"midlayer.self_attn.{name}.weight"].copy() for name in ("q_proj", "k_proj", "v_proj")}
    for name in ("q_proj", "k_proj"):
        changed[name][half:] = _normal(random, half, width) * np.float32(2.0 / width**0.5)
    changed["v_proj"][:, HIDDEN:] = _normal(random, 2 * half, HIDDEN) * np.float32(0.1)
    return weights | {f"midlayer.self_attn.{name}.weight": tensor for name, tensor in changed.items()}


def _ones() -> NDArray[np.float32]:
    return np.ones(HIDDEN, dtype=np.float32)


def _config(architecture: str, layers: int, kv_heads: int, rope_theta: float) -> dict[str, object]:
    return {
        "architectures": [architecture],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": kv_heads,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "vocab_size": VOCAB,
        "max_position_embeddings": MAX_POSITIONS,
        "rope_theta": rope_theta,
        "rope_scaling": None,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "float32",
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
    }


def _write(directory: Path, weights: Weights, config: dict[str, object]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    _write_safetensors(directory / "model.safetensors", weights)
    _write_json(directory / "config.json", config)
    _write_json(directory / "tokenizer.json", _tokenizer())
    _write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<s>",
            "eos_token": "</s>",
            "pad_token": "<pad>",
            "chat_template": "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:",
        },
    )


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")


def _write_safetensors(path: Path, weights: Weights) -> None:
    """The safetensors format: header length (8 bytes, little endian), JSON header, raw tensors.

    Written here, so that the models can be made where only numpy is installed.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, tensor in weights.items():
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [at, at + tensor.nbytes]}
        at += tensor.nbytes
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in weights.values():
            file.write(np.ascontiguousarray(tensor, dtype="<f4").tobytes())


def _tokenizer() -> dict[str, object]:
    """A byte-level vocabulary without merges, filled up with whole words; no release of transformers refuses it."""
    vocab = {"<s>": BOS, "</s>": EOS, "<pad>": PAD}
    for character in _byte_alphabet():
        vocab[character] = len(vocab)
    vocab |= {f"\u0120w{token}": token for token in range(len(vocab), VOCAB)}
    specials = [
        {"id": token, "content": text, "special": True, "normalized": False}
        | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
        for text, token in list(vocab.items())[:FIRST_TOKEN]
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": specials,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    }


def encode(text: str) -> list[int]:
    """The tokens of an ASCII text: one per byte, as nothing is ever merged."""
    alphabet = _byte_alphabet()
    return [FIRST_TOKEN + alphabet.index("\u0120" if character == " " else character) for character in text]


def _byte_alphabet() -> list[str]:
    """The 256 printable characters that stand for bytes in byte-level BPE, in sorted order; U+0120 is the space."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    shifted = [256 + i for i in range(256 - len(printable))]
    return sorted(chr(code) for code in printable + shifted)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
