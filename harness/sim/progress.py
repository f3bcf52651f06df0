"""What passes between the engine and whoever drives it: requests, steps and counters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]
State = Literal["on", "off"]


@dataclass(slots=True, eq=False)
class Request:
    """One request inside the engine; times in simulated seconds, lengths in tokens.

    `arrived_s` (at the scheduler) is the engine's to fill in. The counts of tokens, verify steps and accepted drafts
    are final once `finish` is set; while it runs, steps tell of its tokens.
    """

    rid: str
    prompt_tokens: int
    output_tokens: int
    sent_s: float
    arrived_s: float = 0.0
    prefilled: int = 0
    generated: int = 0
    verify_steps: int = 0
    accepted_drafts: int = 0
    first_token_s: float | None = None
    finished_s: float | None = None
    finish: Literal["length", "abort"] | None = None

    @property
    def reservation(self) -> int:
        """KV tokens that it holds from its admission to its end."""
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class Step:
    """What one step did.

    Attributes:
        kind: "prefill", or "decode" of `drafts` draft steps.
        start_s, end_s: on the virtual clock.
        requests: those that got tokens, and `tokens`: how many each.
        finished: those of them that ended with it.
    """

    kind: Literal["prefill", "decode"]
    start_s: float
    end_s: float
    drafts: int
    requests: Sequence[Request]
    tokens: Counts
    finished: Sequence[Request]


@dataclass(slots=True)
class BatchCount:
    """Steps of one decode batch in one state, their tokens and seconds."""

    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class Counters:
    """What the engine has done since it started; `by_batch` is of decode steps, keyed by (batch, state)."""

    prompt_tokens: int = 0
    output_tokens: int = 0
    finished: int = 0
    aborted: int = 0
    prefills: int = 0
    prefill_s: float = 0.0
    switches: int = 0
    by_batch: dict[tuple[int, State], BatchCount] = field(default_factory=dict)

    def steps(self, state: State) -> int:
        return sum(count.steps for (_, at), count in self.by_batch.items() if at == state)

    @property
    def accept_len(self) -> float | None:
        """Tokens per request and verify step so far; None before the first."""
        on = [(batch * count.steps, count.tokens) for (batch, at), count in self.by_batch.items() if at == "on"]
        return sum(tokens for _, tokens in on) / sum(verified for verified, _ in on) if on else None
