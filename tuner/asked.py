"""What a tuning is asked beyond a sweep's settings, and how it ended."""

from __future__ import annotations

from typing import Literal

import msgspec

from harness.config import SweepConfig
from tuner.knobs import Search
from tuner.recommend import Objective, Recommendation

Reason = Literal["sharp", "trials", "budget", "behind", "nothing usable"]  # what ends a search


class TuneOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What tune is asked beyond a sweep's settings.

    Attributes:
        budget_s: wall-clock time of the tuning, however often it is resumed.
        trials: most live thresholds.
        slack: of the latency constraint, as a share.
        objective: score, or throughput (the literal one).
        weights: traffic histogram.
        storage: URL of a storage that several tuners share; None keeps the study in the run folder.
        study: name of the study, equal for all who share it.
        search: knobs beside the threshold, see knobs.parse_search.
        context_lengths: prompt lengths, in tokens, at each of which the curves are measured; () takes the settings'.
    """

    budget_s: float = 1200.0
    trials: int = 8
    slack: float = 0.05
    objective: Objective = "score"
    weights: dict[int, float] | None = None
    storage: str | None = None
    study: str = "specpivot"
    search: Search = {}
    context_lengths: tuple[int, ...] = ()

    def at_each_length(self, config: SweepConfig) -> tuple[SweepConfig, ...]:
        """The settings at each context length that is asked for; as they are where none is."""
        lengths = self.context_lengths or (config.input_tokens,)
        return tuple(msgspec.structs.replace(config, input_tokens=length) for length in lengths)


class TuneOutcome(msgspec.Struct, frozen=True):
    """How a tuning ended.

    Attributes:
        recommendation: None where it was interrupted or nothing could be judged.
        points, usable: how many were measured.
    """

    run: str
    recommendation: Recommendation | None
    points: int
    usable: int
    ended: Reason | Literal["interrupted"]

    @property
    def exit_code(self) -> int:
        if self.ended == "interrupted":
            return 130
        if self.recommendation is None:
            return 4
        return 0 if self.usable == self.points else 3
