"""Where a run was made: host, processor, GPUs, driver, versions. Runs on different hardware are never compared."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from harness.procfs import host_ticks

# Chosen before start, they decide which worker class runs, what is accepted, or which kernels are used.
SERVER_ENV_PREFIXES = ("SGLANG_", "SPECPIVOT_", "NCCL_", "CUDA_VISIBLE_DEVICES", "TORCHINDUCTOR_", "TRITON_")
SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL")


def collect_environment() -> dict[str, Any]:
    """Facts about this machine, as JSON."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": _cpu_model(),
        "cpu_cores": len(os.sched_getaffinity(0)),
        "cpu_topology": cpu_topology(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpus": gpus(),
        "driver": _driver(),
        "packages": {name: version for name in ("specpivot", "sglang", "torch") if (version := installed(name))},
    }


def gpus() -> list[dict[str, Any]]:
    """Name, memory and compute capability of each GPU; [] where there is none."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no driver, no library: whatever it is, there is no NVIDIA GPU to be used
        return []
    return [_gpu(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]


def _gpu(nvml: Any, index: int) -> dict[str, Any]:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    memory_gib = nvml.nvmlDeviceGetMemoryInfo(handle).total / 2**30
    return {"name": _text(nvml.nvmlDeviceGetName(handle)), "memory_gib": round(memory_gib), "sm": f"{major}{minor}"}


def _driver() -> str | None:
    try:
        import pynvml

        pynvml.nvmlInit()
        return _text(pynvml.nvmlSystemGetDriverVersion())
    except Exception:  # as in gpus()
        return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def installed(package: str) -> str | None:
    """Its installed version, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def server_environment(env: dict[str, str]) -> dict[str, str]:
    """The variables of `env` that change what a server does, without secrets."""
    return {
        name: value
        for name, value in sorted(env.items())
        if name.startswith(SERVER_ENV_PREFIXES) and not any(word in name.upper() for word in SECRET_WORDS)
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")


def cpu_topology(system: Path = Path("/sys/devices/system")) -> dict[str, Any]:
    """How a host's CPUs hang together, which explains repeats that differ; None where the kernel does not show it.

    As the kernel sees it (its Documentation/admin-guide/cputopology.rst): a virtual machine may be shown none of the
    hyperthreads, sockets and nodes that it is spread over.

    Returns:
        logical_cpus, cores, threads_per_core (the most that one core has), sockets, numa_nodes; steal_since_boot is the
        share of all CPU time that the hypervisor gave to others, 0 also where it does not tell.
    """
    # The older of two names for the threads of one core, which kernels of every age have.
    cores = Counter(_texts(system, "cpu/cpu[0-9]*/topology/thread_siblings_list"))
    ticks = host_ticks()
    return {
        "logical_cpus": cores.total() or None,
        "cores": len(cores) or None,
        "threads_per_core": max(cores.values(), default=None),
        "sockets": len(set(_texts(system, "cpu/cpu[0-9]*/topology/physical_package_id"))) or None,
        "numa_nodes": len(list(system.glob("node/node[0-9]*"))) or None,
        "steal_since_boot": None if ticks is None else round(ticks.stolen / ticks.total, 6),
    }


def _texts(system: Path, pattern: str) -> list[str]:
    found = []
    for file in system.glob(pattern):
        with suppress(OSError):  # a CPU that is taken offline meanwhile
            found.append(file.read_text().strip())
    return found
