"""How much KV a request of spec v2 may hand to the radix cache, and what an off step reads before it publishes."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from patched_worker.catch_up import Window
from patched_worker.draft_sync import DraftSync
from patched_worker.off_step import OffStep, synced_length


@pytest.mark.parametrize(
    ("row", "length", "protected", "kept"),
    [
        (None, 20, 5, 20),
        (0, 20, 5, 17),
        (1, 20, 5, 20),
        (0, 20, 18, 19),
        (0, 20, 19, 20),
        (0, 20, 20, 20),
    ],
    ids=["no row", "three pending", "none pending", "into the tree", "its last", "all the tree's"],
)
def test_shared_prefix_ends_where_draft_kv_is_written(row: int | None, length: int, protected: int, kept: int) -> None:
    """Pending positions are kept back, but never a position that the tree owns, nor the one after, which it frees."""
    pending: Any = SimpleNamespace(counts=[3, 0])

    assert synced_length(pending, row, length, protected) == kept


class Tensor(np.ndarray[Any, Any]):
    """As much of a torch tensor as an off step uses between its start and its forward."""

    device = "cpu"

    def to(self, *args: object, **kwargs: object) -> Tensor:
        return self

    def unsqueeze(self, axis: int) -> Tensor:
        return self[:, None]


def tensor(*values: int) -> Tensor:
    return np.array(values).view(Tensor)


def places(start: Tensor, wide: Tensor, total: int) -> tuple[Tensor, Tensor]:
    """As `Pending.places`, without torch."""
    pairs = [(i, int(start[i]) + offset) for i, width in enumerate(wide) for offset in range(width)]
    assert len(pairs) == total
    return tensor(*(i for i, _ in pairs)), tensor(*(position for _, position in pairs))


class RequestRows:
    """`req_to_token`, noting when it is read."""

    def __init__(self, seen: list[str]) -> None:
        self._seen = seen
        self._slots = np.arange(100).reshape(2, 50).view(Tensor)

    def __len__(self) -> int:
        return len(self._slots)

    def __getitem__(self, key: Any) -> Any:
        self._seen.append("slots looked up")
        return self._slots[key]


class RecordedStep(OffStep):
    """An off step of two requests that writes down the order of what it does."""

    batch_fields = ("seq_lens",)
    runner_attribute = "graph_runner"

    def __init__(self, pending: list[int], sync: DraftSync, chunk_tokens: int | None = None) -> None:
        self.seen: list[str] = []
        self.caught_up: list[int] = []
        self.stock: bool | None = None
        self._req_to_token: Any = RequestRows(self.seen)
        sampled = SimpleNamespace(logits_output=SimpleNamespace(next_token_logprobs=None, hidden_states=None))
        self._sampled: Any = sampled
        self.worker: Any = SimpleNamespace(speculative_num_draft_tokens=2)
        self.target: Any = SimpleNamespace(sample=lambda logits, batch: tensor(7, 8))
        self.sync = sync
        self._chunk_tokens = chunk_tokens
        self.pending: Any = SimpleNamespace(
            of=lambda rows: pending,
            numbers=lambda values: tensor(*values),
            places=places,
            cells=lambda rows, positions: None,
            add=lambda *args: None,
        )

    def host_rows(self, batch: Any) -> list[int]:
        return [0, 1]

    def lengths_known(self, new_seq_lens: Any, publish: Any) -> None:
        self.seen.append("published")

    def plain_forward(self, batch: Any) -> tuple[Any, Any]:
        self.seen.append("forward")
        return self._sampled, None

    def _plain_decode(self) -> Any:
        return nullcontext()

    def _catch_up(self, batch: Any, draft_input: Any, window: Window) -> None:
        self.seen.append("catch-up")
        self.caught_up, self.stock = window.slots.tolist(), window.stock

    def next_input(self, *args: Any) -> None: ...
    def result(self, *args: Any) -> None: ...
    def empty_input(self, like: Any) -> None: ...
    def before_catch_up(self) -> None: ...
    def ragged_forward(self, *args: Any) -> Any: ...
    def draft_tp_context(self) -> Any: ...
    def last_tokens(self, draft_input: Any) -> Tensor:
        return tensor(5, 6)


@pytest.fixture
def batch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Two requests of 10 and 20 tokens; torch and SGLang are there in name only."""
    torch, info = ModuleType("torch"), ModuleType("sglang.srt.model_executor.forward_batch_info")
    torch.int64 = np.int64
    info.ForwardMode = SimpleNamespace(DECODE="decode")
    for module in (torch, info):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return SimpleNamespace(
        spec_info=None,
        seq_lens=tensor(10, 20),
        seq_lens_cpu=None,
        req_pool_indices=tensor(0, 1),
        return_logprob=False,
    )


