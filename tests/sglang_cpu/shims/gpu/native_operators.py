"""Norms, activations and rotary embeddings in plain torch: not every fused kernel is made for float32, in which the
tests compare. SGLang brings both; a CUDA graph captures either.
"""

from __future__ import annotations

from typing import Any

from import_hooks import after_import


@after_import("sglang.srt.layers.utils.multi_platform")
def _choose_native(module: Any) -> None:
    module.MultiPlatformOp.dispatch_forward = lambda operator: operator.forward_native
