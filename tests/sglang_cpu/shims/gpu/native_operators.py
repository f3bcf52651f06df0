"""Norms, activations and rotary embeddings in plain torch: the fused kernels are made for half precision, and the tests
compare in float32. SGLang brings both; a CUDA graph captures either.
"""

from __future__ import annotations

from typing import Any

from import_hooks import after_import


@after_import("sglang.srt.layers.utils.multi_platform")
def _choose_native(module: Any) -> None:
    module.MultiPlatformOp.dispatch_forward = lambda operator: operator.forward_native
