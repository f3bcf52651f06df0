"""How many tokens a speculative step brings."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.sim.acceptance import Acceptance, AcceptanceKind

KINDS: tuple[AcceptanceKind, ...] = ("request", "batch")


@given(st.sampled_from(KINDS), st.integers(1, 8), st.floats(0, 1))
def test_mean_is_exact(kind: AcceptanceKind, drafts: int, share: float) -> None:
    """The law over 1 to drafts + 1 tokens is a distribution with just the given mean."""
    mean_len = 1 + share * drafts
    chances = Acceptance(mean_len, drafts, kind).probabilities(drafts)
    assert len(chances) == drafts + 1
    assert chances.min() >= -1e-12
    assert chances.sum() == pytest.approx(1)
    assert float(chances @ np.arange(1, drafts + 2)) == pytest.approx(mean_len, abs=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_fewer_drafts_bring_fewer_tokens(kind: AcceptanceKind) -> None:
    """The same draft model with fewer steps accepts less, and with none exactly the target's own token."""
    acceptance = Acceptance(2.8, 3, kind)
    means = [acceptance.mean_at(drafts) for drafts in range(5)]
    assert means[0] == 1
    assert means[3] == pytest.approx(2.8)
    assert means[:4] == sorted(means[:4])
    assert means[1] <= 2 <= means[3]


def test_impossible_mean_is_refused() -> None:
    """Three drafts cannot bring five tokens."""
    with pytest.raises(ValueError, match="give 1 to 4"):
        Acceptance(5.0, 3)
