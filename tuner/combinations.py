"""Draft steps, topk and draft tokens: which combination to serve, and a ladder where no single one is best everywhere.

Servers take them at start only, so each combination is a server start, and is tuned completely in that one life.
What a combination is worth is its gain over its own off steps, at its best threshold: off steps are the same work
whatever the drafts, so what differs between two starts of a server cancels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise, product

import msgspec
import scipy

from harness.config import SweepConfig
from patched_worker.policy import default_resume_at
from tuner.curves import Pivot
from tuner.knobs import RESTARTS, Search
from tuner.ladder import Ladder

RISK = 0.05  # of leaving the default for what is not better, over all combinations together
LADDER_GAIN = math.log(1.005)  # what a ladder must bring at least
STEPS, TOPK, TREE_TOKENS = (1, 2, 3, 5), (1, 4), (8,)  # tried where no values are given
Weights = Mapping[int, float]


class Combination(msgspec.Struct, frozen=True, order=True):
    """One way to start the speculative server."""

    num_steps: int
    topk: int
    draft_tokens: int

    @property
    def name(self) -> str:
        return f"steps{self.num_steps}-topk{self.topk}-tokens{self.draft_tokens}"

    def settings(self, config: SweepConfig) -> SweepConfig:
        return msgspec.structs.replace(config, **msgspec.structs.asdict(self))

    @property
    def possible(self) -> bool:
        """Whether SGLang can draft so many tokens: a chain has num_steps + 1, a tree no more than it has nodes."""
        if self.topk == 1:
            return self.draft_tokens == self.num_steps + 1
        return 2 <= self.draft_tokens <= 1 + self.topk + (self.num_steps - 1) * self.topk**2


class Worth(msgspec.Struct, frozen=True):
    """What a combination brings over never speculating, at its threshold.

    Attributes:
        gain: in log score.
        se: its standard error.
    """

    gain: float
    se: float


def wanted(config: SweepConfig, search: Search) -> tuple[Combination, ...]:
    """The combinations to try, the one that the settings name first; () where none of these knobs is free."""
    if search.keys().isdisjoint(RESTARTS):
        return ()
    steps = (search["num_steps"] or STEPS) if "num_steps" in search else (config.draft_steps,)
    topks = (search["topk"] or TOPK) if "topk" in search else (config.topk,)
    trees = search.get("draft_tokens") or ((config.draft_tokens,) if config.draft_tokens else TREE_TOKENS)
    made = [
        Combination(n, topk, tokens)
        for n, topk in product(steps, topks)
        for tokens in ((n + 1,) if topk == 1 else trees)
    ]
    default = Combination(config.draft_steps, config.topk, config.draft_tokens or config.draft_steps + 1)
    return tuple(dict.fromkeys(c for c in (default, *made) if c.possible))


def worth(fit: Pivot, weights: Weights) -> Worth:
    """The worth of a combination by its curves.

    Args:
        fit: pivot of its own eagle3 against its own off.
        weights: by concurrency; any sum.
    """
    top = math.inf if fit.threshold is None else fit.threshold
    total = sum(weights.get(ratio.concurrency, 0.0) for ratio in fit.ratios) or 1.0
    on = [(weights.get(r.concurrency, 0.0) / total, r) for r in fit.ratios if r.batch <= top]
    return Worth(sum(w * r.log_ratio for w, r in on), math.sqrt(sum((w * r.se) ** 2 for w, r in on)))


def best(worths: Sequence[Worth]) -> int:
    """Which combination to keep: the first, unless another beats it by more than noise."""
    first, others = worths[0], range(1, len(worths))
    if not others:
        return 0
    beats = float(scipy.stats.norm.ppf(1 - RISK / len(others)))
    ahead = max(others, key=lambda i: worths[i].gain)
    error = math.hypot(first.se, worths[ahead].se)
    return ahead if worths[ahead].gain - first.gain > beats * error else 0


def ladder(fits: Mapping[int, Pivot], single: int, weights: Weights) -> tuple[Ladder, Worth] | None:
    """Bands of falling draft steps, where they beat the best single combination by more than noise.

    Args:
        fits: by draft steps, of chains.
        single: draft steps of the combination that is kept.
        weights: by concurrency.

    Returns:
        The ladder, and what it brings over the single one; None where that is not clear.
    """
    levels = sorted(
        set.intersection(*({r.concurrency for r in fit.ratios if weights.get(r.concurrency)} for fit in fits.values()))
    )
    if len(fits) < 2 or not levels:
        return None
    points = {n: {r.concurrency: r for r in fit.ratios} for n, fit in fits.items()}
    gains = {n: [points[n][c].log_ratio for c in levels] for n in fits} | {0: [0.0] * len(levels)}
    total = sum(weights[c] for c in levels)
    shares = [weights[c] / total for c in levels]
    steps = _falling(gains, shares)
    top = math.inf if fits[single].threshold is None else fits[single].threshold
    alone = [single if points[single][c].batch <= (top or 0) else 0 for c in levels]
    pairs = [(share, i) for i, share in enumerate(shares) if steps[i] != alone[i]]
    gain = sum(share * (gains[steps[i]][i] - gains[alone[i]][i]) for share, i in pairs)
    errors = (share * points[n][levels[i]].se for share, i in pairs for n in (steps[i], alone[i]) if n)
    brought = Worth(gain, math.hypot(*errors))
    if gain < max(LADDER_GAIN, 1.64 * brought.se):
        return None
    batches = [points[single][c].batch for c in levels]
    return _rungs(steps, batches, gains), brought


def _falling(gains: Mapping[int, Sequence[float]], shares: Sequence[float]) -> list[int]:
    """Draft steps of each level that bring most in all, never more at a larger batch than at a smaller one."""
    options = sorted(gains, reverse=True)
    reached = [(0.0, [options[0]] * 0)] * len(options)  # best sum that ends with this option, and its path
    for i, share in enumerate(shares):
        following = []
        for j, n in enumerate(options):
            before = max(reached[: j + 1], key=lambda pair: pair[0])
            following.append((before[0] + share * gains[n][i], [*before[1], n]))
        reached = following
    return max(reached, key=lambda pair: pair[0])[1]


def _rungs(steps: Sequence[int], batches: Sequence[float], gains: Mapping[int, Sequence[float]]) -> Ladder:
    """One rung per band; between two levels it ends where the two curves cross."""
    made = list[tuple[int | None, int]]()
    for (i, here), (j, after) in pairwise(enumerate(steps)):
        if here != after:
            upto = _crossing(
                (batches[i], gains[here][i] - gains[after][i]), (batches[j], gains[here][j] - gains[after][j])
            )
            made.append((upto, here))
    if steps[-1]:
        made.append((None, steps[-1]))
    rungs: dict[int | None, int] = {}
    for threshold, n in made:  # two bands that end at the same batch: the smaller band is empty
        rungs.setdefault(threshold, n)
    return tuple(
        {"threshold": upto, "resume_at": None if upto is None else default_resume_at(upto), "num_steps": n}
        for upto, n in rungs.items()
    )


def _crossing(left: tuple[float, float], right: tuple[float, float]) -> int:
    """The largest whole batch before a difference reaches zero, in log2 of the batch; half-way where it does not."""
    ahead, behind = left[1], right[1]
    share = ahead / (ahead - behind) if ahead > 0 > behind else 0.5
    return max(1, int(left[0] * (right[0] / left[0]) ** share))
