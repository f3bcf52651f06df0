"""How much of its KV a request of spec v2 may hand to the radix cache."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from patched_worker.off_step import synced_length


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
