"""One decode step as it was seen, and the sums over the steps of one batch size and state."""

from __future__ import annotations

from dataclasses import dataclass

from patched_worker.steptrace import StepRecord


@dataclass(slots=True)
class Step:
    """One decode step. `num_steps` is what the gate asked for, tokens and calls are what was seen."""

    batch: int
    num_steps: int
    started_s: float = 0.0  # perf_counter
    target_tokens: int = 0
    draft_calls: int = 0
    tally: Tally | None = None
    record: StepRecord | None = None

    @property
    def off(self) -> bool:
        return self.num_steps == 0

    def add_tokens(self, tokens: int) -> None:
        """Credit output tokens to a step that has ended; with the overlap scheduler they are known one step late."""
        if self.tally is not None:
            self.tally.tokens += tokens
        if self.record is not None:
            self.record.tokens = tokens


@dataclass(slots=True)
class Tally:
    """Sums over the steps of one batch size and state."""

    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0
