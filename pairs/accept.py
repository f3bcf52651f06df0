"""How many tokens a verify step would accept, without a server: chains of a draft against the target's greedy answers.

Greedy verification accepts the longest prefix of the chain that the target would have said, and adds one token of its
own. What is accepted is thus always the recorded answer, and a chain matters only as long as it follows it: so every
possible chain of an answer is looked at in one pass that feeds the recorded tokens, and then the steps are walked.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pairs.answers import Answer
from pairs.draft import Draft, first_step, logits, next_step
from pairs.llama import Llama, forward
from pairs.prompts import KINDS

PAD = -1  # a place after the end of a row; no token


@dataclass(frozen=True, slots=True)
class Accepted:
    """Verify steps of some answers.

    Attributes:
        tokens: that the steps gave; the first token of an answer comes from the prefill and is none of them.
        by_place: of the steps, how many accepted at least the first, second, ... proposal.
    """

    tokens: int
    steps: int
    by_place: tuple[int, ...]

    @property
    def length(self) -> float:
        """Tokens per verify step: 1 where nothing is accepted."""
        return self.tokens / self.steps if self.steps else float("nan")


def padded(answers: list[Answer], device: str) -> Tensor:
    """The answers as one [rows, tokens] tensor, filled up with PAD."""
    out = torch.full((len(answers), max(len(answer.tokens) for answer in answers)), PAD, dtype=torch.long)
    for row, answer in enumerate(answers):
        out[row, : len(answer.tokens)] = torch.from_numpy(answer.tokens.astype(np.int64))
    return out.to(device)


def ahead(tokens: Tensor, places: int) -> Tensor:
    """The token `places` after each one, PAD beyond the end."""
    return torch.nn.functional.pad(tokens[:, places:], (0, min(places, tokens.shape[1])), value=PAD)


def embedded(model: Llama, tokens: Tensor) -> Tensor:
    """Embeddings; those of PAD are of no consequence, but must exist."""
    return model.embedding[tokens.clamp(min=0)]


def matches(draft: Draft, target: Llama, tokens: Tensor, chain: int) -> Tensor:
    """[chain, rows, tokens]: whether a chain from row s proposes the recorded token in each place.

    Args:
        tokens: as `padded` gives them.
        chain: proposals per step.
    """
    vocabulary = draft.vocabulary.to(tokens.device)
    with torch.inference_mode():
        aux = forward(target, tokens.clamp(min=0)).aux.to(draft.weights["fc.weight"].dtype)
        step = first_step(draft, aux, embedded(target, ahead(tokens, 1)).to(aux.dtype))
        found = []
        for place in range(chain):
            if place:
                step = next_step(draft, step, embedded(target, ahead(tokens, 1 + place)).to(aux.dtype))
            proposed = vocabulary[logits(draft, step).argmax(-1)]
            found.append(proposed == ahead(tokens, 2 + place))
    return torch.stack(found)


def walk(found: NDArray[np.bool_], answer: Answer) -> Accepted:
    """The verify steps of one answer.

    Args:
        found: [chain, tokens], the answer's row of `matches`.
    """
    last = len(answer.tokens) - 1
    runs = np.cumprod(found, axis=0).astype(np.int64)
    at, steps, by_place = answer.prompt_tokens, 0, np.zeros(len(found), np.int64)
    while at < last:  # `at` is the last token known; the chain starts from the row before it
        by_place += runs[:, at - 1]
        at += 1 + int(runs[:, at - 1].sum())
        steps += 1
    return Accepted(last - answer.prompt_tokens, steps, tuple(int(count) for count in by_place))


def total(parts: Iterable[Accepted]) -> Accepted:
    """All steps together."""
    listed = list(parts)
    by_place = tuple(map(sum, zip(*(part.by_place for part in listed), strict=True)))
    return Accepted(sum(part.tokens for part in listed), sum(part.steps for part in listed), by_place)


def by_answer(draft: Draft, target: Llama, answers: list[Answer], chain: int, batch: int) -> list[Accepted]:
    """The verify steps of each answer, in order."""
    out = []
    for first in range(0, len(answers), batch):
        group = answers[first : first + batch]
        found = matches(draft, target, padded(group, str(target.embedding.device)), chain).cpu().numpy()
        out += [walk(found[:, row, : len(answer.tokens)], answer) for row, answer in enumerate(group)]
    return out


def by_kind(answers: list[Answer], accepted: list[Accepted]) -> dict[str, Accepted]:
    """Totals of each kind, and of all."""
    pairs = list(zip(answers, accepted, strict=True))
    kinds = {kind: [found for answer, found in pairs if answer.kind == kind] for kind in KINDS}
    return {kind: total(found) for kind, found in kinds.items() if found} | {"all": total(accepted)}
