"""Where the test servers run: the one place that knows how a server on a CPU differs from one on a GPU.

On a CPU every release has an environment of its own (`environments`), and shims stand in for the kernels. On a GPU
there is one release, the one that this Python finds, with its own kernels, CUDA graphs, streams and events.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from harness.environment import gpus
from tests.sglang_cpu import environments
from tests.sglang_cpu.environments import SHIMS, Environment

CAPTURED = ("1", "2", "4", "8")  # graphs up to half the running requests: the other half runs without
LARGEST_CAPTURED = int(CAPTURED[-1])
SERVER_BYTES = 4 << 30  # of memory, generously


@dataclass(frozen=True, slots=True)
class Machine:
    """How servers are started here, and what that changes for the tests.

    Attributes:
        releases: SGLang releases that can be served.
        environment: the interpreter and PYTHONPATH for one of them.
        arguments: what every server gets.
        baseline: what a server without speculation gets besides.
        variables: environment variables of every server.
        resident: servers that may run side by side.
        all_at_once: whether every server is started at the beginning; else those of an arrangement when one is asked
            for, as many as may run.
        ranks: tensor-parallel ranks that a server can have.
        start_timeout_s: how long a start may take.
        largest_graph: requests in the largest captured batch of every server; 0 without CUDA graphs.
        grammars: whether a grammar backend is installed.
        kv_tolerance: how far a KV value may be from that of another way to compute it.
    """

    name: str
    releases: tuple[str, ...]
    environment: Callable[[str], Environment]
    arguments: tuple[str, ...]
    baseline: tuple[str, ...]
    variables: tuple[tuple[str, str], ...]
    resident: int = 1
    all_at_once: bool = False
    ranks: int = 2
    start_timeout_s: float = 600.0
    largest_graph: int = 0
    grammars: bool = True
    kv_tolerance: float = 1e-4  # float32 matrix products of another shape


CPU = Machine(
    name="cpu",
    releases=environments.RELEASES,
    environment=environments.build,
    arguments=(
        *("--device", "cpu", "--disable-cuda-graph", "--grammar-backend", "llguidance"),
        "--sleep-on-idle",  # a spinning idle scheduler would take one of two cores
    ),
    baseline=("--attention-backend", "torch_native"),  # shares no kernel stand-in with the others
    variables=(
        ("SGLANG_USE_CPU_ENGINE", "1"),
        ("TRITON_INTERPRET", "1"),  # before the first import of triton
        ("TORCHDYNAMO_DISABLE", "1"),  # compiling needs a C++ compiler and takes minutes
        ("CUDA_VISIBLE_DEVICES", ""),
        ("SGLANG_NCCL_SO_PATH", "none"),  # PyPI's torch brings NCCL, which two ranks would take and which wants a GPU
        ("OMP_NUM_THREADS", "1"),
    ),
    resident=3 if psutil.virtual_memory().available > 3 * SERVER_BYTES else 1,
)
REHEARSAL = replace(CPU, name="rehearsal", all_at_once=True)  # what the GPU runs, servers side by side, on a CPU


def gpu() -> Machine:
    """The GPU of this machine, with the SGLang that this Python finds."""
    release = _installed_release()
    grammars = importlib.util.find_spec("llguidance") is not None
    return Machine(
        name="gpu",
        releases=() if release is None or not gpus() else (release,),
        environment=_own_environment,
        arguments=(
            *("--sampling-backend", "pytorch", "--grammar-backend", "llguidance" if grammars else "none"),
            *("--cuda-graph-bs", *CAPTURED, "--disable-piecewise-cuda-graph"),
        ),
        baseline=("--attention-backend", "triton"),
        variables=(
            ("NVIDIA_TF32_OVERRIDE", "0"),  # all of float32 in matrix products,
            ("TRITON_F32_DEFAULT", "ieee"),  # and in Triton's
            ("TORCHDYNAMO_DISABLE", "1"),  # compiling costs half of a start
            ("SGLANG_IS_FLASHINFER_AVAILABLE", "false"),
            ("PYTHONUNBUFFERED", "1"),
        ),
        resident=8,
        all_at_once=True,
        ranks=len(gpus()),
        start_timeout_s=200.0,
        largest_graph=LARGEST_CAPTURED,
        grammars=grammars,
        kv_tolerance=1e-3,  # reductions in another order, over rows of magnitude 1 to 30
    )


def _installed_release() -> str | None:
    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return None


def _own_environment(release: str) -> Environment:
    found = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return Environment(release, Path(sys.executable), (SHIMS / "gpu", SHIMS, *(Path(one) for one in found if one)))
