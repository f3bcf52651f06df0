"""Pads a target and its draft to the size of a larger model that computes the same function.

    python -m pairs.pad target trained/draft --out padded --like llama-3.1-8b      # writes padded/target, padded/draft

A server then has the speed of the large model and the text and acceptance of the small one. The residual stream keeps
its values in the first places and holds exact zeros in the added ones: whatever writes to it has zero rows there, and
added heads, MLP neurons and layers are multiplied by zero where they would write. All other added weights are random,
so that as much is read and multiplied as in a real model of that size. RMSNorm divides by the mean over the wider
stream: its weights shrink by sqrt(small / large) and its epsilon by small / large. Exact but for the order of summation
in float32; in bfloat16 the shrunk norm weights round as any weight does.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from harness.errors import UserError
from pairs.draft import LAYER
from pairs.files import Config, copy_tokenizer, new_folder, read_config, run, write_json
from pairs.llama import Shape
from pairs.weights import Weights, read_weights, write_shards, write_weights

FILL_STD = 0.02  # of added weights, as large models are initialised


@dataclass(frozen=True, slots=True)
class Size:
    """What to pad to; the head size and the vocabulary stay."""

    hidden: int
    layers: int
    mlp: int
    heads: int
    kv_heads: int


# Llama-3.1-8B has 32 heads of 128 and 8 pairs of keys and values; with heads of 64 twice as many give the same matrices
# and the same bytes of KV cache per token.
SIZES = {"llama-3.1-8b": Size(hidden=4096, layers=32, mlp=14336, heads=64, kv_heads=16)}


@dataclass(frozen=True, slots=True)
class Places:
    """Where the small model's rows and columns lie in the large one."""

    stream: Tensor
    queries: Tensor
    keys: Tensor
    neurons: Tensor

    def side_by_side(self, count: int, hidden: int) -> Tensor:
        """The stream's places in `count` streams of the large size put side by side."""
        return torch.cat([self.stream + number * hidden for number in range(count)])


@dataclass(frozen=True, slots=True)
class Filler:
    """Makes padded tensors.

    Attributes:
        random: source of the added values.
        dtype: of what is written.
    """

    random: torch.Generator
    dtype: torch.dtype

    def noise(self, rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=self.random) * FILL_STD

    def matrix(
        self, source: Tensor, rows: tuple[int, Tensor], columns: tuple[int, Tensor], *, silent: str = ""
    ) -> Tensor:
        """`source` in a larger matrix of noise.

        Args:
            rows, columns: the larger size, and the places of the small one in it.
            silent: which added ones are zero: "rows" where they would write to the stream, "columns" where they would
                read what is not zero.
        """
        (height, down), (width, across) = rows, columns
        out = self.noise(height, width)
        if "rows" in silent:
            kept = out[down].clone()
            out.zero_()
            out[down] = kept
        if "columns" in silent:
            kept = out[:, across].clone()
            out.zero_()
            out[:, across] = kept
        out[down[:, None], across[None]] = source.float()
        return out.to(self.dtype)

    def norm(self, source: Tensor, hidden: int) -> Tensor:
        """A norm's weight for the wider stream."""
        out = torch.ones(hidden)
        out[: len(source)] = source.float() * math.sqrt(len(source) / hidden)
        return out.to(self.dtype)


def check(shape: Shape, size: Size) -> None:
    """Refuse what cannot hold the small model.

    Raises:
        UserError: naming what is too small.
    """
    for name in ("hidden", "layers", "mlp", "heads", "kv_heads"):
        if getattr(size, name) < getattr(shape, name):
            raise UserError(f"{name} {getattr(size, name)} is less than the model's own {getattr(shape, name)}")
    if size.heads % size.kv_heads or size.heads // size.kv_heads < shape.heads // shape.kv_heads:
        raise UserError(
            f"{size.heads} heads over {size.kv_heads} KV heads cannot hold groups of {shape.heads // shape.kv_heads}; "
            "give a multiple that has groups as large"
        )


def places(shape: Shape, size: Size) -> Places:
    """Each group of query heads keeps its KV head, and lies at the start of a group that may be larger."""
    group, wider = shape.heads // shape.kv_heads, size.heads // size.kv_heads
    heads = torch.arange(shape.heads)
    moved = heads // group * wider + heads % group
    queries = (moved[:, None] * shape.head_dim + torch.arange(shape.head_dim)).flatten()
    keys = torch.arange(shape.kv_heads * shape.head_dim)
    return Places(torch.arange(shape.hidden), queries, keys, torch.arange(shape.mlp))


def layer(source: Weights, prefix: str, inputs: int, at: Places, shape: Shape, size: Size, filler: Filler) -> Weights:
    """Attention and MLP of one layer.

    Args:
        inputs: how many streams side by side the attention reads: 1, or 2 in a draft.
    """
    stream = (size.hidden, at.stream)
    read = (inputs * size.hidden, at.side_by_side(inputs, size.hidden))
    queries, keys = (size.heads * shape.head_dim, at.queries), (size.kv_heads * shape.head_dim, at.keys)
    neurons = (size.mlp, at.neurons)
    sizes = {
        "self_attn.q_proj": (queries, read, ""),
        "self_attn.k_proj": (keys, read, ""),
        "self_attn.v_proj": (keys, read, ""),
        "self_attn.o_proj": (stream, queries, "rows columns"),
        "mlp.gate_proj": (neurons, stream, ""),
        "mlp.up_proj": (neurons, stream, ""),
        "mlp.down_proj": (stream, neurons, "rows columns"),
    }
    names = {f"{prefix}{name}.weight": how for name, how in sizes.items()}
    return {
        name: filler.matrix(source[name], rows, columns, silent=silent)
        for name, (rows, columns, silent) in names.items()
    }


