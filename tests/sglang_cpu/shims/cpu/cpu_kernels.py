"""What SGLang's CPU engine lacks for EAGLE, patched in right after the module concerned is imported.

Attention and index kernels are Triton's, run by its interpreter; those that take most of the time there have
equivalents in torch (`dense_attention`, `index_kernels`). Tree building and verification are `sgl_kernel`'s, whose
wheel needs CUDA: a Python version of the few functions stands in the package of that name beside this file.
"""

from __future__ import annotations

from typing import Any

from import_hooks import after_import


@after_import("torch")
def _streams_are_one(torch: Any) -> None:
    torch.Tensor.record_stream = lambda tensor, stream: None


@after_import("torch.cuda")
def _nothing_to_wait_for(cuda: Any) -> None:
    cuda.synchronize = lambda *args, **kwargs: None


@after_import("sglang.srt.speculative.eagle_utils")
def _tree_kernels(module: Any) -> None:
    """Up to 0.5.12 the CUDA branch is the only one; later releases have one for a CPU, made for another backend."""
    import sgl_kernel

    if hasattr(module, "default_tree_mask_mode"):
        module.default_tree_mask_mode = lambda: module.TreeMaskMode.FULL_MASK  # what triton attention reads
        return
    module._is_cuda = True
    module.sgl_build_tree_kernel_efficient = sgl_kernel.build_tree_kernel_efficient


@after_import("sglang.srt.speculative.eagle_info", "sglang.srt.speculative.eagle_info_v2")
def _sampling_kernels(module: Any) -> None:
    import sgl_kernel

    for name in ("top_k_renorm_prob", "top_p_renorm_prob", "tree_speculative_sampling_target_only"):
        setattr(module, name, getattr(sgl_kernel, name))
    if module.__name__.endswith("eagle_info"):
        module.TREE_SPEC_KERNEL_AVAILABLE = True
    else:
        module._is_cuda = True


_ATTENTION = ("sglang.srt.layers.attention.triton_ops", "sglang.kernels.ops.attention")


@after_import(*(f"{package}.{name}_attention" for package in _ATTENTION for name in ("decode", "extend")))
def _attention_kernels(module: Any) -> None:
    import dense_attention

    name = module.__name__.rpartition(".")[2] + "_fwd"
    setattr(module, name, getattr(dense_attention, name))


@after_import(
    "sglang.srt.speculative.spec_utils",
    "sglang.srt.speculative.triton_ops.cache_locs",
    "sglang.srt.layers.attention.utils",
    "sglang.kernels.ops.speculative.cache_locs",
    "sglang.kernels.ops.attention.kv_indices",
)
def _index_kernels(module: Any) -> None:
    import index_kernels

    for name, function in index_kernels.KERNELS.items():
        if hasattr(module, name):
            setattr(module, name, index_kernels.Kernel(function, getattr(module, name)))


@after_import("sglang.srt.arg_groups.speculative_hook")
def _overlap_on_cpu(module: Any) -> None:
    """0.5.16 switches the overlap scheduler off on a CPU; the tests are about the worker that runs under it."""
    if not hasattr(module, "_disable_overlap_schedule_for_cpu"):
        return
    import torch

    class Event:
        """An event of the only stream there is: always reached."""

        def __init__(self, *args: object, **kwargs: object) -> None:
            pass

        def record(self, *args: object, **kwargs: object) -> None:
            pass

        wait = record

        def synchronize(self) -> None:
            pass

        def query(self) -> bool:
            return True

    module._disable_overlap_schedule_for_cpu = lambda server_args: None
    torch.cpu.Event = Event
    torch.cpu.Stream.wait_event = lambda stream, event: None
