"""Every move of every server's autopilot, as RESULTS/.service/audit/NAME.jsonl: when, from what to what, and why.

A server tells its last moves only, counted in its own decode steps. The service notes each one when it first sees it,
so the log outlives the server, and the time is that of the wall clock.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from tuner.service.answers import AuditedMove, Move
from tuner.service.names import STATE
from tuner.service.store import make_folder
from tuner.service.workerblock import Shown

MAX_SHOWN = 1000


class _Line(msgspec.Struct, frozen=True):
    """One move. `life` names the server process that made it, `step` when it did."""

    life: str
    step: int
    at_s: float
    old: int
    new: int
    interval: tuple[float | None, float | None]
    reason: str
    dry_run: bool


class Audit:
    """The logs of all servers; used from the event loop's thread alone."""

    def __init__(self, results: Path) -> None:
        self._folder = make_folder(results / STATE / "audit")
        self._last: dict[str, _Line | None] = {}
        self._steps: dict[str, int] = {}

    def note(self, server: str, life: str, shown: Shown, now_s: float) -> Move | None:
        """Write down the moves that are new.

        Args:
            server: its name.
            life: what tells its process from another one.
            shown: what it says of its autopilot.
            now_s: seconds since 1970.

        Returns:
            Its last move, new or not.

        Raises:
            OSError: it could not be written.
        """
        if server not in self._last:
            lines = self._read(server)
            self._last[server] = lines[-1] if lines else None
        last = self._last[server]
        again = shown.steps < self._steps.get(server, 0)  # another process, with the same arguments
        self._steps[server] = shown.steps
        known = -1 if again or last is None or last.life != life else last.step
        new = [
            _Line(life, move.step, now_s, move.old, move.new, shown.interval, move.reason, move.dry_run)
            for move in shown.moves
            if move.step > known
        ]
        if new:
            with self._file(server).open("ab") as log:
                log.write(b"".join(msgspec.json.encode(line) + b"\n" for line in new))
            last = self._last[server] = new[-1]
        return None if last is None else Move(last.at_s, last.old, last.new, last.reason)

    def moves(self, server: str) -> list[AuditedMove]:
        """A server's last moves, newest last."""
        return [
            AuditedMove(line.at_s, line.old, line.new, _thresholds(line.interval), line.reason, line.dry_run)
            for line in self._read(server)[-MAX_SHOWN:]
        ]

    def _read(self, server: str) -> list[_Line]:
        try:
            content = self._file(server).read_bytes()
        except FileNotFoundError:
            return []
        found = []
        for line in content.splitlines():
            try:
                found.append(msgspec.json.decode(line, type=_Line))
            except (msgspec.DecodeError, UnicodeDecodeError):  # cut off by a crash
                continue
        return found

    def _file(self, server: str) -> Path:
        return self._folder / f"{server}.jsonl"


def _thresholds(interval: tuple[float | None, float | None]) -> list[int | None] | None:
    """The interval's ends as thresholds; None where nothing is known."""
    low, high = interval
    return None if low is None and high is None else [int(low or 0), None if high is None else int(high)]
