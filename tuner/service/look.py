"""One look at a server, and what two of them say: up, down, lacking or lying. Pure but for `look` itself.

A server may answer anything. What is taken from it is checked first, and what contradicts itself makes it a liar:
figures of such a server are not shown.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec

from harness.endpoint import Endpoint, specpivot_block
from harness.errors import one_line
from harness.proof import Steps, identity, simulation_of, steps_between, worker_of
from patched_worker.policy import NEVER_DISABLE
from tuner.service.answers import Server, ServerState
from tuner.service.workerblock import Block, autopilot_of, block_of, read_back

MISSES = 3  # looks without /server_info before a server that had it is one that lacks it


class Seen(msgspec.Struct, frozen=True):
    """What one look brought.

    Attributes:
        at_s: when, on the monotonic clock.
        healthy: whether it answered at all.
        info: /server_info; None where there was no JSON, or it was not asked.
        asked: whether /server_info was asked for; it is not while a job measures the server.
        samples: /metrics of a server that is not patched.
    """

    at_s: float
    healthy: bool
    info: dict[str, Any] | None = None
    asked: bool = True
    samples: dict[str, float] | None = None


class Told(msgspec.Struct, frozen=True):
    """What is believed of a server after a look; the next look is judged beside it."""

    server: Server
    seen: Seen | None = None  # the last one that brought a believable /server_info, with no job after it
    misses: int = 0


def look(endpoint: Endpoint, quietly: bool) -> Seen:
    """Look at a server; takes as long as its patience at worst three times.

    Args:
        endpoint: the server.
        quietly: ask for /health alone, which does not disturb a measurement.
    """
    if quietly:
        return Seen(time.monotonic(), endpoint.healthy(), asked=False)
    info = endpoint.server_info()
    if info is None:
        return Seen(time.monotonic(), endpoint.healthy())
    samples = None if specpivot_block(info) is not None else endpoint.metrics()
    return Seen(time.monotonic(), True, info, samples=samples)


def unseen(name: str, url: str, now_s: float) -> Told:
    """A server that was not looked at yet."""
    return Told(Server(name, url, "down", now_s, "it was not looked at yet"))


def judged(before: Told, seen: Seen, job: str | None, now_s: float) -> Told:
    """What to believe after a look.

    Args:
        before: what was believed until now.
        seen: the look.
        job: the job that runs on the server.
        now_s: seconds since 1970.
    """
    old = before.server
    if not seen.healthy:
        return Told(_bare(old, "down", "it does not answer", now_s, job))
    if not seen.asked:
        if old.state in ("up", "lying"):  # what a job changes is no matter of the looks before and after it
            return Told(msgspec.structs.replace(old, job=job), misses=before.misses)
        return Told(_bare(old, "up", None, now_s, job))
    if seen.info is None:
        if old.state == "up" and before.misses + 1 < MISSES:
            return Told(msgspec.structs.replace(old, job=job), before.seen, before.misses + 1)
        return Told(_bare(old, "lacking", "it answers, but has no JSON at /server_info", now_s, job))
    try:
        server = _believed(old, before.seen, seen, now_s, job)
    except ValueError as error:
        return Told(_bare(old, "lying", one_line(str(error))[:300], now_s, job))
    return Told(server, seen)


def _believed(old: Server, last: Seen | None, seen: Seen, now_s: float, job: str | None) -> Server:
    block = block_of(seen.info)
    worker, _ = worker_of(seen.info)
    version = (seen.info or {}).get("version")
    server = Server(
        name=old.name,
        url=old.url,
        state="up",
        since_s=old.since_s if old.state == "up" else now_s,
        worker=worker[:200] or None,
        version=version[:100] if isinstance(version, str) and version else None,
        job=job,
        simulated=simulation_of(seen.info) is not None,
    )
    same = last is not None and identity(last.info) == identity(seen.info)
    if block is None:
        return _from_metrics(server, last if same else None, seen)
    return _from_block(server, block, last if same else None, seen)


def _from_block(server: Server, block: Block, last: Seen | None, seen: Seen) -> Server:
    held = read_back(block)
    server = msgspec.structs.replace(
        server,
        problem=_complaint(block),
        threshold=held.threshold,
        resume_at=held.resume_at,
        min_dwell=held.min_dwell,
        switches=block.switches,
        steps_on=block.steps_on,
        steps_off=block.steps_off,
        ungated=block.ungated,
        autopilot=autopilot_of(block.autopilot),
    )
    before = specpivot_block(last.info) if last is not None else None
    if last is None or before is None:
        return server
    try:
        steps = steps_between(before, specpivot_block(seen.info) or {})
    except ValueError:  # restarted: there is nothing to compare with
        return server
    # A ladder's last rung need not be its widest, and an autopilot tries what its threshold would not do.
    if before.get("policy_id") == block.policy_id and len(block.rungs) < 2 and not _autopilot_tries(block):
        _refuse_wrong_state(steps, block.threshold)
    return _with_steps(server, steps, seen.at_s - last.at_s)


def _complaint(block: Block) -> str | None:
    if block.ranks_agree is False:
        return "its tensor-parallel ranks disagree"
    return one_line(block.last_error)[:300] if block.last_error else None


def _autopilot_tries(block: Block) -> bool:
    return block.autopilot is not None and block.autopilot.state != "held"


def _refuse_wrong_state(steps: Steps, threshold: int) -> None:
    above = sum(n for (batch, state), (n, _, _) in steps.by_batch.items() if state == "on" and batch > threshold)
    if threshold != NEVER_DISABLE and above:
        raise ValueError(f"it says threshold {threshold}, but {above} steps speculated with a larger batch")


def _with_steps(server: Server, steps: Steps, elapsed_s: float) -> Server:
    total = steps.on + steps.off
    decoded = sum(batch * n for (batch, _), (n, _, _) in steps.by_batch.items())
    return msgspec.structs.replace(
        server,
        batch=decoded / total if total else 0.0,
        speculating=steps.on >= steps.off if total else None,
        accept_len=steps.accept_len,
        tok_per_s=steps.tokens / elapsed_s if elapsed_s > 0 else None,
    )


def _from_metrics(server: Server, last: Seen | None, seen: Seen) -> Server:
    if seen.samples is None:
        return server
    speculates = server.worker not in (None, "none")
    batch = seen.samples.get("sglang:num_running_reqs")
    tokens = [
        (look.samples or {}).get("sglang:generation_tokens_total") if look is not None else None
        for look in (last, seen)
    ]
    rate = None
    if last is not None and tokens[0] is not None and tokens[1] is not None and seen.at_s > last.at_s:
        rate = max(0.0, tokens[1] - tokens[0]) / (seen.at_s - last.at_s)
    return msgspec.structs.replace(
        server,
        batch=batch,
        speculating=speculates if batch else None,
        accept_len=seen.samples.get("sglang:spec_accept_length") if speculates and batch else None,
        tok_per_s=rate,
    )


def _bare(old: Server, state: ServerState, problem: str | None, now_s: float, job: str | None) -> Server:
    since_s = old.since_s if old.state == state else now_s
    return Server(old.name, old.url, state, since_s, problem, job=job)