STOCK, LONG = DraftSync(2, 1, 2), DraftSync(4, 1, 4)  # two draft tokens


@pytest.mark.parametrize(
    ("pending", "sync", "written", "stock"),
    [
        ([0, 0], STOCK, [], None),
        ([1, 1], STOCK, [9, 10, 69, 70], True),
        ([0, 1], STOCK, [10, 11, 69, 70], True),
        ([2, 2], LONG, [], None),
        ([3, 3], LONG, [7, 8, 9, 10, 67, 68, 69, 70], False),
        ([0, 3], LONG, [10, 67, 68, 69, 70], False),
        ([1, 3], DraftSync(2, 1, 4), [9, 10, 67, 68, 69, 70], False),
        ([0, 0], DraftSync(1, 1, 4), [10, 70], False),
    ],
    ids=["waits", "full", "one joined", "waits longer", "longer", "longer, one joined", "just shortened", "every step"],
)
def test_no_slot_is_looked_up_after_lengths_are_published(
    batch: Any, pending: list[int], sync: DraftSync, written: list[int], stock: bool | None
) -> None:
    """From then on a scheduler may rewrite the row of a request that has ended: all slots are known by then.

    With SGLang's own width a catch-up may write padding behind the last position; with any other it must not.
    """
    step = RecordedStep(pending, sync)

    step.run(batch, None)

    published = step.seen.index("published")
    assert "slots looked up" in step.seen[:published]
    assert step.seen[published + 1 :] == ["forward", *(["catch-up"] if written else [])]
    assert (step.caught_up, step.stock) == (written, stock)


@pytest.mark.parametrize(
    ("pending", "chunk_tokens", "written"),
    [
        ([4, 4], 12, []),
        ([5, 5], 12, [5, 6, 7, 8, 9, 10, 65, 66, 67, 68, 69, 70]),
        ([0, 5], 12, [10, 65, 66, 67, 68, 69, 70]),
        ([0, 0], 2, []),
        ([1, 1], 2, [9, 10, 69, 70]),
        ([6, 6], -1, []),
        ([6, 6], None, []),
    ],
    ids=["fits", "full", "full, one joined", "as upstream", "small chunk", "no chunks", "no chunks either"],
)
def test_a_catch_up_stays_within_the_chunk_of_a_prefill(
    batch: Any, pending: list[int], chunk_tokens: int | None, written: list[int]
) -> None:
    """It comes early where more would not fit, though never before as many steps as there are draft tokens."""
    step = RecordedStep(pending, DraftSync(8, 1, 8), chunk_tokens)

    step.run(batch, None)

    assert step.caught_up == written


def test_a_small_chunk_leaves_the_default_alone(batch: Any) -> None:
    """As many steps as draft tokens compute what SGLang's own draft-extend does."""
    step = RecordedStep([0, 0], STOCK, 1)

    step.run(batch, None)

    assert step.caught_up == []


@pytest.mark.parametrize(("pending", "written"), [([0, 0], []), ([3, 1], [7, 8, 9, 69]), ([0, 3], [10, 67, 68, 69])])
def test_speculation_resumes_after_a_catch_up(batch: Any, pending: list[int], written: list[int]) -> None:
    """What is pending is written first; a request with nothing pending gets one row where its verify writes next."""
    step = RecordedStep(pending, LONG)

    assert step.before_on_step(batch) == bool(written)
    assert step.caught_up == written
