"""What must hold for `pairs`, checked where PyTorch is: run by test_pairs.py inside the environment of a release.

One process runs all checks it is asked for, as importing PyTorch takes longer than most of them, and writes what became
of each to FOLDER/outcome.json: null, or the traceback.

    python -m tests.sglang_cpu.pair_checks FOLDER CHECK...
"""

from __future__ import annotations

import json
import random
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file
from tokenizers import Tokenizer
from torch.nn.functional import linear
from transformers import LlamaConfig, LlamaForCausalLM

from harness.errors import UserError
from pairs import accept, answers, dequantise, draft, llama, pad, train
from pairs.accept import Accepted
from pairs.answers import Answer
from pairs.draft import Draft
from pairs.files import copy_tokenizer, write_json
from pairs.llama import Llama
from pairs.pad import Size
from pairs.prompts import KINDS
from pairs.train import Settings
from pairs.weights import read_weights, write_weights
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


def one_at_a_time(made: Draft, target: Llama, answer: Answer, chain: int) -> Accepted:
    """Speculative decoding as a server does it: step by step, on own proposals, verified by the target."""
    known = answer.tokens[: answer.prompt_tokens + 1].tolist()
    last, steps, by_place = len(answer.tokens), 0, [0] * chain
    while len(known) < last:
        proposals = _chain(made, target, known, chain)
        with torch.no_grad():
            final = llama.forward(target, torch.tensor([known + proposals])).final[0, len(known) - 1 :]
        said = linear(final, target.head).argmax(-1).tolist()
        right = next((at for at, (mine, its) in enumerate(zip(proposals, said, strict=False)) if mine != its), chain)
        right = min(right, last - len(known))  # nobody asked for what comes after the end
        by_place = [count + (place < right) for place, count in enumerate(by_place)]
        known += said[: right + 1]
        steps += 1
    return Accepted(last - answer.prompt_tokens - 1, steps, tuple(by_place))


def _chain(made: Draft, target: Llama, known: list[int], chain: int) -> list[int]:
    """A chain's proposals from the last known token, one row at a time."""
    tokens = torch.tensor([known])
    rows = len(known) - 1
    proposals: list[int] = []
    with torch.no_grad():
        step = draft.first_step(made, llama.forward(target, tokens).aux[:, :rows], target.embedding[tokens[:, 1:]])
        for _ in range(chain):
            proposals.append(int(made.vocabulary[draft.logits(made, step)[0, -1].argmax()]))
            embeds = torch.zeros(1, rows, target.shape.hidden)
            embeds[0, -1] = target.embedding[proposals[-1]]  # the other rows are other chains, and not looked at
            step = draft.next_step(made, step, embeds)
    return proposals


def acceptance_is_that_of_a_server(folder: Path) -> None:
    """The walk over one pass takes the steps that speculative decoding takes one at a time, place by place."""
    target = llama.load(make_target(folder / "target", stop=False), "cpu", torch.float32)
    trained = _trained(target, some_answers(target, 12, 30))
    asked = some_answers(target, 6, 30)
    fast = accept.by_answer(trained, target, asked, 3, 4)
    slow = [one_at_a_time(trained, target, answer, 3) for answer in asked]
    assert fast == slow
    assert sum(found.steps for found in fast) < 0.95 * sum(found.tokens for found in fast), "nothing was accepted"


def _trained(target: Llama, known: list[Answer], steps: int = 60) -> Draft:
    begun = draft.start(target, train.vocabulary(known, target, 300))
    optimiser = torch.optim.AdamW(begun.weights.values(), lr=3e-3)
    order = train.batches(known, 6, 1)
    seen = train.watch(target)
    for _ in range(steps):
        group = next(order)
        value, _ = train.loss(begun, target, group, 3, seen(group))
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
    return replace(begun, weights={name: tensor.detach() for name, tensor in begun.weights.items()})


