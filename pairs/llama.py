"""A Llama in plain PyTorch, as functions over a dictionary of weights with Hugging Face's names.

It exists because training needs the residual stream between layers, batched greedy answers and nothing else, on a
machine that may have PyTorch alone. Hidden states are captured as SGLang captures them: aux layer id i is the residual
stream after layer i (its `layers_to_capture` holds i + 1 and takes the input of that layer).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention, silu

from harness.errors import UserError
from pairs.files import Config, read_config
from pairs.weights import Weights, read_weights

LOOK_EVERY = 16  # steps between looks at whether every answer has ended
MIN_LAYERS = 4  # three captured layers and one above them


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a Llama, or of a draft's layer."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    vocab: int
    eps: float
    rope_theta: float

    @classmethod
    def of(cls, config: Config) -> Shape:
        """Read from a config.json of transformers 4 or 5.

        Raises:
            UserError: a rope scaling or an architecture that is not implemented here, or a size that is missing.
        """
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        kind = rope.get("rope_type", rope.get("type", "default"))
        if config.get("model_type") != "llama" or kind != "default":
            raise UserError(f"only Llama models without rope scaling are known here, not {config.get('model_type')}")
        try:
            heads = config["num_attention_heads"]
            return cls(
                hidden=config["hidden_size"],
                layers=config["num_hidden_layers"],
                heads=heads,
                kv_heads=config.get("num_key_value_heads") or heads,
                head_dim=config.get("head_dim") or config["hidden_size"] // heads,
                mlp=config["intermediate_size"],
                vocab=config["vocab_size"],
                eps=config["rms_norm_eps"],
                rope_theta=rope.get("rope_theta") or config["rope_theta"],
            )
        except KeyError as error:
            raise UserError(f"a config.json has no {error}; give the folder of a whole Llama") from error


@dataclass(frozen=True, slots=True)
class Llama:
    """A loaded target."""

    shape: Shape
    weights: Weights
    config: Config

    @property
    def embedding(self) -> Tensor:
        return self.weights["model.embed_tokens.weight"]

    @property
    def head(self) -> Tensor:
        return self.weights.get("lm_head.weight", self.embedding)  # tied where there is none

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        end = self.config.get("eos_token_id")
        return tuple(end) if isinstance(end, list) else () if end is None else (end,)


@dataclass(frozen=True, slots=True)
class Pass:
    """What one forward leaves.

    Attributes:
        final: normalised output, [rows, tokens, hidden]; times the head it gives logits.
        aux: residual streams after the captured layers, side by side, [rows, tokens, 3 * hidden].
    """

    final: Tensor
    aux: Tensor


@dataclass(frozen=True, slots=True)
class Cache:
    """Keys and values of all layers, [rows, kv heads, positions, head_dim] each."""

    keys: list[Tensor]
    values: list[Tensor]


def load(folder: Path, device: str, dtype: torch.dtype) -> Llama:
    """A target from its folder."""
    config = read_config(folder)
    weights = {name: tensor.to(device, dtype) for name, tensor in read_weights(folder).items()}
    return Llama(Shape.of(config), weights, config)


def aux_layers(layers: int) -> tuple[int, int, int]:
    """Low, middle and high layer whose output the draft sees; SGLang's own choice where the model is deep enough.

    `set_eagle3_layers_to_capture` takes the inputs of layers 2, n // 2 and n - 3 (0.5.9 to 0.5.23), which are the
    outputs of the layers before them.

    Raises:
        UserError: too few layers for three different ones.
    """
    if layers < MIN_LAYERS:
        raise UserError(
            f"a target of {layers} layers has no three to show to a draft; take one of {MIN_LAYERS} or more"
        )
    usual = (1, layers // 2 - 1, layers - 4)
    return usual if usual[0] < usual[1] < usual[2] else (0, (layers - 1) // 2, layers - 2)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm, in float32 inside."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype) * weight


def rotary(positions: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    """Cosine and sine for positions [..., tokens], ready for [..., heads, tokens, head_dim]."""
    exponent = torch.arange(0, shape.head_dim, 2, device=positions.device).float() / shape.head_dim
    angles = positions.float().unsqueeze(-1) * shape.rope_theta**-exponent
    angles = torch.cat([angles, angles], dim=-1).unsqueeze(-3)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first half of each head against its second half."""
    low, high = x.chunk(2, dim=-1)
    return (x * cos + torch.cat([-high, low], dim=-1) * sin).to(x.dtype)


