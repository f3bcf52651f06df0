"""What a server says at both edges of a point, and whether the two readings prove the policy between them."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from harness.endpoint import specpivot_block
from harness.proof import Steps, agreed_ranks, contradiction, identity, simulation_of, steps_between
from harness.records import LevelRow
from harness.servers import Server
from patched_worker.policy import Policy

GENERATED = "sglang:generation_tokens_total"


class Reading(msgspec.Struct, frozen=True):
    """What a server says at one edge of a point."""

    identity: str
    block: dict[str, Any] | None
    generated: float | None
    slipped_s: float = 0.0  # how far a simulated server is behind its own clock


def read(server: Server) -> Reading:
    """Read the counters and the identity of a server."""
    info = server.endpoint.server_info()
    samples = server.endpoint.metrics()
    # The counter appears with its first increment.
    generated = samples.get(GENERATED, 0.0) if samples and "sglang:num_running_reqs" in samples else None
    simulation = simulation_of(info) or {}
    return Reading(identity(info), specpivot_block(info), generated, float(simulation.get("slipped_s", 0.0)))


def proven(before: Reading, after: Reading, policy: Policy | None) -> tuple[Steps | None, str | None]:
    """The window's decode steps by a patched worker, and why they do not prove the policy."""
    if policy is None:
        return None, None
    if before.block is None or after.block is None:
        return None, "the patched worker reports nothing"
    try:
        steps = steps_between(before.block, after.block)
    except ValueError as error:
        return None, str(error)
    return steps, contradiction(steps, after.block, policy)


def with_counts(row: LevelRow, steps: Steps | None, before: Reading, after: Reading) -> LevelRow:
    """The row with what the server, and a patched worker's `steps`, counted between two readings."""
    if before.generated is not None and after.generated is not None:
        row = replace(row, server_tokens=round(after.generated - before.generated))
    if steps is None:
        return row
    return replace(
        row,
        steps_on=steps.on,
        steps_off=steps.off,
        switches=steps.switches,
        worker_tokens=steps.tokens,
        ranks=agreed_ranks(after.block),
        # Requests cannot tell plain steps from verify steps; the worker's sums have no interval.
        accept_len=steps.accept_len,
        accept_len_low=None,
        accept_len_high=None,
    )
