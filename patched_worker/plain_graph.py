"""The target's plain decode as a CUDA graph of its own, beside the verify that SGLang captures when a draft is set.

SGLang's runner chooses TARGET_VERIFY as soon as a draft is configured (DecodeCudaGraphRunner.__init__) and builds a
verify input for it (get_spec_info). Ours pins the forward mode and the capture of hidden states, and has no verify
input; everything else, buffers, padding, memory pool, is the stock runner's.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from patched_worker.settings import Refusal

logger = logging.getLogger(__name__)


def capture(model_runner: Any) -> tuple[Any, Any] | None:
    """The graph runner and the attention backend of the plain decode; None where the target runs without graphs.

    The backend is a second one, because graphs hold the addresses of their backend's metadata. It costs its buffers,
    the graphs share the process's memory pool and the logits buffer, which is sized for the wider verify.

    Args:
        model_runner: the target's, after SGLang has captured its own graphs.
    """
    from sglang.srt.model_executor.runner import decode_cuda_graph_runner as stock

    if not isinstance(model_runner.decode_cuda_graph_runner, stock.DecodeCudaGraphRunner):
        return None
    began = time.perf_counter(), free_gb(model_runner)
    kept = model_runner.attn_backend, model_runner.init_new_workspace
    try:
        backend = model_runner._get_attention_backend(init_new_workspace=True)
        model_runner.attn_backend = backend  # where 0.5.16 looks for the hook that follows the warm-up
        runner = _runner_class(stock.DecodeCudaGraphRunner)(
            model_runner, attn_backend=backend, speculative_num_steps=0, speculative_num_draft_tokens=1
        )
    finally:
        model_runner.attn_backend, model_runner.init_new_workspace = kept
    announce(runner, model_runner, *began)
    return runner, backend


def announce(runner: Any, model_runner: Any, began_s: float, free_before_gb: float) -> None:
    """Log what the plain decode's graphs took of start-up time and memory, once they are what was asked for.

    Args:
        runner: SGLang's graph runner, after its capture.
        model_runner: the target's.
        began_s: perf_counter before the capture.
        free_before_gb: `free_gb` then.

    Raises:
        Refusal: SGLang captured another forward; its replay would answer with wrong tokens, or capture again.
    """
    mode, hidden = runner.capture_forward_mode, runner.capture_hidden_mode
    if not (mode.is_decode() and hidden.is_full()):
        raise Refusal(f"captured {mode} with hidden states {hidden} for the plain decode; pass --disable-cuda-graph")
    logger.info(
        "specpivot: captured plain decode for batches %s in %.1f s, %.2f GB",
        runner.capture_bs,
        time.perf_counter() - began_s,
        free_before_gb - free_gb(model_runner),
    )


def _runner_class(base: Any) -> Any:
    from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardMode

    class PlainDecodeGraphRunner(base):  # type: ignore[misc]  # SGLang's class is known at run time only
        @property
        def capture_forward_mode(self) -> Any:
            return ForwardMode.DECODE

        @capture_forward_mode.setter
        def capture_forward_mode(self, mode: Any) -> None:
            """The stock constructor asks for TARGET_VERIFY; it does not get it."""

        @property
        def capture_hidden_mode(self) -> Any:
            return CaptureHiddenMode.FULL  # the draft needs the hidden state of every token

        @capture_hidden_mode.setter
        def capture_hidden_mode(self, mode: Any) -> None:
            """The stock constructor and its recapture ask for less; they do not get it."""

        def get_spec_info(self, num_tokens: int) -> None:
            return None

    return PlainDecodeGraphRunner


def free_gb(model_runner: Any) -> float:
    """Memory that is free on the model's GPU, in GB."""
    from sglang.srt.utils.common import get_available_gpu_memory

    free: float = get_available_gpu_memory(model_runner.device, model_runner.gpu_id)
    return free
