"""Which of this machine's GPUs a server runs on, so that a neighbour's are not measured with them.

SGLang puts rank i on the CUDA device base_gpu_id + i * gpu_id_step, and CUDA counts the devices that
CUDA_VISIBLE_DEVICES leaves, in its order. Where arguments or environment are not known, all GPUs that may be meant are
named, and the words beside them say so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.records import Gpu, ServerGpus

VISIBLE = "CUDA_VISIBLE_DEVICES"


def nvml() -> Any:
    """NVIDIA's module, ready to be asked; None without driver, library or GPU."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return pynvml if pynvml.nvmlDeviceGetCount() else None
    except (ImportError, OSError):
        return None
    except pynvml.NVMLError:
        return None


def machine_gpus() -> tuple[Gpu, ...]:
    """The GPUs of this machine by NVML's numbers, which are in PCI order; () where there is none."""
    module = nvml()
    if module is None:
        return ()
    return tuple(Gpu(index, _uuid(module, index)) for index in range(module.nvmlDeviceGetCount()))


def _uuid(module: Any, index: int) -> str:
    try:
        uuid = module.nvmlDeviceGetUUID(module.nvmlDeviceGetHandleByIndex(index))
    except module.NVMLError:
        return ""
    return uuid.decode() if isinstance(uuid, bytes) else str(uuid)


def server_gpus(machine: Sequence[Gpu], env: Mapping[str, str] | None, info: Mapping[str, Any] | None) -> ServerGpus:
    """The GPUs that a server on this machine runs on.

    Args:
        machine: what `machine_gpus` says.
        env: the server's environment; None where it cannot be read.
        info: its /server_info, with SGLang's names of arguments; None where it has none.
    """
    if not machine:
        return ServerGpus()
    if env is None:
        return ServerGpus(tuple(machine), "all of this machine: the server's environment cannot be read")
    visible = visible_gpus(env.get(VISIBLE), machine)
    if visible is None:
        return ServerGpus(tuple(machine), f"all of this machine: {VISIBLE}={env[VISIBLE]} names parts of GPUs")
    ordinals = _ordinals(info or {})
    if ordinals is None:
        return ServerGpus(visible, f"all that {VISIBLE} leaves: the server does not say how many it uses")
    return ServerGpus(tuple(visible[i] for i in ordinals if i < len(visible)), "the server's arguments and environment")


def visible_gpus(text: str | None, machine: Sequence[Gpu]) -> tuple[Gpu, ...] | None:
    """What CUDA_VISIBLE_DEVICES leaves, in its order; None where it names MIG slices.

    As CUDA reads it: numbers, or UUIDs that may be cut short; the first entry that names nothing ends the list.
    """
    if text is None:
        return tuple(machine)
    left: list[Gpu] = []
    for entry in (word.strip() for word in text.split(",")):
        if entry.startswith("MIG-"):
            return None
        found = [
            gpu
            for gpu in machine
            if entry == str(gpu.index) or (entry[:4] == "GPU-" and gpu.uuid[: len(entry)] == entry)
        ]
        if len(found) != 1:
            break
        left += found
    return tuple(dict.fromkeys(left))


def _ordinals(info: Mapping[str, Any]) -> list[int] | None:
    """The CUDA devices of a server's ranks on its first node; None where it does not say how many ranks it has."""
    number = {name: value for name, value in info.items() if type(value) is int and 0 <= value <= 1 << 16}
    if not number.get("tp_size"):
        return None
    ranks = number["tp_size"] * number.get("pp_size", 1)
    if info.get("enable_dp_attention") is not True:  # with it, the copies share the tensor-parallel ranks
        ranks *= number.get("dp_size", 1)
    here = max(1, ranks // max(1, number.get("nnodes", 1)))
    base, step = number.get("base_gpu_id", 0), number.get("gpu_id_step", 1)
    return [base + i * step for i in range(here)]
