"""The off step of EAGLEWorkerV2."""

from __future__ import annotations

from patched_worker.control import Identity
from patched_worker.settings import Settings

VERSIONS: tuple[str, ...] = ()
TOUCHES: dict[str, tuple[str, ...]] = {}


def worker_class(base: type, identity: Identity, settings: Settings) -> type:
    """A subclass of SGLang's EAGLEWorkerV2; its instances carry their Control as `specpivot`."""
    raise NotImplementedError(base, identity, settings)
