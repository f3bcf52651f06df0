"""The target: our Llama against transformers', dequantised values against their file, and what is refused."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file
from tokenizers import Tokenizer
from torch.nn.functional import linear

from harness.errors import UserError
from pairs import dequantise, llama
from tests.sglang_cpu import models
from tests.sglang_cpu.pair_making import CONFIG, Values, make_target, reference, refusal, some_tokens


def llama_is_transformers_llama(folder: Path) -> None:
    """Logits, captured residual streams and greedy answers agree with transformers'."""
    for tied in (True, False):
        path = make_target(folder / str(tied) / "target", tied)
        mine, theirs = llama.load(path, "cpu", torch.float32), reference(path)
        tokens = some_tokens(2, 17)
        seen = llama.forward(mine, tokens)
        with torch.no_grad():
            wanted = theirs(tokens, output_hidden_states=True)
        torch.testing.assert_close(linear(seen.final, mine.head), wanted.logits, atol=1e-4, rtol=1e-4)
        layers = llama.aux_layers(mine.shape.layers)
        streams = torch.cat([wanted.hidden_states[layer + 1] for layer in layers], dim=-1)
        torch.testing.assert_close(seen.aux, streams, atol=1e-4, rtol=1e-4)
        prompts = [tokens[0, :5].tolist(), tokens[1, :11].tolist()]
        for prompt, answer in zip(prompts, llama.greedy(mine, prompts, 12), strict=True):
            whole = theirs.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False)
            assert answer == whole[0, len(prompt) :].tolist()


def captured_layers_are_sglangs(folder: Path) -> None:
    """SGLang captures the inputs of layers 2, n // 2 and n - 3; three different ones in shallow models too."""
    for layers in range(7, 90):
        wanted = [2, layers // 2, layers - 3]
        if len(set(wanted)) == 3 and wanted == sorted(wanted):
            assert [layer + 1 for layer in llama.aux_layers(layers)] == wanted
    for layers in range(4, 90):
        chosen = llama.aux_layers(layers)
        assert chosen[0] < chosen[1] < chosen[2] < layers - 1 or layers == 4
    try:
        llama.aux_layers(3)
    except UserError:
        return
    raise AssertionError("three layers were accepted")


def q4_1(blocks: NDArray[np.uint8]) -> Values:
    """Q4_1 from its definition: per 32 values a float16 scale, a float16 minimum, 16 bytes of low then high nibbles."""
    scale, least = (blocks[:, at : at + 2].copy().view(np.float16).astype(np.float32) for at in (0, 2))
    nibbles = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1)
    return (scale * nibbles.astype(np.float32) + least).astype(np.float32)


