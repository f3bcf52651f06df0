"""The target's plain decode in 0.5.9 and 0.5.12.post1: an attention backend, and CUDA graphs, beside the verify's.

A speculating server sizes its attention backend for a tree of drafts and captures verify graphs only
(sglang/srt/model_executor/cuda_graph_runner.py). Here both are built once more from arguments without speculation,
as a plain server would build them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from patched_worker.plain_graph import announce, free_gb


def capture(target: Any) -> tuple[Any, Any]:
    """The graph runner and the attention backend of the plain decode; no runner where the server runs eagerly.

    The backend is a second one, because captured graphs keep the addresses of their backend's buffers.

    Args:
        target: the target's ModelRunner, after SGLang has captured its own graphs.
    """
    kept = target.attn_backend, target.init_new_workspace
    with _without_speculation(target):
        try:
            backend = target._get_attention_backend(init_new_workspace=True)
            target.attn_backend = backend  # where capturing looks for it
            runner = None if target.graph_runner is None else _captured(target)
        finally:
            target.attn_backend, target.init_new_workspace = kept
    return runner, backend


def _captured(target: Any) -> Any:
    began = time.perf_counter(), free_gb(target)
    runner = type(target.graph_runner)(target)
    announce(runner, target, *began)
    return runner


@contextmanager
def _without_speculation(target: Any) -> Iterator[None]:
    """SGLang's arguments as without speculation, for as long as something is built from them.

    Hidden states are asked for, because the draft needs them: graphs captured without would be captured again on
    first use.
    """
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    arguments = target.server_args
    plain = {
        "speculative_algorithm": None,
        "speculative_num_steps": None,
        "speculative_num_draft_tokens": None,
        "speculative_eagle_topk": None,
        "enable_return_hidden_states": True,
    }
    kept = {name: getattr(arguments, name) for name in plain}
    algorithm = target.spec_algorithm
    try:
        target.spec_algorithm = SpeculativeAlgorithm.NONE
        for name, value in plain.items():
            setattr(arguments, name, value)
        yield
    finally:
        target.spec_algorithm = algorithm
        for name, value in kept.items():
            setattr(arguments, name, value)
