"""An EAGLE-3 draft in plain PyTorch: SGLang's LlamaForCausalLMEagle3 as functions over its weights.

Row s of a sequence stands for the target's position s: the draft sees the residual streams there and the embedding of
token s + 1, and proposes token s + 2. A chain goes on from the draft's own output: in step k, row s has the embedding
of token s + 1 + k and rotary position s + k, and attends to the rows up to s of step 0 and to row s of steps 1 to k.
That is what SGLang's draft sees, which refills the keys of accepted tokens from the target after each verification,
and it is the training-time test of the EAGLE-3 paper (arXiv 2503.01840, section 3).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention

from pairs.files import Config, copy_tokenizer, new_folder, read_config, write_json
from pairs.llama import Llama, Shape, aux_layers, heads_of, mlp, rms_norm, rotary, rotate
from pairs.weights import Weights, read_weights, write_weights

LAYER = "midlayer."


@dataclass(frozen=True, slots=True)
class Draft:
    """A draft.

    Attributes:
        weights: trainable, by SGLang's names.
        vocabulary: target id of each draft id, ascending.
    """

    shape: Shape
    weights: Weights
    vocabulary: Tensor


@dataclass(frozen=True, slots=True)
class Step:
    """One draft step over all rows: what the next one continues from.

    Attributes:
        hidden: before the last norm, [rows, tokens, hidden].
        keys, values: of this step and those before it, first to last.
    """

    hidden: Tensor
    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]


def start(target: Llama, vocabulary: Tensor) -> Draft:
    """A draft to train: the target's last layer, which is handed the highest captured stream and nothing else yet.

    What is to be learned starts at zero: the streams of a trained model hold values in the hundreds, and small random
    weights on them would drown what the copied layer knows.
    """
    shape, source = target.shape, target.weights
    last = f"model.layers.{shape.layers - 1}."

    def copied(name: str) -> Tensor:
        return source[last + name].float().clone()

    own_stream = torch.eye(shape.hidden, device=target.embedding.device)
    weights = {"fc.weight": torch.cat([own_stream.new_zeros(shape.hidden, 2 * shape.hidden), own_stream], dim=1)}
    for name in ("q", "k", "v"):
        own = copied(f"self_attn.{name}_proj.weight")
        weights[f"{LAYER}self_attn.{name}_proj.weight"] = torch.cat([torch.zeros_like(own), own], dim=1)
    for name in ("self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "post_attention_layernorm"):
        weights[f"{LAYER}{name}.weight"] = copied(f"{name}.weight")
    weights[f"{LAYER}hidden_norm.weight"] = copied("input_layernorm.weight")
    weights[f"{LAYER}input_layernorm.weight"] = torch.ones_like(copied("input_layernorm.weight"))
    weights["norm.weight"] = source["model.norm.weight"].float().clone()
    weights["lm_head.weight"] = target.head[vocabulary.to(target.head.device)].float().clone()
    return Draft(shape, {name: tensor.requires_grad_() for name, tensor in weights.items()}, vocabulary)


def first_step(draft: Draft, aux: Tensor, embeds: Tensor) -> Step:
    """Step 0, from the target's residual streams.

    Args:
        aux: [rows, tokens, 3 * hidden].
        embeds: embedding of each row's next token, [rows, tokens, hidden].
    """
    q, k, v, residual = _project(draft, linear(aux, draft.weights["fc.weight"]), embeds, 0)
    attended = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return Step(_finish(draft, attended, residual), (k,), (v,))


def next_step(draft: Draft, before: Step, embeds: Tensor) -> Step:
    """The step after `before`, from the draft's own output; embeds are of the token that step proposed."""
    number = len(before.keys)
    q, k, v, residual = _project(draft, before.hidden, embeds, number)
    keys, values = (*before.keys, k), (*before.values, v)
    group = draft.shape.heads // draft.shape.kv_heads
    wide_keys, wide_values = ([t.repeat_interleave(group, dim=1) for t in them] for them in (keys, values))
    tokens = q.shape[2]
    hidden = torch.ones(tokens, tokens, dtype=torch.bool, device=q.device).triu(1)
    scores = [(q @ wide_keys[0].transpose(-1, -2)).masked_fill(hidden, float("-inf"))]
    scores += [(q * own).sum(-1, keepdim=True) for own in wide_keys[1:]]
    weights = (torch.cat(scores, dim=-1).float() * draft.shape.head_dim**-0.5).softmax(dim=-1).to(q.dtype)
    attended = weights[..., :tokens] @ wide_values[0]
    for place, own in enumerate(wide_values[1:]):
        attended = attended + weights[..., tokens + place, None] * own
    return Step(_finish(draft, attended, residual), keys, values)