def training_goes_on_and_exports(folder: Path) -> None:
    """The loss falls, an interrupted training ends where an uninterrupted one does, the export proposes the same."""
    path = make_target(folder / "target")
    target = llama.load(path, "cpu", torch.float32)
    report = train.train(path, folder / "whole", TINY, "cpu")
    assert set(report["accept_len"]) == {*KINDS, "all"}
    assert all(1 <= length <= 1 + TINY.chain for length in report["accept_len"].values())

    _interrupted(path, folder / "parts", after=25)
    assert train.train(path, folder / "parts", TINY, "cpu") == report
    whole, parts = (read_weights(folder / name / "draft") for name in ("whole", "parts"))
    for name, tensor in whole.items():
        torch.testing.assert_close(parts[name], tensor, atol=0, rtol=0)

    known = answers.read(folder / "whole" / "answers" / "train")
    begun = draft.start(target, train.vocabulary(known, target, TINY.draft_vocab))
    loaded = draft.load(folder / "whole" / "draft", target, "cpu")
    with torch.no_grad():
        before, after = (
            float(train.loss(one, target, known[:20], 3, train.watch(target)(known[:20]))[0]) for one in (begun, loaded)
        )
    assert after < 0.8 * before, (before, after)
    assert torch.equal(loaded.vocabulary, begun.vocabulary)
    held_out = answers.read(folder / "whole" / "answers" / "held-out")
    found = accept.by_kind(held_out, accept.by_answer(loaded, target, held_out, TINY.chain, 4))
    assert {kind: round(one.length, 4) for kind, one in found.items()} == report["accept_len"]


def _interrupted(path: Path, out: Path, after: int) -> None:
    """A training that is killed after some steps, right after it saved."""
    steps, save_every = 0, train.SAVE_EVERY_S
    original = train._save

    def save(*given: Any) -> None:
        nonlocal steps
        original(*given)
        steps += 1
        if steps == after:
            raise KeyboardInterrupt

    train._save, train.SAVE_EVERY_S = save, -1.0
    try:
        train.train(path, out, TINY, "cpu")
    except KeyboardInterrupt:
        assert (out / "checkpoint.pt").exists()
        assert not (out / "draft").exists()
        return
    finally:
        train._save, train.SAVE_EVERY_S = original, save_every
    raise AssertionError("it was not interrupted")


def other_settings_are_refused(folder: Path) -> None:
    """A folder that holds the work of other settings is not taken for this one's."""
    path = make_target(folder / "target")
    small = replace(TINY, prompts=2, held_out=1, steps=1)
    train.train(path, folder / "out", small, "cpu")
    try:
        train.train(path, folder / "out", replace(small, steps=2), "cpu")
    except UserError:
        return
    raise AssertionError("accepted")


def another_target_is_refused(folder: Path) -> None:
    """Answers and checkpoint of one target are not taken for another's of the same shape; a copy goes on."""
    path = make_target(folder / "target")
    small = replace(TINY, prompts=2, held_out=1, steps=1)
    report = train.train(path, folder / "out", small, "cpu")
    path = path.rename(folder / "moved")
    assert train.train(path, folder / "out", small, "cpu") == report
    write_weights(path, {name: tensor * 1.01 for name, tensor in read_weights(path).items()})
    assert "another target" in refusal(train.train, path, folder / "out", small, "cpu")


WIDER = Size(hidden=160, layers=7, mlp=300, heads=16, kv_heads=4)  # groups of four hold groups of three


def padding_computes_the_same(folder: Path) -> None:
    """Greedy tokens, logits and proposals of the padded pair are those of the small one, in float32."""
    for tied in (True, False):
        base = folder / str(tied)
        small = llama.load(make_target(base / "target", tied, stop=False), "cpu", torch.float32)
        made = make_draft(small)
        draft.export(made, small, base / "target", base / "draft")
        pad.pad(base / "target", base / "draft", base / "padded", WIDER, "float32")
        large = llama.load(base / "padded" / "target", "cpu", torch.float32)
        asked = some_answers(small, 4, 40)
        prompts = [answer.tokens[: answer.prompt_tokens].tolist() for answer in asked]
        assert llama.greedy(large, prompts, 40) == [a.tokens[a.prompt_tokens :].tolist() for a in asked]
        tokens = some_tokens(2, 30)
        seen, wanted = llama.forward(large, tokens), llama.forward(small, tokens)
        torch.testing.assert_close(
            linear(seen.final, large.head), linear(wanted.final, small.head), atol=1e-4, rtol=1e-4
        )
        with torch.no_grad():
            theirs = reference(base / "padded" / "target")(tokens).logits
        torch.testing.assert_close(theirs, linear(wanted.final, small.head), atol=1e-4, rtol=1e-4)
        _same_proposals(base, small, large, made, tokens)
        _costs_the_same(base / "padded", tied)