def make_gguf(file: Path) -> dict[str, Values]:
    """A tiny quantised Llama in a GGUF file; returns each tensor's values as its blocks have them."""
    rng = np.random.default_rng(3)
    writer = gguf.GGUFWriter(file, "llama")
    hidden, mlp, layers, heads, kv_heads = 96, 128, 4, 6, 2
    writer.add_block_count(layers)
    writer.add_context_length(512)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(mlp)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_freq_base(100000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *models._byte_alphabet(), "ab", "\u0120a"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if at < 3 else 1 for at in range(len(tokens))])
    writer.add_token_merges(["a b", "\u0120 a"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}")
    shapes = {"token_embd": (len(tokens), hidden), "output_norm": (hidden,)}
    for layer in range(layers):
        width, kv_width = hidden, hidden // heads * kv_heads
        rows = {"attn_q": width, "attn_k": kv_width, "attn_v": kv_width, "attn_output": hidden}
        shapes |= {f"blk.{layer}.{name}": (count, hidden) for name, count in rows.items()}
        shapes |= {f"blk.{layer}.ffn_{name}": (mlp, hidden) for name in ("gate", "up")}
        shapes |= {f"blk.{layer}.ffn_down": (hidden, mlp)}
        shapes |= {f"blk.{layer}.{name}": (hidden,) for name in ("attn_norm", "ffn_norm")}
    values = {}
    for name, shape in shapes.items():
        data = rng.standard_normal(shape, dtype=np.float32)
        if len(shape) == 1:
            writer.add_tensor(f"{name}.weight", data)
            values[name] = data
            continue
        packed = gguf.quantize(data, gguf.GGMLQuantizationType.Q4_1)
        writer.add_tensor(f"{name}.weight", packed, raw_dtype=gguf.GGMLQuantizationType.Q4_1)
        values[name] = q4_1(packed.reshape(-1, 20)).reshape(shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return values


def dequantised_values_are_the_files(folder: Path) -> None:
    """Every tensor has the file's values, queries and keys in Hugging Face's row order; the tokenizer is the file's."""
    values = make_gguf(folder / "tiny.gguf")
    dequantise.dequantise(folder / "tiny.gguf", folder / "model")
    stored = load_file(folder / "model" / "model.safetensors")
    assert len(stored) == len(values)
    for name, wanted in values.items():
        full, kind = dequantise.translated(f"{name}.weight")
        if kind in ("attn_q", "attn_k"):
            heads = 6 if kind == "attn_q" else 2
            wanted = np.stack(
                [head[place] for head in np.split(wanted, heads) for place in [*range(0, 16, 2), *range(1, 16, 2)]]
            )
        np.testing.assert_array_equal(stored[full], wanted, err_msg=name)
    tokenizer = Tokenizer.from_file(str(folder / "model" / "tokenizer.json"))
    assert tokenizer.encode("<|im_start|>ab 12 a<|im_end|>").tokens == [
        "<|im_start|>", "ab", "\u0120", "1", "2", "\u0120a", "<|im_end|>",
    ]  # fmt: skip
    assert tokenizer.decode(tokenizer.encode("naïve ab\n 7").ids) == "naïve ab\n 7"
    assert reference(folder / "model").config.rope_parameters["rope_theta"] == 100000.0


def rotation_survives_the_new_row_order(folder: Path) -> None:
    """Attention scores of interleaved rotary embedding on the GGUF's rows are those of half-split on the folder's."""
    values = make_gguf(folder / "tiny.gguf")
    dequantise.dequantise(folder / "tiny.gguf", folder / "model")
    model = llama.load(folder / "model", "cpu", torch.float32)
    x = torch.randn(1, 9, 96, generator=torch.Generator().manual_seed(2))
    cos, sin = llama.rotary(torch.arange(9)[None], model.shape)
    scores = []
    for interleaved in (True, False):
        turned = []
        for kind, heads in (("q", 6), ("k", 2)):
            if interleaved:
                flat = llama.heads_of(linear(x, torch.from_numpy(values[f"blk.1.attn_{kind}"])), heads)
                turned.append(_interleaved(flat, cos[..., :8], sin[..., :8]))
            else:
                rows = model.weights[f"model.layers.1.self_attn.{kind}_proj.weight"]
                turned.append(llama.rotate(llama.heads_of(linear(x, rows), heads), cos, sin))
        q, k = turned
        scores.append(q @ k.repeat_interleave(3, dim=1).transpose(-1, -2))
    torch.testing.assert_close(scores[0], scores[1], atol=1e-3, rtol=1e-4)


def _interleaved(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)


def an_unknown_model_is_refused(folder: Path) -> None:
    """Another architecture, tokenizer or tensor is an error with a remedy, and leaves no folder."""
    writer = gguf.GGUFWriter(folder / "other.gguf", "gpt2")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    for attempt in (
        lambda: dequantise.dequantise(folder / "other.gguf", folder / "other"),
        lambda: dequantise.dequantise(folder / "missing.gguf", folder / "other"),
        lambda: dequantise.translated("blk.0.attn_q_norm.weight"),
    ):
        try:
            attempt()
        except UserError:
            continue
        raise AssertionError("accepted")
    assert not (folder / "other").exists()


def a_damaged_model_is_refused(folder: Path) -> None:
    """No GGUF, one that is cut off, one without a field, and a config without a size: errors with a remedy."""
    make_gguf(folder / "whole.gguf")
    whole = (folder / "whole.gguf").read_bytes()
    damaged = {"empty": b"", "short": b"GG", "text": b"no model at all" * 99, "cut": whole[:-5000]}
    damaged["field"] = whole.replace(b"llama.block_count", b"llama.block_COUNT")
    for name, content in damaged.items():
        (folder / name).write_bytes(content)
        assert name in refusal(dequantise.dequantise, folder / name, folder / "out")
    assert not (folder / "out").exists()
    assert "hidden_size" in refusal(llama.Shape.of, {k: v for k, v in CONFIG.items() if k != "hidden_size"})
