"""What servers without speculation answer: the tokens that every other server is compared with."""

from __future__ import annotations

from pathlib import Path

from tests.sglang_cpu import servers
from tests.sglang_cpu.traffic import Answer, answers, streams


class References:
    """What a server without speculation answers, asked once per release."""

    def __init__(self, models: Path, logs: Path) -> None:
        self._models = models
        self._logs = logs
        self._known: dict[str, list[Answer]] = {}

    def of(self, release: str) -> list[Answer]:
        if release not in self._known:
            arguments = servers.baseline_arguments()
            with servers.serve(f"{release}-baseline", release, self._models, self._logs, arguments) as server:
                self._known[release] = answers(server.generate_all(streams()))
                server.assert_healthy()
        return self._known[release]
