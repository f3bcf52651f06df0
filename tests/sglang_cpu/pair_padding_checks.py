"""A padded pair computes the same as its base at another cost."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch
from torch.nn.functional import linear

from harness.errors import UserError
from pairs import accept, draft, llama, pad
from pairs.draft import Draft
from pairs.llama import Llama
from pairs.pad import Size
from pairs.weights import read_weights
from tests.sglang_cpu.pair_making import CONFIG, make_draft, make_target, reference, some_answers, some_tokens

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
