"""Captured CUDA-graph sizes: SGLang's own adaptive mode routes a batch by the size it is padded to.

With slot key N+1 a batch is off when the next captured size is N+1 or more (`_route` and `_pad_to_cuda_graph_bs` in
sglang/srt/speculative/adaptive_spec_params.py), so everything above the largest captured size <= N is already off.
The patched worker looks at the batch itself and rounds nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MAX_COUNT = 2**31  # of requests or tokens: more is not a count


def captured_sizes(server_args: Mapping[str, Any]) -> tuple[int, ...]:
    """Decode batch sizes with a captured graph, as the server reports its arguments; () where it does not say."""
    if server_args.get("disable_cuda_graph"):
        return ()
    sizes = server_args.get("cuda_graph_bs_decode") or server_args.get("cuda_graph_bs")
    return tuple(sorted(size for size in sizes if whole(size))) if isinstance(sizes, list) else ()


def whole(value: Any) -> int | None:
    """A count as a server reports it; None where it reports anything else."""
    return value if type(value) is int and 1 <= value <= MAX_COUNT else None


def pads_batches(server_args: Mapping[str, Any]) -> bool:
    """Whether this server switches by SGLang's own adaptive mode, which rounds."""
    return bool(server_args.get("speculative_adaptive")) and "speculative_disable_batch_threshold" not in server_args


def effective_threshold(threshold: int | None, sizes: tuple[int, ...]) -> int | None:
    """Largest decode batch that still speculates once batches are padded to `sizes`.

    Args:
        threshold: the wanted one; 0 never, None always.
        sizes: captured sizes, rising; () pads nothing.
    """
    if threshold is None or not sizes or threshold >= sizes[-1]:
        return threshold
    return max((size for size in sizes if size <= threshold), default=0)
