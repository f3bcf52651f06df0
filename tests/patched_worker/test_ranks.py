"""The exchange between ranks, over a stand-in for torch.distributed; the real one runs in tests/sglang_cpu."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from patched_worker.ranks import broadcaster


class Tensor:
    """What the exchange needs of a tensor."""

    def __init__(self, numbers: list[int]) -> None:
        self.numbers = list(numbers)

    def tolist(self) -> list[int]:
        return self.numbers


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A torch whose broadcast brings 7, 8, 9."""
    made: list[dict[str, Any]] = []

    def broadcast(tensor: Tensor, **told: Any) -> None:
        made.append(told | {"sent": list(tensor.numbers)})
        tensor.numbers = [7, 8, 9]

    torch: Any = ModuleType("torch")
    torch.int64 = "int64"
    torch.tensor = lambda numbers, dtype: Tensor(numbers)
    distributed: Any = ModuleType("torch.distributed")
    distributed.broadcast, distributed.get_global_rank = broadcast, lambda group, rank: group.ranks[rank]
    torch.distributed = distributed
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed)
    return made


def test_the_groups_first_rank_leads(calls: list[dict[str, Any]]) -> None:
    """Its global number is asked for: a group of one server may begin at rank 4."""
    group = SimpleNamespace(ranks=[4, 5])

    assert broadcaster(group)([1, 2, 3]) == [7, 8, 9]
    assert calls == [{"src": 4, "group": group, "sent": [1, 2, 3]}]