def added_layer(prefix: str, shape: Shape, size: Size, filler: Filler) -> Weights:
    """A layer that costs what the others cost and adds nothing to the stream."""
    queries, keys = size.heads * shape.head_dim, size.kv_heads * shape.head_dim
    noise = {
        "self_attn.q_proj": (queries, size.hidden),
        "self_attn.k_proj": (keys, size.hidden),
        "self_attn.v_proj": (keys, size.hidden),
        "mlp.gate_proj": (size.mlp, size.hidden),
        "mlp.up_proj": (size.mlp, size.hidden),
    }
    weights = {f"{prefix}{name}.weight": filler.noise(*by).to(filler.dtype) for name, by in noise.items()}
    weights[f"{prefix}self_attn.o_proj.weight"] = torch.zeros(size.hidden, queries, dtype=filler.dtype)
    weights[f"{prefix}mlp.down_proj.weight"] = torch.zeros(size.hidden, size.mlp, dtype=filler.dtype)
    for name in ("input_layernorm", "post_attention_layernorm"):
        weights[f"{prefix}{name}.weight"] = torch.ones(size.hidden, dtype=filler.dtype)
    return weights


def target_shards(source: Weights, shape: Shape, size: Size, filler: Filler) -> Iterator[Weights]:
    """The padded target: embedding, head and last norm first, then one shard per layer."""
    at = places(shape, size)
    vocab, stream = (shape.vocab, torch.arange(shape.vocab)), (size.hidden, at.stream)
    # The embedding writes to the stream, so its added columns are zero; where the head is tied to it, its are too.
    name = "model.embed_tokens.weight"
    top = {name: filler.matrix(source[name], vocab, stream, silent="columns")}
    if "lm_head.weight" in source:
        top["lm_head.weight"] = filler.matrix(source["lm_head.weight"], vocab, stream)
    yield top | {"model.norm.weight": filler.norm(source["model.norm.weight"], size.hidden)}
    for number in range(size.layers):
        prefix = f"model.layers.{number}."
        if number >= shape.layers:  # above the last: the layers that a draft is shown keep their numbers
            yield added_layer(prefix, shape, size, filler)
            continue
        norms = (f"{prefix}{norm}.weight" for norm in ("input_layernorm", "post_attention_layernorm"))
        yield layer(source, prefix, 1, at, shape, size, filler) | {
            norm: filler.norm(source[norm], size.hidden) for norm in norms
        }


def draft_weights(source: Weights, shape: Shape, size: Size, filler: Filler) -> Weights:
    """The padded draft."""
    at = places(shape, size)
    stream, three = (size.hidden, at.stream), (3 * size.hidden, at.side_by_side(3, size.hidden))
    known = len(source["d2t"])
    norms = (f"{LAYER}hidden_norm", f"{LAYER}input_layernorm", f"{LAYER}post_attention_layernorm", "norm")
    return {
        "fc.weight": filler.matrix(source["fc.weight"], stream, three, silent="rows"),
        "lm_head.weight": filler.matrix(source["lm_head.weight"], (known, torch.arange(known)), stream),
        **layer(source, LAYER, 2, at, shape, size, filler),
        **{f"{name}.weight": filler.norm(source[f"{name}.weight"], size.hidden) for name in norms},
        "d2t": source["d2t"],
        "t2d": source["t2d"],
    }


def config_of(config: Config, shape: Shape, size: Size, layers: int, dtype: str) -> Config:
    """config.json of a padded target or draft."""
    return config | {
        "hidden_size": size.hidden,
        "intermediate_size": size.mlp,
        "num_hidden_layers": layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads,
        "head_dim": shape.head_dim,
        "rms_norm_eps": shape.eps * shape.hidden / size.hidden,
        "torch_dtype": dtype,
    }


def pad(target: Path, draft: Path, out: Path, size: Size, dtype: str = "bfloat16", seed: int = 1) -> None:
    """Write out/target and out/draft.

    Raises:
        UserError: no such model, or one that does not fit into the size.
    """
    config, draft_config = read_config(target), read_config(draft)
    shape, draft_shape = Shape.of(config), Shape.of(draft_config)
    check(shape, size)
    check(draft_shape, size)
    kind: torch.dtype = getattr(torch, dtype)
    with new_folder(out) as partial:
        for name, source, one, of, layers in (
            ("target", target, config, shape, size.layers),
            ("draft", draft, draft_config, draft_shape, 1),
        ):
            folder = partial / name
            folder.mkdir()
            filler = Filler(torch.Generator().manual_seed(seed), kind)
            if name == "target":
                write_shards(folder, target_shards(read_weights(source), of, size, filler), 1 + layers)
            else:
                write_weights(folder, draft_weights(read_weights(source), of, size, filler))
            write_json(folder / "config.json", config_of(one, of, size, layers, dtype))
            copy_tokenizer(source, folder)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m pairs.pad", description="Pads a pair to a larger model's cost.")
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--like", choices=SIZES, default="llama-3.1-8b", help="the size to pad to")
    for name in Size.__dataclass_fields__:
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, help="instead of the named size's")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    given = parser.parse_args(arguments)
    named = {name: getattr(given, name) or value for name, value in asdict(SIZES[given.like]).items()}
    pad(given.target, given.draft, given.out, Size(**named), given.dtype)
    print(json.dumps({"out": str(given.out), **named}))


if __name__ == "__main__":
    run(main)
