"""How the leading tensor-parallel rank's plan reaches the others: a broadcast of a few whole numbers.

The ranks of one server see the same batches, so they count the same decode steps; all of them call this at the same
step. The group is SGLang's CPU group (gloo): nothing touches the GPU or its streams.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Exchange = Callable[[list[int]], list[int]]


def broadcaster(group: Any) -> Exchange:
    """An exchange over a torch.distributed CPU group; its rank 0 leads.

    Args:
        group: SGLang's `tp_cpu_group`.
    """
    import torch
    import torch.distributed

    source = torch.distributed.get_global_rank(group, 0)

    def exchange(numbers: list[int]) -> list[int]:
        told = torch.tensor(numbers, dtype=torch.int64)
        torch.distributed.broadcast(told, src=source, group=group)
        received: list[int] = told.tolist()
        return received

    return exchange