def heads_of(x: Tensor, count: int) -> Tensor:
    """[rows, tokens, count * dim] to [rows, count, tokens, dim]."""
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def mlp(x: Tensor, weights: Weights, prefix: str) -> Tensor:
    """Llama's gated MLP."""
    gate, up, down = (weights[f"{prefix}mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
    return linear(silu(linear(x, gate)) * linear(x, up), down)


def new_cache(shape: Shape, rows: int, positions: int, like: Tensor) -> Cache:
    """An empty cache of the device and type of `like`."""
    size = (rows, shape.kv_heads, positions, shape.head_dim)
    return Cache(*([like.new_zeros(size) for _ in range(shape.layers)] for _ in range(2)))


def forward(model: Llama, tokens: Tensor, cache: Cache | None = None, at: Tensor | None = None) -> Pass:
    """One pass over [rows, tokens].

    Args:
        cache: filled where given.
        at: position of each row's only token, which then sees what the cache holds before it; None for tokens that
            start at position 0 and see one another causally.
    """
    shape, weights = model.shape, model.weights
    positions = torch.arange(tokens.shape[1], device=tokens.device)[None] if at is None else at[:, None]
    turn = rotary(positions, shape)
    captured = aux_layers(shape.layers)
    x = model.embedding[tokens]
    aux = []
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}."
        normed = rms_norm(x, weights[f"{prefix}input_layernorm.weight"], shape.eps)
        x = x + _attention(model, layer, normed, turn, cache, at)
        x = x + mlp(rms_norm(x, weights[f"{prefix}post_attention_layernorm.weight"], shape.eps), weights, prefix)
        if layer in captured:
            aux.append(x)
    return Pass(rms_norm(x, weights["model.norm.weight"], shape.eps), torch.cat(aux, dim=-1))


def _attention(
    model: Llama, layer: int, x: Tensor, turn: tuple[Tensor, Tensor], cache: Cache | None, at: Tensor | None
) -> Tensor:
    shape, prefix = model.shape, f"model.layers.{layer}.self_attn."
    q, k, v = (linear(x, model.weights[f"{prefix}{name}_proj.weight"]) for name in "qkv")
    q, k, v = heads_of(q, shape.heads), heads_of(k, shape.kv_heads), heads_of(v, shape.kv_heads)
    q, k = rotate(q, *turn), rotate(k, *turn)
    if cache is None or at is None:
        if cache is not None:
            cache.keys[layer][:, :, : k.shape[2]] = k
            cache.values[layer][:, :, : k.shape[2]] = v
        out = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    else:
        rows = torch.arange(len(at), device=at.device)
        cache.keys[layer][rows, :, at] = k[:, :, 0]
        cache.values[layer][rows, :, at] = v[:, :, 0]
        seen = torch.arange(cache.keys[layer].shape[2], device=at.device)[None] <= at[:, None]
        keys, values = cache.keys[layer], cache.values[layer]
        out = scaled_dot_product_attention(q, keys, values, attn_mask=seen[:, None, None], enable_gqa=True)
    return linear(out.transpose(1, 2).flatten(2), model.weights[f"{prefix}o_proj.weight"])


def greedy(model: Llama, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
    """The greedy answer to each prompt, up to its stop token (included) or max_tokens."""
    device = model.embedding.device
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    tokens = torch.zeros(len(prompts), int(lengths.max()), dtype=torch.long)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = torch.tensor(prompt)
    stops = torch.tensor(model.stop_tokens, device=device)
    with torch.inference_mode():
        cache = new_cache(model.shape, len(prompts), tokens.shape[1] + max_tokens, model.embedding)
        final = forward(model, tokens.to(device), cache).final
        steps = [linear(final[torch.arange(len(prompts), device=device), lengths - 1], model.head).argmax(-1)]
        ended = torch.isin(steps[0], stops)
        while len(steps) < max_tokens:
            if len(steps) % LOOK_EVERY == 0 and bool(ended.all()):  # looking makes a GPU wait
                break
            final = forward(model, steps[-1][:, None], cache, lengths + len(steps) - 1).final
            steps.append(linear(final[:, 0], model.head).argmax(-1))
            ended = ended | torch.isin(steps[-1], stops)
    return [_until_stop(row, model.stop_tokens) for row in torch.stack(steps, dim=1).tolist()]


def _until_stop(tokens: list[int], stops: tuple[int, ...]) -> list[int]:
    end = next((place for place, token in enumerate(tokens, start=1) if token in stops), len(tokens))
    return tokens[:end]
