"""What a patched worker says of itself in /server_info, checked, and what a page is shown of it.

One room for it: a look at a server and an answer to a change read the same words alike.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import msgspec

from harness.endpoint import specpivot_block
from patched_worker.policy import NEVER_DISABLE
from tuner.service.answers import Autopilot, AutopilotState, ReadBack

# The worker's words for the autopilot, and ours.
AUTOPILOT: dict[str, AutopilotState] = {"held": "off", "dry_run": "dry_run", "auto": "on"}
Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class Row(msgspec.Struct, frozen=True):
    """Decode steps at one batch and state."""

    batch: Annotated[int, msgspec.Meta(ge=1, le=2**31)]
    state: Literal["on", "off"]
    steps: Count
    tokens: Count
    seconds: Annotated[float, msgspec.Meta(ge=0)]


class ShownMove(msgspec.Struct, frozen=True):
    """A move of the autopilot, after so many decode steps."""

    step: Count
    old: Annotated[int, msgspec.Meta(ge=0, le=2**31)]
    new: Annotated[int, msgspec.Meta(ge=0, le=2**31)]
    reason: Annotated[str, msgspec.Meta(max_length=1000)]
    dry_run: bool


class Shown(msgspec.Struct, frozen=True):
    """What a patched worker says of its autopilot."""

    state: Literal["held", "auto", "dry_run"]
    bounds: tuple[Annotated[int, msgspec.Meta(ge=0, le=2**31)], Annotated[int, msgspec.Meta(ge=0, le=2**31)] | None]
    steps: Count
    moves: Annotated[list[ShownMove], msgspec.Meta(max_length=100)]
    interval: tuple[float | None, float | None] = (None, None)


class Block(msgspec.Struct, frozen=True):
    """What a patched worker must say of itself to be believed."""

    worker: Annotated[str, msgspec.Meta(max_length=200)]
    threshold: Annotated[int, msgspec.Meta(ge=NEVER_DISABLE, le=2**31)]
    resume_at: Annotated[int, msgspec.Meta(ge=-1, le=2**31)] | None
    min_dwell: Annotated[int, msgspec.Meta(ge=0, le=2**31)]
    policy_id: str
    steps_on: Count
    steps_off: Count
    switches: Count
    by_batch: list[Row]
    ungated: Count = 0
    last_error: str | None = None
    ranks_agree: bool | None = None
    autopilot: Shown | None = None
    rungs: list[Any] = []


def converted(raw: dict[str, Any]) -> Block:
    """The block with every field of its type and within its bounds.

    Raises:
        ValueError: one is not.
    """
    try:
        return msgspec.convert(raw, Block)
    except msgspec.ValidationError as error:
        raise ValueError(f"its specpivot block cannot be true: {error}") from error


def block_of(info: dict[str, Any] | None) -> Block | None:
    """The patched worker's report, checked; None where the server is not patched.

    Raises:
        ValueError: it cannot be true.
    """
    raw = specpivot_block(info)
    if raw is None:
        return None
    block = converted(raw)
    for state, counted in (("on", block.steps_on), ("off", block.steps_off)):
        by_batch = sum(row.steps for row in block.by_batch if row.state == state)
        if by_batch != counted:
            raise ValueError(f"it counts {counted} steps {state}, but {by_batch} by batch")
    if not all(math.isfinite(row.seconds) for row in block.by_batch):
        raise ValueError("its specpivot block holds times without end")
    return block


def read_back(block: Block) -> ReadBack:
    """The policy that it holds."""
    return ReadBack(
        threshold=None if block.threshold == NEVER_DISABLE else block.threshold,
        resume_at=block.resume_at if block.resume_at and block.resume_at > 0 else None,
        min_dwell=block.min_dwell,
        policy_id=block.policy_id,
        last_error=block.last_error,
    )


def autopilot_of(shown: Shown | None) -> Autopilot:
    """Its autopilot; off where it has none."""
    return Autopilot() if shown is None else Autopilot(AUTOPILOT[shown.state], list(shown.bounds))
