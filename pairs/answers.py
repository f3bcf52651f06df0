"""The target's own greedy answers to prompts of every kind: what a draft must foresee.

Prompts are as a sweep sends them, salted and under the chat template. Answers are written batch by batch, so that an
interrupted collection goes on where it was.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from harness.datasets import Sample, salted, templated_ids, tokenizer_of
from pairs.llama import Llama, greedy
from pairs.prompts import KINDS, Kind, prompts

Ids = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Answer:
    """One request as it was served.

    Attributes:
        tokens: the prompt's, then the answer's with its stop token.
        prompt_tokens: how many of them are the prompt's.
    """

    kind: Kind
    tokens: Ids
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt ready for the model."""

    kind: Kind
    ids: list[int]


def texts(per_kind: int, held_out: int, seed: int) -> tuple[dict[Kind, list[str]], dict[Kind, list[str]]]:
    """Prompts to train on and prompts to test on; none is among both."""
    train = {kind: prompts(kind, per_kind, seed) for kind in KINDS}
    test = {kind: prompts(kind, held_out, seed + 1, frozenset(train[kind])) for kind in KINDS}
    return train, test


def requests(tokenizer_folder: Path, by_kind: dict[Kind, list[str]], salt: str) -> list[Request]:
    """Requests of all kinds in turn, as many of each."""
    tokenizer = tokenizer_of(str(tokenizer_folder))
    made = []
    for kind, listed in by_kind.items():
        samples = [Sample(({"role": "user", "content": text},)) for text in listed]
        ids = (templated_ids(sample, tokenizer) for sample in salted(samples, f"{salt}/{kind}"))
        made.append([Request(kind, one) for one in islice(ids, len(listed))])
    return [request for turn in zip(*made, strict=True) for request in turn]


def collect(model: Llama, wanted: list[Request], folder: Path, max_tokens: int, batch: int) -> None:
    """Answer all requests into the folder, one file per batch; files that are there already stay.

    Args:
        max_tokens: at most so many per answer.
        batch: requests at a time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    started, asked = time.monotonic(), 0
    for first in range(0, len(wanted), batch):
        file = folder / f"{first:07}.npz"
        if file.exists():
            continue
        group = wanted[first : first + batch]
        answers = greedy(model, [request.ids for request in group], max_tokens)
        _write(
            file,
            [Answer(r.kind, np.array(r.ids + a, np.int32), len(r.ids)) for r, a in zip(group, answers, strict=True)],
        )
        asked += len(group)
        done = first + len(group)
        left_s = (time.monotonic() - started) / asked * (len(wanted) - done)
        print(f"answers: {done} of {len(wanted)}, about {left_s:.0f} s left", file=sys.stderr)


def read(folder: Path) -> list[Answer]:
    """Every answer of a folder, in the order of its requests."""
    return [answer for file in sorted(folder.glob("*.npz")) for answer in _read(file)]


def _write(file: Path, answers: list[Answer]) -> None:
    partial = file.with_suffix(".partial")
    with partial.open("wb") as out:
        np.savez_compressed(
            out,
            tokens=np.concatenate([answer.tokens for answer in answers]),
            lengths=np.array([len(answer.tokens) for answer in answers], np.int32),
            prompt_tokens=np.array([answer.prompt_tokens for answer in answers], np.int32),
            kinds=np.array([KINDS.index(answer.kind) for answer in answers], np.int32),
        )
    partial.rename(file)


def _read(file: Path) -> Iterator[Answer]:
    with np.load(file) as stored:
        rows = np.split(stored["tokens"], np.cumsum(stored["lengths"])[:-1])
        for tokens, prompt_tokens, kind in zip(rows, stored["prompt_tokens"], stored["kinds"], strict=True):
            yield Answer(KINDS[int(kind)], tokens, int(prompt_tokens))
