"""How often the draft's KV is brought up: what may be asked for, at start and live."""

from __future__ import annotations

import pytest

from patched_worker.draft_sync import SYNC_KEY, DraftSync
from patched_worker.settings import Refusal


class TritonAttnBackend:
    """In name only."""


class TRTLLMMLABackend:
    """In name only."""


@pytest.mark.parametrize(
    ("steps", "expected"), [(None, DraftSync(4, 1, 4)), (1, DraftSync(1, 1, 1)), (16, DraftSync(16, 1, 16))]
)
def test_ring_is_as_long_as_the_start_asks_for(steps: int | None, expected: DraftSync) -> None:
    """The number of draft tokens by default; live, any number up to that of the start."""
    assert DraftSync.of(steps, 4, TritonAttnBackend()) == expected


def test_an_attention_backend_that_was_not_tried_keeps_the_stock_extend() -> None:
    """It may assume as many positions for each request, so nothing else can be asked for, also live."""
    sync = DraftSync.of(None, 4, TRTLLMMLABackend())

    assert sync == DraftSync.of(4, 4, TRTLLMMLABackend()) == DraftSync(4, 4, 4)
    with pytest.raises(Refusal, match=r"=16 was tried with triton and fa3 .*TRTLLMMLABackend; use one of these, or"):
        DraftSync.of(16, 4, TRTLLMMLABackend())
    with pytest.raises(ValueError, match="not from 4 to 4"):
        sync.updated({SYNC_KEY: 1})


@pytest.mark.parametrize("value", [0, -1, 17, True, 4.0, "4", None])
def test_unfit_live_values_are_refused_with_the_remedy(value: object) -> None:
    """The ring is made once: more steps than it holds take another start."""
    with pytest.raises(ValueError, match=r"is not from 1 to 16; start the server with SPECPIVOT_DRAFT_SYNC_STEPS as"):
        DraftSync(16, 1, 16).updated({SYNC_KEY: value})


def test_an_update_without_it_changes_nothing() -> None:
    """Policies are set by the same call."""
    assert DraftSync(16, 1, 16).updated({"speculative_disable_batch_threshold": 4}) == 16
