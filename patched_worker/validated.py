"""What was validated where: the one place that `specpivot doctor` and docs/patched-worker.md tell from.

A row is added when its tests have run there (`tests/sglang_cpu`); what has no row may work, and nobody has looked.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields

NO_KERNELS = "triton, kernels in torch"
LLAMA = "Llama with EAGLE-3, float32"
ALIKE = "tokens and draft KV exact"


@dataclass(frozen=True, slots=True)
class Validation:
    """One arrangement that was tried against servers that do not switch.

    Attributes:
        release: SGLang's version.
        worker: its class.
        device: where it ran.
        attention: attention backend, and what stood in for its kernels.
        model: architecture, kind of draft, and type of the weights.
        covers: what was compared.
    """

    release: str
    worker: str
    device: str
    attention: str
    model: str
    covers: str

    def __str__(self) -> str:
        return f"{self.worker} on {self.device}, {self.attention}, {self.model}: {self.covers}"


VALIDATED = (
    Validation("0.5.9", "EAGLEWorker", "CPU", NO_KERNELS, LLAMA, f"{ALIKE}; draft trees (topk 4)"),
    Validation("0.5.9", "EAGLEWorkerV2", "CPU", NO_KERNELS, LLAMA, f"{ALIKE}; no penalties, no log-probabilities"),
    Validation(
        "0.5.12.post1",
        "EAGLEWorker",
        "CPU",
        NO_KERNELS,
        LLAMA,
        f"{ALIKE}; draft trees (topk 4); 2 tensor-parallel ranks",
    ),
    Validation("0.5.12.post1", "EAGLEWorkerV2", "CPU", NO_KERNELS, LLAMA, ALIKE),
    Validation("0.5.16", "EAGLEWorkerV2", "CPU", NO_KERNELS, LLAMA, f"{ALIKE}; 2 tensor-parallel ranks"),
    Validation("0.5.23", "EAGLEWorkerV2", "CPU", NO_KERNELS, LLAMA, ALIKE),
)


def by_release() -> dict[str, tuple[str, ...]]:
    """One line per validated arrangement, under its release."""
    return {one.release: tuple(str(other) for other in VALIDATED if other.release == one.release) for one in VALIDATED}


def markdown() -> str:
    """The table of docs/patched-worker.md."""
    names = [field.name for field in fields(Validation)]
    rows = [names, ["---"] * len(names), *(list(astuple(one)) for one in VALIDATED)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
