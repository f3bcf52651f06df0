"""What unpatched servers answer: the tokens and acceptances that patched servers are compared with."""

from __future__ import annotations

from pathlib import Path

from tests.sglang_cpu.servers import MAX_RUNNING_REQUESTS, Arrangement, Wanted
from tests.sglang_cpu.slot import Slot, baseline, static_eagle
from tests.sglang_cpu.traffic import PARTS, Answer, answers, streams


def at_once_with_penalties(arrangement: Arrangement, part: str = "penalised") -> int:
    """How many requests may run at once and still have one answer.

    With the overlap scheduler upstream counts a token towards penalties one step late, except where it pauses the
    overlap between two prefills: requests with penalties that join one another depend on when they arrive.
    """
    return 1 if (part, arrangement.worker) == ("penalised", "v2") else MAX_RUNNING_REQUESTS


class References:
    """Asks each server once, and keeps its answers.

    Args:
        slot: where servers are started.
        models: folder of the constructed models.
    """

    def __init__(self, slot: Slot, models: Path) -> None:
        self._slot = slot
        self._models = models
        self._known: dict[Wanted, dict[str, list[Answer]]] = {}
        self._accepted: dict[Arrangement, list[float]] = {}

    def of(self, arrangement: Arrangement) -> dict[str, list[Answer]]:
        """A baseline's answers, by part of the traffic."""
        wanted = baseline(arrangement, self._slot.machine)
        if wanted not in self._known:
            server = self._slot.use(wanted)
            self._known[wanted] = {
                part: answers(server.generate_all(make(), at_once_with_penalties(arrangement, part)))
                for part, make in PARTS.items()
                if part != "grammar" or self._slot.machine.grammars
            }
            server.assert_healthy()
        return self._known[wanted]

    def accepted(self, arrangement: Arrangement) -> list[float]:
        """Static EAGLE-3's mean accepted tokens per step, for each request of the streams."""
        if arrangement not in self._accepted:
            server = self._slot.use(static_eagle(arrangement, self._models))
            replies = server.generate_all(streams())
            self._accepted[arrangement] = [reply["meta_info"]["spec_accept_length"] for reply in replies]
            server.assert_healthy()
        return self._accepted[arrangement]
