"""Test-only looks into a server: which worker class serves EAGLE."""

from __future__ import annotations

from typing import Any

from import_hooks import after_import


@after_import("sglang.srt.speculative.eagle_worker", "sglang.srt.speculative.eagle_worker_v2")
def _say_which_worker(module: Any) -> None:
    """One line in the log for each EAGLE worker that is made, patched or not: the tests' own proof of the class."""
    for name in ("EAGLEWorker", "EAGLEWorkerV2"):
        worker = vars(module).get(name)
        if worker is None or worker.__module__ != module.__name__:
            continue

        def made(self: Any, *args: Any, _name: str = name, _original: Any = worker.__init__, **kwargs: Any) -> None:
            print(f"probe: worker {_name}", flush=True)
            _original(self, *args, **kwargs)

        worker.__init__ = made
