"""The real command line as a process, watched from outside as a person would, on machines however slow.

Conditions are waited for, never times; whatever a test forgets to end is killed at its end.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from harness.records import LevelRow
from harness.runfolder import RunFolder

ROOT = Path(__file__).parents[2]
PATIENCE_S = 200
WARMING_UP = "import specpivot; specpivot.main()"  # the command as it is
CODE = f"import harness.bench; harness.bench.WARM_UP_S = 0.2; {WARMING_UP}"  # 6 s, for each server not simulated
SIM = "h200-llama31-8b-illustrative"
QUICK = ("--warmup", "0.2", "--duration", "0.6", "--output-tokens", "8", "--input-tokens", "8")
LASTING = (*QUICK, "--duration", "2.5")  # where requests must begin in the window of a machine that stands still
# What a point may be called only because its machine was crowded, or stood still for seconds.
CROWDED = frozenset({"client_limited", "simulation_slipped", "unstable", "load_not_delivered", "no_requests"})


class Command:
    """`specpivot` with these arguments, running.

    Args:
        folder: where its output is kept, under a name of its own.
        words: arguments.
        env: added to ours.
        code: what Python is to run.
        how: further arguments of Popen.
    """

    def __init__(
        self, folder: Path, *words: str, env: dict[str, str] | None = None, code: str = CODE, **how: Any
    ) -> None:
        number = len(list(folder.glob("*.stderr")))
        self._out, self._err = folder / f"{number}.stdout", folder / f"{number}.stderr"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            environment = {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}
            self.process = subprocess.Popen(
                [sys.executable, "-c", code, *words],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=environment,
                **how,
            )

    def __enter__(self) -> Command:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.process.kill()
        self.process.wait()

    @property
    def told(self) -> str:
        """Standard error so far."""
        return self._err.read_text(errors="replace")

    @property
    def answer(self) -> dict[str, Any]:
        """The document that standard output ends with."""
        document: dict[str, Any] = json.loads(self._out.read_text().splitlines()[-1])
        return document

    @property
    def output(self) -> str:
        """Everything it wrote."""
        return self._out.read_text(errors="replace") + self.told

    def until(self, condition: Callable[[], object]) -> None:
        """Wait while it runs."""
        wait_until(condition, lambda: self.process.poll() is None or self.told)

    def says(self, words: str) -> None:
        """Wait until it has said this on standard error."""
        self.until(lambda: words in self.told)

    def end(self) -> int:
        """Wait for its end; its exit code."""
        code = self.process.wait(PATIENCE_S)
        assert "Traceback" not in self.told, self.told
        return code


def wait_until(condition: Callable[[], object], alive: Callable[[], object] = lambda: True) -> None:
    """Wait, as long as `alive` is True; anything else that it gives is the message."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        running = alive()
        assert running is True or condition(), running
        assert time.monotonic() < deadline
        time.sleep(0.02)


def run(folder: Path, *words: str, env: dict[str, str] | None = None, **how: Any) -> Command:
    """The command, ended; arguments are those of Command."""
    with Command(folder, *words, env=env, **how) as command:
        command.end()
    return command


def rows_of(run_folder: Path) -> list[LevelRow]:
    """Its points; [] where there is no run yet."""
    return RunFolder(run_folder).levels() if (run_folder / "manifest.json").exists() else []
