"""The draft: what a verify step accepts of it, its training from beginning to server, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import linear

from harness.errors import UserError
from pairs import accept, answers, draft, llama, train
from pairs.accept import Accepted
from pairs.answers import Answer
from pairs.draft import Draft
from pairs.files import write_json
from pairs.llama import Llama
from pairs.prompts import KINDS
from pairs.weights import read_weights, write_weights
from tests.sglang_cpu.pair_making import TINY, make_target, refusal, some_answers


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
