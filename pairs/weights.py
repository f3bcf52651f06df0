"""The weights of a model folder, as safetensors: one file, or shards with an index."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from harness.errors import UserError
from pairs.files import SINGLE, write_json

Weights = dict[str, Tensor]

INDEX = "model.safetensors.index.json"


def read_weights(folder: Path) -> Weights:
    """Every tensor of a model folder, in the type it was stored in.

    Raises:
        UserError: it holds no safetensors.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UserError(f"{folder} holds no safetensors; make it with pairs.dequantise or pairs.train")
    weights: Weights = {}
    for file in files:
        weights |= load_file(file)
    return weights


def write_weights(folder: Path, weights: Weights) -> None:
    """One file with every tensor."""
    whole = {name: tensor.detach().contiguous() for name, tensor in weights.items()}
    save_file(whole, folder / SINGLE, {"format": "pt"})


def write_shards(folder: Path, shards: Iterable[Weights], count: int) -> None:
    """One file per shard and their index; only one shard is in memory at a time.

    Args:
        count: number of shards, which stands in their names.
    """
    places: dict[str, str] = {}
    size = 0
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05}-of-{count:05}.safetensors"
        save_file({key: tensor.contiguous() for key, tensor in shard.items()}, folder / name, {"format": "pt"})
        places |= dict.fromkeys(shard, name)
        size += sum(tensor.numel() * tensor.element_size() for tensor in shard.values())
    write_json(folder / INDEX, {"metadata": {"total_size": size}, "weight_map": places})
