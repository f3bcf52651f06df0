"""Bands of the decode batch with their own number of draft steps, where one threshold is not the answer."""

from __future__ import annotations

from patched_worker.policy import default_resume_at
from tuner.curves import Pivot

Ladder = tuple[dict[str, int | None], ...]


def bands(fit: Pivot) -> Ladder:
    """Rungs that speculate exactly in the bands of batches where the measured ratio is above zero.

    A rung's num_steps of 0 is off, None is the server's own number; above the last rung speculation is off.
    """
    edges: list[tuple[int | None, bool]] = []
    for here, after in zip(fit.ratios, fit.ratios[1:], strict=False):
        wins = here.log_ratio > 0
        if wins != (after.log_ratio > 0):
            share = here.log_ratio / (here.log_ratio - after.log_ratio)
            edges.append((max(1, int(here.batch * (after.batch / here.batch) ** share)), wins))
    if fit.ratios[-1].log_ratio > 0:
        edges.append((None, True))
    return tuple(
        {
            "threshold": upto,
            "resume_at": None if upto is None else default_resume_at(upto),
            "num_steps": None if wins else 0,
        }
        for upto, wins in edges
    )
