"""The servers that run: those of one arrangement on two CPU cores, all at once on a GPU. A start takes 16 s or
more, most of it imports on one core: three side by side take little longer than two in turn.

Tests ask the slot for the server they need; it keeps one while that is healthy and there is no other to make room for.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.sglang_cpu import servers
from tests.sglang_cpu.machines import Machine
from tests.sglang_cpu.servers import Arrangement, Server, Wanted

RING_STEPS = 11  # more than twice the draft tokens, and no multiple of them
CHUNK_TOKENS = 64  # of a prefill: six requests fill it in fewer plain steps than RING_STEPS
MAX_ILLNESSES = 4  # restarts cost the time in which other tests would run
STRICT_CHECKS = {
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "2",
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_IDLE": "1",
    "SGLANG_CHECK_KV_PAGE_INVARIANTS": "1",  # from 0.5.16 on
}


class Slot:
    """See the module.

    Args:
        machine: where servers run, and how many of them at once.
        models: folder of the constructed models.
        logs: where servers log.
        groups: which servers are started side by side when the first of them is asked for.
    """

    def __init__(self, machine: Machine, models: Path, logs: Path, groups: Sequence[Sequence[Wanted]] = ()) -> None:
        self.machine = machine
        self._models = models
        self._logs = logs
        self._groups = groups
        self._begun: set[Wanted] = set()
        self._running: dict[Wanted, Server] = {}
        self._failed: dict[Wanted, str] = {}
        self._fell_ill: Counter[Wanted] = Counter()
        self._starts = itertools.count(1)

    def use(self, wanted: Wanted) -> Server:
        """The wanted server, healthy; started if it does not run.

        Raises:
            AssertionError: it did not come up, now or the first time: a start that fails is not tried again. Or it has
            fallen ill in too many tests.
        """
        server = self._running.get(wanted)
        if server is not None and server.healthy():
            return server
        if wanted in self._failed:
            raise AssertionError(f"{wanted.name} did not come up before: {self._failed[wanted]}")
        if server is not None:
            self._fell_ill[wanted] += 1
            assert self._fell_ill[wanted] < MAX_ILLNESSES, (
                f"{wanted.name} fell ill too often; its last log: {server.log}"
            )
        group = [wanted, *(one for one in self._beside(wanted) if one not in self._begun)]
        self._make_room(wanted, len(group))
        with ThreadPoolExecutor(len(group)) as pool:
            starting = [pool.submit(self._start, one) for one in group]
        return starting[0].result()  # whoever needs another that failed hears of it

    def _beside(self, wanted: Wanted) -> list[Wanted]:
        """The others of its group."""
        return [one for group in self._groups if wanted in group for one in group if one != wanted]

    def start_all(self, wanted: Sequence[Wanted]) -> None:
        """Start several: the first one alone, since it fills the caches of compiled kernels, the others at once."""
        for batch in (wanted[:1], wanted[1:]):
            with ThreadPoolExecutor(max(1, len(batch))) as pool:
                for future in [pool.submit(self._start, one) for one in batch]:
                    future.exception()  # whoever needs that server hears of it

    def running(self) -> list[tuple[Wanted, Server]]:
        """Every server that runs, ill or not."""
        return list(self._running.items())

    def stop(self, wanted: Wanted) -> None:
        """Stop that server, if it runs."""
        if wanted in self._running:
            servers.stop(self._running.pop(wanted))

    def empty(self) -> None:
        """Stop all servers."""
        for wanted in list(self._running):
            self.stop(wanted)

    def _start(self, wanted: Wanted) -> Server:
        self._begun.add(wanted)
        log = self._logs / f"{next(self._starts):02}-{wanted.name}.log"
        try:
            server = servers.start(self.machine, wanted, self._models, log)
        except AssertionError as error:
            self._failed[wanted] = str(error).splitlines()[0]
            raise
        self._running[wanted] = server
        return server

    def _make_room(self, wanted: Wanted, count: int) -> None:
        """Stop this server if it is ill, and those that have run longest until there is room for so many."""
        while self._running and (wanted in self._running or len(self._running) + count > self.machine.resident):
            self.stop(wanted if wanted in self._running else next(iter(self._running)))


def baseline(arrangement: Arrangement, machine: Machine) -> Wanted:
    """No speculation: the reference of v1 has no overlap scheduler, as v1 has none."""
    overlap = () if arrangement.worker == "v2" else ("--disable-overlap-schedule",)
    return Wanted(
        f"{arrangement.release}-baseline{'' if overlap == () else '-no-overlap'}",
        arrangement.release,
        (*machine.baseline, *overlap),
    )


def static_eagle(arrangement: Arrangement, models: Path, extra: Sequence[str] = ()) -> Wanted:
    """Upstream's own EAGLE-3, unpatched."""
    return Wanted(
        f"{arrangement.name}-unpatched",
        arrangement.release,
        (*servers.eagle_arguments(models, "draft-with-memory"), *arrangement.arguments(), *extra),
        tuple(arrangement.environment().items()),
    )


