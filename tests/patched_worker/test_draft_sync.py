"""How often the draft's KV is brought up: what may be asked for, at start and live."""

from __future__ import annotations

import pytest

from patched_worker.draft_sync import SYNC_KEY, DraftSync
from patched_worker.settings import Refusal


class TritonAttnBackend:
    """In name only."""


class TRTLLMMLABackend:
    """In name only."""


class FlashAttentionBackend:
    """In name, and in the kernels that it calls."""

    def __init__(self, fa_impl_ver: int) -> None:
        self.fa_impl_ver = fa_impl_ver


@pytest.mark.parametrize(
    ("steps", "expected"), [(None, DraftSync(4, 1, 4)), (1, DraftSync(1, 1, 1)), (16, DraftSync(16, 1, 16))]
)
def test_ring_is_as_long_as_the_start_asks_for(steps: int | None, expected: DraftSync) -> None:
    """The number of draft tokens by default; live, any number up to that of the start."""
    assert DraftSync.of(steps, 4, TritonAttnBackend()) == expected


@pytest.mark.parametrize(
    ("backend", "name"),
    [(TRTLLMMLABackend(), "TRTLLMMLABackend"), (FlashAttentionBackend(4), "FlashAttentionBackend of fa4")],
)
def test_an_attention_backend_that_was_not_read_keeps_the_stock_extend(backend: object, name: str) -> None:
    """It may assume as many positions for each request, so nothing else can be asked for, also live."""
    sync = DraftSync.of(None, 4, backend)

    assert sync == DraftSync.of(4, 4, backend) == DraftSync(4, 4, 4)
    with pytest.raises(Refusal, match=f"=16 takes triton or fa3 attention, not {name}; use one of these, or"):
        DraftSync.of(16, 4, backend)
    with pytest.raises(ValueError, match="not from 4 to 4"):
        sync.updated({SYNC_KEY: 1})


def test_fa3_takes_other_steps() -> None:
    """Its class is fa4's too, told apart by the version of the kernels."""
    assert DraftSync.of(16, 4, FlashAttentionBackend(3)) == DraftSync(16, 1, 16)


@pytest.mark.parametrize("value", [0, -1, 17, True, 4.0, "4", None])
def test_unfit_live_values_are_refused_with_the_remedy(value: object) -> None:
    """The ring is made once: more steps than it holds take another start."""
    with pytest.raises(ValueError, match=r"is not from 1 to 16; start the server with SPECPIVOT_DRAFT_SYNC_STEPS as"):
        DraftSync(16, 1, 16).updated({SYNC_KEY: value})


def test_an_update_without_it_changes_nothing() -> None:
    """Policies are set by the same call."""
    assert DraftSync(16, 1, 16).updated({"speculative_disable_batch_threshold": 4}) == 16
