"""Where the next replicas go."""

from __future__ import annotations

from tests.tuner.runs import forced_off, rows
from tuner.curves import Pivot, pivot
from tuner.replicas import PAIRS_PER_ROUND, next_round, sharp


def found(noise: float, repeats: int, factor: float | None = None) -> tuple[Pivot, tuple[int, ...]]:
    curves = None if factor is None else {"eagle3": lambda b: factor * forced_off(b), "forced_off": forced_off}
    points = rows(noise=noise, repeats=repeats) if curves is None else rows(curves, noise=noise, repeats=repeats)
    fit = pivot(points)
    assert fit is not None
    return fit, next_round(fit, points)


def test_a_round_surrounds_the_pivot_and_closes_wide_gaps() -> None:
    """Both neighbours of the pivot and a level between them are measured next."""
    fit, wanted = found(noise=0.02, repeats=2)
    assert fit.threshold is not None
    assert min(wanted) < fit.threshold < max(wanted)
    assert len(wanted) <= PAIRS_PER_ROUND
    assert any(level not in (64, 128, 256) for level in wanted)
    assert min(wanted) >= 45


def test_sharp_is_a_narrow_interval() -> None:
    """Little noise and many repeats are sharp; much noise is not."""
    assert sharp(found(noise=1e-5, repeats=3)[0])
    assert not sharp(found(noise=0.05, repeats=2)[0])


def test_curves_that_never_cross_are_checked_at_their_end() -> None:
    """Always on looks at the largest level, always off at the smallest, and both are sharp when the interval agrees."""
    on, at_top = found(noise=0.01, repeats=3, factor=1.3)
    off, at_bottom = found(noise=0.01, repeats=3, factor=0.7)
    assert sharp(on)
    assert sharp(off)
    assert 256 in at_top
    assert 1 in at_bottom
