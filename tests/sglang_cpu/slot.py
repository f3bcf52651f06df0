"""One server at a time: two CPU cores cannot carry more, and a start takes half a minute.

Tests ask the slot for the server they need; it keeps the present one while that is healthy and wanted again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.sglang_cpu import servers
from tests.sglang_cpu.servers import Arrangement, Server

STRICT_CHECKS = {
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "2",
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_IDLE": "1",
    "SGLANG_CHECK_KV_PAGE_INVARIANTS": "1",  # from 0.5.16 on
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to start; equal requests share a server."""

    name: str
    release: str
    arguments: tuple[str, ...]
    variables: tuple[tuple[str, str], ...] = ()
    module: str = "sglang.launch_server"


class Slot:
    """See the module.

    Args:
        models: folder of the constructed models.
        logs: where servers log.
    """

    def __init__(self, models: Path, logs: Path) -> None:
        self._models = models
        self._logs = logs
        self._running: tuple[Wanted, Server] | None = None
        self._stack = ExitStack()
        self._starts = 0

    def use(self, wanted: Wanted) -> Server:
        """The wanted server, healthy; started if it is not the present one."""
        if self._running is not None and self._running[0] == wanted and self._running[1].healthy():
            return self._running[1]
        self.empty()
        self._starts += 1
        server = self._stack.enter_context(
            servers.serve(
                f"{self._starts:02}-{wanted.name}",
                wanted.release,
                self._models,
                self._logs,
                wanted.arguments,
                dict(wanted.variables),
                wanted.module,
            )
        )
        self._running = (wanted, server)
        return server

    def empty(self) -> None:
        """Stop the present server."""
        self._running = None
        self._stack.close()


def baseline(arrangement: Arrangement) -> Wanted:
    """No speculation: the reference of v1 has no overlap scheduler, as v1 has none."""
    overlap = () if arrangement.worker == "v2" else ("--disable-overlap-schedule",)
    return Wanted(
        f"{arrangement.release}-baseline{'' if overlap == () else '-no-overlap'}",
        arrangement.release,
        (*servers.baseline_arguments(), *overlap),
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
    """A patched server and its probes."""

    arrangement: Arrangement
    server: Server
    probes: Path = field(repr=False)

    def set_policy(self, threshold: int, resume_at: int = 0, min_dwell: int = 0) -> None:
        """Set the live policy and read it back; -1 never disables. Forgets what `probe` has asked for."""
        self.probe()
        update = {
            "speculative_disable_batch_threshold": threshold,
            "speculative_min_dwell_steps": min_dwell,
        }
        if resume_at:
            update["speculative_resume_batch_threshold"] = resume_at
        answer = self.server.post("/set_internal_state", {"server_args": update})
        assert answer == [True] or answer is True or answer == [{"updated": True}], answer
        assert self.state()["threshold"] == (None if threshold == -1 else threshold)

    def probe(self, **values: Any) -> None:
        """Write control.json: `force`, `sync`; see shims/probes.py."""
        (self.probes / "control.json").write_text(json.dumps(values))

    def state(self) -> dict[str, Any]:
        """The `specpivot` block of /server_info."""
        block: dict[str, Any] = self.server.internal_state()["specpivot"]
        return block


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
    """The patched worker, started so that it never switches off until a test says so."""
    return Wanted(
        f"{arrangement.name}-{name}",
        arrangement.release,
        (
            *("--speculative-disable-batch-threshold", "never"),
            *servers.eagle_arguments(models, draft, topk),
            *arrangement.arguments(),
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
