"""Small models that the checks of `pairs` are made on, and what they share."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import LlamaConfig, LlamaForCausalLM

from harness.errors import UserError
from pairs import draft, llama
from pairs.answers import Answer
from pairs.draft import Draft
from pairs.files import copy_tokenizer, write_json
from pairs.llama import Llama
from pairs.prompts import KINDS
from pairs.train import Settings
from pairs.weights import write_weights
from tests.sglang_cpu import models

Values = NDArray[np.float32]


# Heads in groups of three, as SmolLM2 has them; the vocabulary is the tokenizer's of the constructed models.
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 96,
    "intermediate_size": 128,
    "num_hidden_layers": 5,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "vocab_size": models.VOCAB,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "mlp_bias": False,
    "torch_dtype": "float32",
    "bos_token_id": models.BOS,
    "eos_token_id": models.EOS,
    "pad_token_id": models.PAD,
}


TINY = Settings(
    prompts=12, held_out=3, answer_tokens=24, draft_vocab=200, steps=60, batch=8, rate=3e-3, draft_steps=3, chain=3
)


def make_target(folder: Path, tied: bool = True, stop: bool = True) -> Path:
    """A random target whose next token hangs on its context, with a tokenizer and a chat template."""
    torch.manual_seed(0)
    config = CONFIG | {"tie_word_embeddings": tied} | ({} if stop else {"eos_token_id": None})
    model = LlamaForCausalLM(LlamaConfig(**{k: v for k, v in config.items() if k != "rope_scaling"}))
    weights = {name: tensor.detach() * (1 if "norm" in name else 4) for name, tensor in model.state_dict().items()}
    if tied:
        weights.pop("lm_head.weight", None)
    folder.mkdir(parents=True)
    write_weights(folder, weights)
    write_json(folder / "config.json", config)
    models.make(folder.parent / "constructed")
    copy_tokenizer(folder.parent / "constructed" / "target", folder)
    return folder


def reference(folder: Path) -> Any:
    """The same target as transformers runs it."""
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def some_tokens(rows: int, columns: int) -> torch.Tensor:
    return torch.randint(3, models.VOCAB, (rows, columns), generator=torch.Generator().manual_seed(1))


def refusal(attempt: Callable[..., object], *given: object) -> str:
    """What the user is told."""
    try:
        attempt(*given)
    except UserError as error:
        return str(error)
    raise AssertionError(f"{given} was accepted")


def make_draft(target: Llama, seed: int = 0) -> Draft:
    """A draft with random weights, over a third of the vocabulary."""
    chosen = torch.tensor(sorted(random.Random(seed).sample(range(3, models.VOCAB), 170)))
    begun = draft.start(target, chosen)
    torch.manual_seed(seed)
    return replace(begun, weights={n: (t + 0.05 * torch.randn_like(t)).detach() for n, t in begun.weights.items()})


def some_answers(target: Llama, count: int, tokens: int) -> list[Answer]:
    """Greedy answers to random prompts of different lengths."""
    prompts = [some_tokens(1, 4 + 3 * at)[0].tolist() for at in range(count)]
    return [
        Answer(KINDS[at % len(KINDS)], np.array(prompt + answer, np.int32), len(prompt))
        for at, (prompt, answer) in enumerate(zip(prompts, llama.greedy(target, prompts, tokens), strict=True))
    ]