def _same_proposals(base: Path, small: Llama, large: Llama, made: Draft, tokens: torch.Tensor) -> None:
    """Three draft steps of the padded draft, on the padded target's streams; d2t and captured layers are kept."""
    # The captured layers stand in the draft's config, not in the padded target's depth.
    config = json.loads((base / "padded" / "draft" / "config.json").read_text())
    captured = config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
    assert captured == list(llama.aux_layers(small.shape.layers))
    wide = draft.load(base / "padded" / "draft", large, "cpu")
    assert torch.equal(wide.vocabulary, made.vocabulary)
    with torch.no_grad():
        streams = reference(base / "padded" / "target")(tokens, output_hidden_states=True).hidden_states
        both = []
        for one, model, aux in (
            (made, small, llama.forward(small, tokens).aux),
            (wide, large, torch.cat([streams[layer + 1] for layer in captured], dim=-1)),
        ):
            step = draft.first_step(one, aux, accept.embedded(model, accept.ahead(tokens, 1)))
            scores = [draft.logits(one, step)]
            for place in (1, 2):
                step = draft.next_step(one, step, accept.embedded(model, accept.ahead(tokens, 1 + place)))
                scores.append(draft.logits(one, step))
            both.append(torch.stack(scores))
    torch.testing.assert_close(both[1], both[0], atol=1e-4, rtol=1e-4)
    assert torch.equal(both[1].argmax(-1), both[0].argmax(-1))


def _costs_the_same(padded: Path, tied: bool) -> None:
    """Zeros are only where something would be written to the stream."""
    for folder in ("target", "draft"):
        for name, tensor in read_weights(padded / folder).items():
            writes = ("o_proj", "down_proj", "embed_tokens", "fc.")
            if not any(part in name for part in (*writes, "d2t", "t2d")):
                assert (tensor != 0).all(), name
    assert ("lm_head.weight" in read_weights(padded / "target")) is not tied


def impossible_sizes_are_refused(folder: Path) -> None:
    """Smaller than the model, heads that cannot hold its groups, or a folder that exists."""
    path = make_target(folder / "target")
    target = llama.load(path, "cpu", torch.float32)
    draft.export(make_draft(target), target, path, folder / "draft")
    (folder / "taken").mkdir()
    fits = (folder / "out", WIDER)
    for out, size in (
        (fits[0], replace(WIDER, hidden=64)),
        (fits[0], replace(WIDER, heads=8)),
        (fits[0], replace(WIDER, heads=15)),
        (folder / "taken", WIDER),
    ):
        try:
            pad.pad(path, folder / "draft", out, size)
        except UserError:
            continue
        raise AssertionError(f"accepted {size} in {out}")
    assert not fits[0].exists()


def the_named_size_holds_smollm2(folder: Path) -> None:
    """The 8B size has Llama-3.1-8B's matrices and KV cache, and room for SmolLM2-135M."""
    smollm2 = {"hidden_size": 576, "num_hidden_layers": 30, "intermediate_size": 1536, "vocab_size": 49152}
    heads = {"num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "rope_theta": 100000.0}
    shape, size = llama.Shape.of(CONFIG | smollm2 | heads), pad.SIZES["llama-3.1-8b"]
    pad.check(shape, size)
    assert (size.hidden, size.mlp, size.layers) == (4096, 14336, 32)
    assert (size.heads * shape.head_dim, size.kv_heads * shape.head_dim) == (4096, 1024)
    assert len(set(pad.places(shape, size).queries.tolist())) == 576


def make_pair(folder: Path) -> None:
    """A trained tiny pair and what its draft would accept, for a server: folder/pair, folder/expected.json."""
    path = make_target(folder / "pair" / "target")
    target = llama.load(path, "cpu", torch.float32)
    target = replace(target, config=target.config | {"eos_token_id": None})  # the server will ignore it too
    trained = _trained(target, some_answers(target, 12, 40), 120)
    draft.export(trained, target, path, folder / "pair" / "draft")
    asked = some_answers(target, 8, 40)
    found = accept.by_answer(trained, target, asked, 3, 4)
    rows = [
        {
            "prompt": a.tokens[: a.prompt_tokens].tolist(),
            "answer": a.tokens[a.prompt_tokens :].tolist(),
            "steps": f.steps,
        }
        for a, f in zip(asked, found, strict=True)
    ]
    write_json(folder / "expected.json", rows)


def fails(folder: Path) -> None:
    """So that the way from here to the tests is seen to work."""
    raise AssertionError("this check always fails")


def main(folder: Path, names: list[str]) -> None:
    torch.set_num_threads(1)
    outcome: dict[str, str | None] = {}
    for name in names:
        (folder / name).mkdir()
        try:
            globals()[name](folder / name)
        except Exception:
            outcome[name] = traceback.format_exc()
        else:
            outcome[name] = None
    write_json(folder / "outcome.json", outcome)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