def logits(draft: Draft, step: Step) -> Tensor:
    """Scores over the draft's vocabulary."""
    return linear(rms_norm(step.hidden, draft.weights["norm.weight"], draft.shape.eps), draft.weights["lm_head.weight"])


def _project(draft: Draft, hidden: Tensor, embeds: Tensor, number: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, keys, values and the residual of the layer in step `number`."""
    shape, weights = draft.shape, draft.weights
    own = rms_norm(hidden, weights[f"{LAYER}hidden_norm.weight"], shape.eps)
    token = rms_norm(embeds, weights[f"{LAYER}input_layernorm.weight"], shape.eps)
    joined = torch.cat([token, own], dim=-1)
    q, k, v = (linear(joined, weights[f"{LAYER}self_attn.{name}_proj.weight"]) for name in "qkv")
    turn = rotary(torch.arange(hidden.shape[1], device=hidden.device)[None] + number, shape)
    q, k = rotate(heads_of(q, shape.heads), *turn), rotate(heads_of(k, shape.kv_heads), *turn)
    return q, k, heads_of(v, shape.kv_heads), hidden


def _finish(draft: Draft, attended: Tensor, residual: Tensor) -> Tensor:
    weights = draft.weights
    out = linear(attended.transpose(1, 2).flatten(2), weights[f"{LAYER}self_attn.o_proj.weight"]) + residual
    normed = rms_norm(out, weights[f"{LAYER}post_attention_layernorm.weight"], draft.shape.eps)
    return out + mlp(normed, weights, LAYER)


def config_of(target: Config, shape: Shape, draft_vocab: int) -> Config:
    """The draft's config.json; the captured layers stand in it, so that more layers on top do not move them."""
    kept = ("hidden_act", "max_position_embeddings", "bos_token_id", "eos_token_id", "pad_token_id", "vocab_size")
    return {
        **{key: target[key] for key in kept if key in target},
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.mlp,
        "num_hidden_layers": 1,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "rms_norm_eps": shape.eps,
        "rope_theta": shape.rope_theta,
        "rope_scaling": None,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "float32",
        "draft_vocab_size": draft_vocab,
        "eagle_config": {
            "use_aux_hidden_state": True,
            "eagle_aux_hidden_state_layer_ids": list(aux_layers(shape.layers)),
        },
    }


def export(draft: Draft, target: Llama, target_folder: Path, folder: Path) -> None:
    """Write the draft as SGLang loads it; d2t holds target id minus draft id, t2d which target ids the draft knows."""
    ids = draft.vocabulary.cpu()
    known = torch.zeros(target.shape.vocab, dtype=torch.bool)
    known[ids] = True
    maps = {"d2t": ids - torch.arange(len(ids)), "t2d": known}
    with new_folder(folder) as partial:
        write_weights(partial, {name: tensor.float().cpu() for name, tensor in draft.weights.items()} | maps)
        write_json(partial / "config.json", config_of(target.config, target.shape, len(ids)))
        copy_tokenizer(target_folder, partial)


def load(folder: Path, target: Llama, device: str) -> Draft:
    """A draft as `export` wrote it, in float32."""
    weights = read_weights(folder)
    ids = weights.pop("d2t").long()
    weights.pop("t2d")
    shape = Shape.of(read_config(folder))
    return Draft(shape, {name: t.to(device).float() for name, t in weights.items()}, ids + torch.arange(len(ids)))
