"""Which of this machine's GPUs a server runs on, so that a neighbour's are not measured with them.

SGLang puts rank i on the CUDA device base_gpu_id + i * gpu_id_step, and CUDA counts the devices that
CUDA_VISIBLE_DEVICES leaves, in its order; in a container, of those alone that the container was given. Where
arguments, environment or container are not known, all GPUs that may be meant are named, and the words beside them say
so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.records import Gpu, ServerGpus

VISIBLE = "CUDA_VISIBLE_DEVICES"
CONTAINER = "NVIDIA_VISIBLE_DEVICES"  # read by NVIDIA's container runtime, not by CUDA


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


def server_gpus(
    machine: Sequence[Gpu], env: Mapping[str, str] | None, info: Mapping[str, Any] | None, contained: bool = False
) -> ServerGpus:
    """The GPUs that a server on this machine runs on.

    Args:
        machine: what `machine_gpus` says.
        env: the server's environment; None where it cannot be read.
        info: its /server_info, with SGLang's names of arguments; None where it has none.
        contained: it runs in a container and we do not run in the same one, whose GPUs alone we would see.
    """
    if not machine:
        return ServerGpus()
    if env is None:
        return ServerGpus(tuple(machine), "all of this machine: the server's environment cannot be read")
    given, source = tuple(machine), "the server's arguments and environment"
    if contained:
        said = f"{CONTAINER}={env[CONTAINER]}" if CONTAINER in env else f"no {CONTAINER}"
        named = container_gpus(env.get(CONTAINER), machine)
        if named is None:
            return ServerGpus(given, f"all of this machine: the server's container has {said}")
        given, source = named, f"{source}, in a container with {said}"
    visible = visible_gpus(env.get(VISIBLE), given)
    if visible is None:
        whole = "all of its container" if contained else "all of this machine"
        return ServerGpus(given, f"{whole}: {VISIBLE}={env[VISIBLE]} names parts of GPUs")
    ordinals = _ordinals(info or {})
    if ordinals is None:
        return ServerGpus(visible, f"all that {VISIBLE} leaves: the server does not say how many it uses")
    return ServerGpus(tuple(visible[i] for i in ordinals if i < len(visible)), source)


def container_gpus(text: str | None, machine: Sequence[Gpu]) -> tuple[Gpu, ...] | None:
    """The GPUs that NVIDIA_VISIBLE_DEVICES gives a container, in this machine's order, as the container numbers them.

    None where that is not known: the variable is not set, or void or none (the GPUs, if any, came another way, such
    as CDI), or names MIG slices or a GPU that this machine does not have.
    """
    if text == "all":
        return tuple(machine)
    named = [_named(word.strip(), machine) for word in (text or "").split(",")]
    if any(gpu is None for gpu in named):
        return None
    return tuple(gpu for gpu in machine if gpu in named)


def _named(entry: str, gpus: Sequence[Gpu]) -> Gpu | None:
    """The one that a number or a UUID, perhaps cut short, names among those that can be seen."""
    found = [
        gpu
        for number, gpu in enumerate(gpus)
        if entry == str(number) or (entry[:4] == "GPU-" and gpu.uuid[: len(entry)] == entry)
    ]
    return found[0] if len(found) == 1 else None


def visible_gpus(text: str | None, given: Sequence[Gpu]) -> tuple[Gpu, ...] | None:
    """What CUDA_VISIBLE_DEVICES leaves of the GPUs that a process has, in its order; None where it names MIG slices.

    As CUDA reads it: numbers, or UUIDs that may be cut short; the first entry that names nothing ends the list.
    """
    if text is None:
        return tuple(given)
    left: list[Gpu] = []
    for entry in (word.strip() for word in text.split(",")):
        if entry.startswith("MIG-"):
            return None
        gpu = _named(entry, given)
        if gpu is None:
            break
        left.append(gpu)
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
