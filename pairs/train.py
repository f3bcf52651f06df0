"""Trains an EAGLE-3 draft on a target's own answers, and says what it would have accepted.

    python -m pairs.train target --out trained        # minutes on an H200; writes trained/draft, trained/report.json

Three stages, each of which goes on where it was when the command is given again: greedy answers of the target to
prompts of five kinds; training over several draft steps, as a chain is served (EAGLE-3's training-time test), towards
the target's distribution over the draft's vocabulary; accept length on held-out prompts, by kind. Needs torch,
safetensors, numpy, msgspec and transformers, all of which SGLang brings. The last line on standard output is one JSON
document.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import kl_div, linear
from torch.nn.utils.rnn import pad_sequence

from pairs import accept, answers, draft, llama
from pairs.accept import Accepted, ahead, embedded, padded
from pairs.answers import Answer
from pairs.draft import Draft
from pairs.files import identity, run, same_settings, write_json
from pairs.llama import Llama, Pass

Watch = Callable[[list[Answer]], Pass]

LATER_STEP_WEIGHT = 0.8  # of each draft step against the one before it, as EAGLE-3 trains
WARMUP_SHARE, LAST_RATE_SHARE = 0.03, 0.05
BUCKET = 16  # batches whose answers are sorted by length, so that little is padding
SAVE_EVERY_S, SAY_EVERY_S = 60.0, 10.0
EVALUATION_BATCH = 16


@dataclass(frozen=True, slots=True)
class Settings:
    """What is trained, and on what.

    Attributes:
        prompts, held_out: per kind.
        answer_tokens: at most so many per answer.
        draft_vocab: the most frequent tokens of the answers that the draft may propose.
        steps, batch, rate: optimiser steps, answers in each, and its largest learning rate.
        draft_steps: length of the chain that is trained.
        chain: proposals per verify step in the report; SGLang's --speculative-num-steps.
    """

    prompts: int = 3000
    held_out: int = 40
    answer_tokens: int = 256
    draft_vocab: int = 8192
    steps: int = 6000
    batch: int = 32
    rate: float = 1e-3
    draft_steps: int = 4
    chain: int = 3
    seed: int = 1


def train(target_folder: Path, out: Path, settings: Settings, device: str) -> dict[str, Any]:
    """All stages.

    Raises:
        UserError: `out` holds the work of other settings or of another target.
    """
    same_settings(out, {**asdict(settings), "target": identity(target_folder)})
    target = llama.load(target_folder, device, torch.bfloat16 if device == "cuda" else torch.float32)
    known, held_out = _answers(target, target_folder, out, settings, device)
    begun = draft.start(target, vocabulary(known, target, settings.draft_vocab))
    trained = _fit(begun, target, known, out / "checkpoint.pt", settings)
    found = accept.by_answer(trained, _in_float32(target), held_out, settings.chain, EVALUATION_BATCH)
    if not (out / "draft").exists():
        draft.export(trained, target, target_folder, out / "draft")
    report = _report(accept.by_kind(held_out, found), known, trained, settings)
    write_json(out / "report.json", report)
    return report


def _in_float32(target: Llama) -> Llama:
    """The target in float32, as the draft is evaluated."""
    return replace(target, weights={name: tensor.float() for name, tensor in target.weights.items()})


def vocabulary(known: list[Answer], target: Llama, size: int) -> Tensor:
    """The target ids that the answers hold most often, ascending; filled up with the first ids."""
    counts = Counter(int(token) for answer in known for token in answer.tokens[answer.prompt_tokens :])
    size = min(size, target.shape.vocab)
    chosen = [token for token, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:size]]
    unused = (token for token in range(target.shape.vocab) if token not in counts)
    chosen += islice(unused, size - len(chosen))
    return torch.tensor(sorted(chosen))


def batches(known: list[Answer], size: int, seed: int) -> Iterator[list[Answer]]:
    """Batches without end, in a new seeded order each time round; of similar length inside a bucket."""
    turn = 0
    while True:
        draw = random.Random(f"{seed}/{turn}")
        order = draw.sample(known, len(known))
        made = []
        for first in range(0, len(order), size * BUCKET):
            bucket = sorted(order[first : first + size * BUCKET], key=lambda answer: len(answer.tokens))
            made += [bucket[at : at + size] for at in range(0, len(bucket), size)]
        yield from draw.sample(made, len(made))
        turn += 1


def watch(target: Llama) -> Watch:
    """What the target computes for a batch: anew each time on a GPU, from memory on a CPU, where it costs the most."""
    if target.embedding.device.type != "cpu":
        return lambda group: _pass(target, group)
    known: dict[int, Pass] = {}

    def remembered(group: list[Answer]) -> Pass:
        for answer in group:
            if id(answer) not in known:
                known[id(answer)] = _pass(target, [answer])
        found = [known[id(answer)] for answer in group]
        final, aux = ([getattr(one, name)[0] for one in found] for name in ("final", "aux"))
        return Pass(pad_sequence(final, True), pad_sequence(aux, True))

    return remembered


def _pass(target: Llama, group: list[Answer]) -> Pass:
    with torch.no_grad():
        return llama.forward(target, padded(group, str(target.embedding.device)).clamp(min=0))


def loss(begun: Draft, target: Llama, group: list[Answer], draft_steps: int, seen: Pass) -> tuple[Tensor, list[float]]:
    """Divergence from the target's distribution, and per draft step the share of rows whose best token is right.

    Only rows whose wanted token the target itself said and the draft can say are counted.

    Args:
        seen: what the target computes for the group, see `watch`.
    """
    tokens = padded(group, str(target.embedding.device))
    kind = target.embedding.dtype
    moved = replace(begun, weights={name: tensor.to(kind) for name, tensor in begun.weights.items()})
    to_draft = torch.full((target.shape.vocab,), accept.PAD, device=tokens.device)
    ids = begun.vocabulary.to(tokens.device)
    to_draft[ids] = torch.arange(len(ids), device=tokens.device)
    places = torch.arange(tokens.shape[1], device=tokens.device)
    said = places[None] >= torch.tensor([a.prompt_tokens - 1 for a in group], device=tokens.device)[:, None]
    step = draft.first_step(moved, seen.aux, embedded(target, ahead(tokens, 1)))
    losses, right = [], []
    for number in range(draft_steps):
        if number:
            step = draft.next_step(moved, step, embedded(target, ahead(tokens, 1 + number)))
        wanted = ahead(tokens, 2 + number)
        wanted = torch.where(wanted >= 0, to_draft[wanted.clamp(min=0)], accept.PAD)
        counted = said & (wanted >= 0)
        teacher = _later(seen.final, 1 + number)[counted]
        with torch.no_grad():
            goal = linear(teacher, target.head[ids]).float().log_softmax(-1)
        scores = draft.logits(moved, replace(step, hidden=step.hidden[counted])).float()
        apart = kl_div(scores.log_softmax(-1), goal, reduction="none", log_target=True).sum(-1).mean()
        losses.append(apart * LATER_STEP_WEIGHT**number)
        right.append(float((scores.argmax(-1) == wanted[counted]).float().mean()))
    weight = sum(LATER_STEP_WEIGHT**number for number in range(draft_steps))
    return torch.stack(losses).sum() / weight, right


def _later(x: Tensor, places: int) -> Tensor:
    """Rows `places` further on; what is beyond the end is never counted."""
    return torch.cat([x[:, places:], x[:, :places]], dim=1)


def _answers(
    target: Llama, folder: Path, out: Path, settings: Settings, device: str
) -> tuple[list[Answer], list[Answer]]:
    found = []
    sets = answers.texts(settings.prompts, settings.held_out, settings.seed)
    for name, by_kind in zip(("train", "held-out"), sets, strict=True):
        wanted = answers.requests(folder, by_kind, f"{settings.seed}/{name}")
        place = out / "answers" / name
        answers.collect(target, wanted, place, settings.answer_tokens, 1024 if device == "cuda" else 32)
        found.append([answer for answer in answers.read(place) if len(answer.tokens) > answer.prompt_tokens + 2])
    return found[0], found[1]


def _fit(begun: Draft, target: Llama, known: list[Answer], checkpoint: Path, settings: Settings) -> Draft:
    """Train, or go on training."""
    weights = list(begun.weights.values())
    optimiser = torch.optim.AdamW(weights, lr=settings.rate, betas=(0.9, 0.95), weight_decay=0.0)
    done = _restore(checkpoint, begun, optimiser)
    order = islice(batches(known, settings.batch, settings.seed), done, None)
    seen = watch(target)
    started = said = saved = time.monotonic()
    for number in range(done, settings.steps):
        for parameters in optimiser.param_groups:
            parameters["lr"] = settings.rate * rate_share(number / settings.steps)
        group = next(order)
        value, right = loss(begun, target, group, settings.draft_steps, seen(group))
        optimiser.zero_grad(set_to_none=True)
        value.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimiser.step()
        now = time.monotonic()
        if now - said > SAY_EVERY_S or number + 1 == settings.steps:
            left_s = (now - started) / (number + 1 - done) * (settings.steps - number - 1)
            shares = " ".join(f"{share:.2f}" for share in right)
            line = f"step {number + 1} of {settings.steps}: loss {float(value.detach()):.3f}, right {shares}"
            print(f"{line}, about {left_s:.0f} s left", file=sys.stderr, flush=True)
            said = now
        if now - saved > SAVE_EVERY_S or number + 1 == settings.steps:
            _save(checkpoint, begun, optimiser, number + 1)
            saved = now
    return replace(begun, weights={name: tensor.detach() for name, tensor in begun.weights.items()})


def rate_share(progress: float) -> float:
    """Learning rate as a share of the largest: up in a line, then down along a cosine."""
    if progress < WARMUP_SHARE:
        return (progress + 0.001) / (WARMUP_SHARE + 0.001)
    fall = (progress - WARMUP_SHARE) / (1 - WARMUP_SHARE)
    return LAST_RATE_SHARE + (1 - LAST_RATE_SHARE) * 0.5 * (1 + math.cos(math.pi * fall))


def _save(file: Path, begun: Draft, optimiser: torch.optim.Optimizer, steps: int) -> None:
    partial = file.with_suffix(".partial")
    torch.save({"steps": steps, "weights": begun.weights, "optimiser": optimiser.state_dict()}, partial)
    partial.rename(file)


def _restore(file: Path, begun: Draft, optimiser: torch.optim.Optimizer) -> int:
    """Steps done so far; the draft and the optimiser are as they were then."""
    if not file.exists():
        return 0
    stored = torch.load(file, map_location=begun.weights["fc.weight"].device, weights_only=True)
    with torch.no_grad():
        for name, tensor in begun.weights.items():
            tensor.copy_(stored["weights"][name])
    optimiser.load_state_dict(stored["optimiser"])
    return int(stored["steps"])


def _report(kinds: dict[str, Accepted], known: list[Answer], trained: Draft, settings: Settings) -> dict[str, Any]:
    said = Counter(int(token) for answer in known for token in answer.tokens[answer.prompt_tokens :])
    ids = set(trained.vocabulary.tolist())
    return {
        "accept_len": {kind: round(found.length, 4) for kind, found in kinds.items()},
        "accepted_by_place": {k: [round(n / f.steps, 4) for n in f.by_place] for k, f in kinds.items()},
        "verify_steps": {kind: found.steps for kind, found in kinds.items()},
        "training_answers": len(known),
        "training_tokens": sum(said.values()),
        "vocabulary_covers": round(sum(n for token, n in said.items() if token in ids) / max(1, sum(said.values())), 4),
        "settings": asdict(settings),
    }


def main(arguments: list[str] | None = None) -> None:
    defaults = Settings()
    parser = argparse.ArgumentParser(prog="python -m pairs.train", description="Trains an EAGLE-3 draft.")
    parser.add_argument("target", type=Path, help="the target's folder")
    parser.add_argument("--out", type=Path, required=True, help="folder for answers, checkpoint, draft and report")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    for name, value in asdict(defaults).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    given = vars(parser.parse_args(arguments))
    target, out, device = (given.pop(name) for name in ("target", "out", "device"))
    print(json.dumps(train(target, out, Settings(**given), device)))


if __name__ == "__main__":
    run(main)
