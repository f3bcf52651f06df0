"""Where a run was made: host, processor, GPUs, driver, versions. Runs on different hardware are never compared."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

import psutil

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
