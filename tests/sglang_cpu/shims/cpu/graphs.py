"""With SPECPIVOT_TEST_GRAPHS=1 plain steps replay graphs on a CPU: SGLang's own runner, with its buffers, padding and
attention metadata; only what it captures is not a CUDA graph but the recorded function, run again into the outputs of
its capture, since that is where a replay writes them. The verify stays eager.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

from import_hooks import after_import

SIZES = [1, 2, 4, 8]


class Graph:
    """One captured batch size."""

    def capture(self, run: Callable[[], Any], attn_backend: Any) -> Any:
        self._run, self._attn_backend = run, attn_backend
        self._outputs = run()
        self._metadata = attn_backend.forward_metadata  # a graph keeps the addresses of its capture
        return self._outputs

    def replay(self) -> Any:
        self._attn_backend.forward_metadata = self._metadata
        fresh = self._run()
        for name in ("next_token_logits", "hidden_states"):
            getattr(self._outputs, name).copy_(getattr(fresh, name))
        return self._outputs


class Backend:
    """What 0.5.16's runner captures and replays with."""

    def __init__(self, runner: Any) -> None:
        self._attn_backend = runner.attn_backend
        self._graphs: dict[Any, Graph] = {}

    def capture_session(self, stream: object) -> AbstractContextManager[None]:
        return nullcontext()

    def replay_session(self) -> AbstractContextManager[None]:
        return nullcontext()

    def capture_one(self, key: Any, run: Callable[[], Any], **options: object) -> None:
        self._graphs[key] = Graph()
        self._graphs[key].capture(run, self._attn_backend)

    def can_run(self, batch: object, key: Any) -> bool:
        return key in self._graphs

    def cleanup(self) -> None:
        self._graphs.clear()

    def replay(self, key: Any, batch: object) -> Any:
        return self._graphs[key].replay()


def _attn_backend(runner: Any) -> Any:
    """0.5.9's runner takes the model's; it is the plain decode's while plain graphs are captured and replayed."""
    return getattr(runner, "attn_backend", None) or runner.model_runner.attn_backend


def _graph_config(target: Any) -> Any:
    try:
        from sglang.srt.runtime_context import get_exec
    except ImportError:  # up to 0.5.16 or so it is among the server's arguments
        return target.server_args.cuda_graph_config
    return get_exec().graph.cuda_graph_config


def _no_stream(stream: object = None) -> AbstractContextManager[Any]:
    return nullcontext(SimpleNamespace(stream=None))


if os.environ.get("SPECPIVOT_TEST_GRAPHS") == "1":

    @after_import("sglang.srt.model_executor.cuda_graph_runner")
    def _early_runner(module: Any) -> None:
        module.graph_capture = _no_stream
        module.get_global_graph_memory_pool = lambda: "the only one"
        runner = module.CudaGraphRunner
        runner._create_device_graph = lambda self: Graph()
        runner._capture_graph = lambda self, graph, pool, stream, run: graph.capture(run, _attn_backend(self))

    @after_import("patched_worker.plain_graph_early")
    def _capture_early(module: Any) -> None:
        original = module.capture

        def capture(target: Any) -> Any:
            from sglang.srt.model_executor.cuda_graph_runner import CudaGraphRunner

            target.graph_runner = object.__new__(CudaGraphRunner)  # a server without graphs has none to build alike
            target.server_args.cuda_graph_bs = list(SIZES)
            try:
                return original(target)
            finally:
                target.graph_runner = None

        module.capture = capture

    @after_import("sglang.srt.model_executor.runner.decode_cuda_graph_runner")
    def _current_runner(module: Any) -> None:
        module.graph_capture = _no_stream
        module.resolve_decode_backend = Backend
        module.get_or_create_global_graph_capture_stream = lambda: None  # 0.5.23, and the next line
        module.torch.cpu.is_current_stream_capturing = lambda: False

    @after_import("patched_worker.plain_graph")
    def _capture_current(module: Any) -> None:
        original = module.capture

        def capture(target: Any) -> Any:
            import torch
            from sglang.srt.model_executor.runner.decode_cuda_graph_runner import DecodeCudaGraphRunner

            kept = target.decode_cuda_graph_runner
            target.decode_cuda_graph_runner = object.__new__(DecodeCudaGraphRunner)
            _graph_config(target).decode.bs = list(SIZES)
            target.graph_shared_output = SimpleNamespace(
                get_logits_buffer=lambda vocabulary, rows: torch.zeros((rows, vocabulary))
            )
            try:
                return original(target)
            finally:
                target.decode_cuda_graph_runner = kept

        module.capture = capture