@dataclass(frozen=True, slots=True)
class Patched:
    """A patched server and its probes.

    Attributes:
        kv_tolerance: how far a KV value may be from that of another way to compute it.
    """

    arrangement: Arrangement
    server: Server
    probes: Path = field(repr=False)
    kv_tolerance: float = 0.0

    def set_policy(self, threshold: int, resume_at: int = 0, min_dwell: int = 0, **probe: Any) -> None:
        """Set the live policy and read it back; -1 never disables. Forgets what `probe` has asked for before."""
        self.probe(**probe)
        update = {
            "speculative_disable_batch_threshold": threshold,
            "speculative_min_dwell_steps": min_dwell,
        }
        if resume_at:
            update["speculative_resume_batch_threshold"] = resume_at
        answer = self.server.post("/set_internal_state", {"server_args": update})
        assert answer == [True] or answer is True or answer == [{"updated": True}], answer
        assert self.state()["threshold"] == (None if threshold == -1 else threshold)

    def set_sync_steps(self, steps: int) -> None:
        """Bring the draft's KV up every so many plain steps, from 1 to RING_STEPS; spec v2 only."""
        answer = self.server.post("/set_internal_state", {"server_args": {"speculative_draft_sync_steps": steps}})
        assert answer == [True] or answer is True or answer == [{"updated": True}], answer
        assert self.state()["draft_sync_steps"] == steps

    def probe(self, **values: Any) -> None:
        """Write control.json: `force`, `sync`; see shims/probes.py."""
        draft = self.probes / "control.json.new"
        draft.write_text(json.dumps(values))
        draft.replace(self.probes / "control.json")  # whole at once: a step may be reading it

    def state(self) -> dict[str, Any]:
        """The `specpivot` block of /server_info."""
        block: dict[str, Any] = self.server.internal_state()["specpivot"]
        return block

    def wait_for_steps(self, steps: int, batch: int = 1) -> None:
        """Until so many more decode steps of at least `batch` requests have run."""
        wanted = _steps_of(self.state(), batch) + steps
        deadline = time.monotonic() + 60
        while _steps_of(self.state(), batch) < wanted:
            assert time.monotonic() < deadline, f"no {steps} decode steps of {batch} requests in 60 s"


def _steps_of(state: dict[str, Any], batch: int) -> int:
    return sum(int(row["steps"]) for row in state["by_batch"] if row["batch"] >= batch)


def patched(
    arrangement: Arrangement,
    models: Path,
    probes: Path,
    draft: str = "draft-with-memory",
    topk: int = 1,
    extra: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
    name: str = "patched",
) -> Wanted:
    """The patched worker, started so that it never switches off until a test says so; v2 with a long ring."""
    ring = ("--speculative-draft-sync-steps", str(RING_STEPS)) if arrangement.worker == "v2" else ()
    return Wanted(
        f"{arrangement.name}-{name}",
        arrangement.release,
        (
            *("--speculative-disable-batch-threshold", "never"),
            *servers.eagle_arguments(models, draft, topk),
            *arrangement.arguments(),
            *ring,
            *extra,
        ),
        tuple(
            {
                **arrangement.environment(),
                **STRICT_CHECKS,
                "SPECPIVOT_TEST_PROBES": str(probes),
                **(variables or {}),
            }.items()
        ),
        "patched_worker",
    )


def paged(arrangement: Arrangement, models: Path, probes: Path) -> Wanted:
    """The same with pages of 16 slots, requests retracted every third step, and on v2 prompts prefilled in chunks."""
    chunks = ("--chunked-prefill-size", str(CHUNK_TOKENS)) if arrangement.worker == "v2" else ()
    extra, variables = ("--page-size", "16", *chunks), {"SGLANG_TEST_RETRACT": "1"}
    return patched(arrangement, models, probes, extra=extra, variables=variables, name="paged")


def tree(arrangement: Arrangement, models: Path, probes: Path) -> Wanted:
    """The same with a draft that proposes a tree."""
    return patched(arrangement, models, probes, topk=4, name="tree")


def two_ranks(arrangement: Arrangement, models: Path, probes: Path) -> Wanted:
    """The same on two tensor-parallel ranks, with probes of its own."""
    cores = sorted(os.sched_getaffinity(0))
    bound = {"SGLANG_CPU_OMP_THREADS_BIND": f"{cores[0]}|{cores[-1]}"}  # asked for where ranks outnumber NUMA nodes
    return patched(arrangement, models, probes, extra=("--tp-size", "2"), variables=bound, name="two-ranks")


def graphed(arrangement: Arrangement, models: Path, probes: Path, machine: Machine) -> Wanted:
    """The same with captured graphs: a GPU has them anyway, on a CPU the recorded function runs again."""
    if machine.largest_graph:
        return patched(arrangement, models, probes)
    return patched(arrangement, models, probes, variables={"SPECPIVOT_TEST_GRAPHS": "1"}, name="graphed")
