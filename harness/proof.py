"""Proof of what ran: the worker's own counters over a window must agree with the policy that was set.

Once, the wrong worker class was patched and nothing said so. Hence no point counts because a flag was passed: a patched
server must show, by decode batch, that steps above the threshold were plain and steps below it speculated, and an
unpatched one must at least be the same process with the same arguments before and after.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

import msgspec

from harness.endpoint import internal_states, specpivot_block
from harness.variants import RECORDED
from patched_worker.policy import NEVER_DISABLE, Policy

MAX_TIME_SCALE = 1e6
# What names a process among the arguments it reports: SGLang draws the seed and the ports anew at each start.
_IDENTIFYING = (*RECORDED, "random_seed", "served_model_name", "revision", "port", "nccl_port", "dist_init_addr")


class Steps(msgspec.Struct, frozen=True):
    """Decode steps that a patched worker did between two readings.

    Attributes:
        by_batch: (decode batch, state) to (steps, tokens, seconds); state is "on" or "off".
    """

    on: int
    off: int
    switches: int
    ungated: int
    by_batch: dict[tuple[int, str], tuple[int, int, float]]

    @property
    def tokens(self) -> int:
        return sum(tokens for _, tokens, _ in self.by_batch.values())

    @property
    def accept_len(self) -> float | None:
        """Tokens per request and verify step, over the steps that speculated; None when none did."""
        on = [(batch, steps, tokens) for (batch, state), (steps, tokens, _) in self.by_batch.items() if state == "on"]
        verified = sum(batch * steps for batch, steps, _ in on)
        return sum(tokens for _, _, tokens in on) / verified if verified else None


def steps_between(before: dict[str, Any], after: dict[str, Any]) -> Steps:
    """What a worker's counters say happened between two `specpivot` blocks.

    Raises:
        ValueError: the counters are malformed or ran backwards (the worker was restarted).
    """
    try:
        deltas = {name: int(after[name]) - int(before[name]) for name in ("steps_on", "steps_off", "switches")}
        ungated = int(after.get("ungated", 0)) - int(before.get("ungated", 0))
        old, new = _histogram(before), _histogram(after)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ValueError(f"the worker's counters are malformed: {error!r}") from error
    zero = (0, 0, 0.0)
    by_batch = {
        place: (counts[0] - was[0], counts[1] - was[1], counts[2] - was[2])
        for place, counts in new.items()
        if (was := old.get(place, zero)) and counts[0] != was[0]
    }
    if min(*deltas.values(), ungated, *(counts[0] for counts in by_batch.values()), 0) < 0:
        raise ValueError("the worker's counters ran backwards: it was restarted")
    return Steps(deltas["steps_on"], deltas["steps_off"], deltas["switches"], ungated, by_batch)


def _histogram(block: dict[str, Any]) -> dict[tuple[int, str], tuple[int, int, float]]:
    return {
        (int(row["batch"]), str(row["state"])): (int(row["steps"]), int(row["tokens"]), float(row["seconds"]))
        for row in block["by_batch"]
    }


def contradiction(steps: Steps, after: dict[str, Any], policy: Policy) -> str | None:
    """Why the window's counters do not show the policy at work; None when they do.

    Args:
        steps: the window's steps, from a gate that was reset at its beginning.
        after: the worker's report at its end.
        policy: what was set.
    """
    threshold = NEVER_DISABLE if policy.threshold is None else policy.threshold
    if after.get("threshold") != threshold:
        return f"the worker's threshold is {after.get('threshold')}, not {threshold}"
    if after.get("ranks_agree") is False:
        return "the tensor-parallel ranks disagree"
    if steps.ungated:
        return f"{steps.ungated} decode steps passed the gate by"
    if not steps.by_batch:
        return "the worker counted no decode step"
    return _wrong_state(steps, policy)


def agreed_ranks(block: dict[str, Any] | None) -> int | None:
    """The ranks that compared counters and policy for a worker's report and found them equal; None where it is silent.

    Each rank counts its own forwards; a report is made by all of them at one place of their loops.
    """
    ranks = (block or {}).get("ranks")
    return ranks if type(ranks) is int and (block or {}).get("ranks_agree") is True else None


def _wrong_state(steps: Steps, policy: Policy) -> str | None:
    on = {batch: counts[0] for (batch, state), counts in steps.by_batch.items() if state == "on"}
    off = {batch: counts[0] for (batch, state), counts in steps.by_batch.items() if state == "off"}
    if policy.threshold is None:
        return f"{sum(off.values())} steps were plain though speculation is never disabled" if off else None
    above = sum(count for batch, count in on.items() if batch > policy.threshold)
    if above:
        return f"{above} steps speculated with a batch above {policy.threshold}"
    if policy.threshold == 0:
        return None
    went_off = any(batch > policy.threshold for batch in off)
    low = sum(count for batch, count in off.items() if batch <= (policy.resume_at or 0))
    if off and not went_off:
        return f"{sum(off.values())} steps were plain though the batch never exceeded {policy.threshold}"
    if low > policy.min_dwell * (steps.switches + 1):
        return f"{low} steps were plain with a batch at or below {policy.resume_at}, longer than the dwell explains"
    return None


def worker_of(info: dict[str, Any] | None) -> tuple[str, str]:
    """The worker class a server runs, and how that is known.

    Returns:
        (class name, "reported" by the patched worker | "inferred" from its arguments | "unknown"); the class is "none"
        for a server without speculation and "" where nothing is known.
    """
    block = specpivot_block(info)
    if block is not None:
        return str(block.get("worker", "")).rpartition(".")[2], "reported"  # it says in which module, too
    if not info or "speculative_algorithm" not in info:
        return "", "unknown"
    if info["speculative_algorithm"] is None:
        return "none", "inferred"
    if info["speculative_algorithm"] not in ("EAGLE", "EAGLE3"):
        return str(info["speculative_algorithm"]), "inferred"
    # The choice of SpeculativeAlgorithm.create_worker: overlap decides. From 0.5.13 on there is no v1.
    v1 = info.get("disable_overlap_schedule") is True and _release(info.get("version")) < (0, 5, 13)
    return ("EAGLEWorker" if v1 else "EAGLEWorkerV2"), "inferred"


def wrong_worker(asked: str, worker: str) -> str | None:
    """The complaint when a server runs another worker generation than was asked for.

    Args:
        asked: "v1", "v2" or "auto".
        worker: the class it runs, "" where that is unknown.
    """
    expected = {"v1": "EAGLEWorker", "v2": "EAGLEWorkerV2"}.get(asked)
    if expected is None or worker in ("", "none", expected):
        return None
    return f"worker {asked} ({expected}) was asked for, but the server runs {worker}"


def _release(version: object) -> tuple[int, ...]:
    numbers = str(version).split(".post")[0].split(".")
    return tuple(int(n) for n in numbers if n.isdigit())


def simulation_of(info: dict[str, Any] | None) -> dict[str, Any] | None:
    """What a simulated server says of its clock; None for every other server, and for one that says nonsense."""
    block = (info or {}).get("simulation")
    if not isinstance(block, dict):
        return None
    scale, slipped_s = block.get("time_scale"), block.get("slipped_s", 0.0)
    if not isinstance(scale, int | float) or not isinstance(slipped_s, int | float):
        return None
    return block if 0 < scale < MAX_TIME_SCALE and math.isfinite(slipped_s) else None


def reported_arguments(info: dict[str, Any] | None) -> dict[str, Any]:
    """The arguments that matter for a comparison, as the server resolved them."""
    merged = dict(next(iter(internal_states(info)), {})) | dict(info or {})
    memory = merged.get("memory_usage")
    if isinstance(memory, dict):
        merged.setdefault("max_total_num_tokens", memory.get("token_capacity"))
    if isinstance(merged.get("effective_max_running_requests_per_dp"), int):
        merged["max_running_requests"] = merged["effective_max_running_requests_per_dp"]
    return {name: merged[name] for name in RECORDED if merged.get(name) is not None}


def identity(info: dict[str, Any] | None) -> str:
    """A short hash that changes when another process, model or set of arguments answers at the same address."""
    stable = {name: (info or {}).get(name) for name in _IDENTIFYING}
    body = json.dumps(stable, sort_keys=True, default=str)
    return hashlib.sha256(body.encode()).hexdigest()[:12]
