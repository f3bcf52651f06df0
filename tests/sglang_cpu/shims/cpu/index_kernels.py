"""The three Triton index kernels that cost most in its interpreter, in torch, launched as `kernel[grid](...)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor


class NotCovered(Exception):
    """A case that is left to the kernel itself."""


class Kernel:
    """Stands in for a `triton.jit` function; what the torch version does not cover goes to the original."""

    def __init__(self, function: Callable[..., None], original: Any) -> None:
        self.function = function
        self.original = original

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*args: Any, **kwargs: Any) -> None:
            try:
                self.function(grid, *args, **kwargs)
            except NotCovered:
                self.original[grid](*args, **kwargs)

        return launch


def _only_defaults(extra: tuple[Any, ...], options: dict[str, Any]) -> None:
    given = {name: value for name, value in options.items() if name not in ("ENTRY_PAGE_SIZE", "NUM_STEPS")}
    if (
        any(extra)
        or options.get("ENTRY_PAGE_SIZE", 1) != 1
        or any(v is not None and v is not False for v in given.values())
    ):
        raise NotCovered


def generate_draft_decode_kv_indices(
    grid: tuple[int, int, int],
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    seq_lens: Tensor,
    kv_indices: Tensor,
    kv_indptr: Tensor,
    positions: Tensor,
    row_stride: int,
    indices_stride: int,
    indptr_stride: int,
    *sizes: int,
    **options: Any,
) -> None:
    """For each draft step and branch: the slots of the prefix, then those of the branch's own tokens so far."""
    steps, requests, topk = grid
    page_size = sizes[3] if len(sizes) > 3 else options.pop("page_size", 1)
    if page_size != 1 and topk != 1:
        raise NotCovered
    _only_defaults(sizes[4:], options)
    lengths, pools, ends = seq_lens.tolist(), req_pool_indices.tolist(), positions.tolist()
    indices, indptr = kv_indices.view(-1), kv_indptr.view(-1)
    for step in range(steps):
        own, before = step + 1, 0
        for request in range(requests):
            slots, length = req_to_token[pools[request]], lengths[request]
            for branch in range(topk):
                at = step * indices_stride + (before + request * own) * topk + branch * (length + own)
                indices[at : at + length] = slots[:length]
                first = length + branch * steps
                indices[at + length : at + length + own] = slots[first : first + own]
                row = request * topk + branch or requests * topk  # row 0 holds the total, as in the kernel
                indptr[step * indptr_stride + row] = sum(ends[:row]) + row * own
            before += length


def assign_req_to_token_pool(
    grid: tuple[int],
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start: Tensor,
    end: Tensor,
    slots: Tensor,
    *sizes: int,
) -> None:
    """Write each request's new slots into its row of the request-to-token table."""
    at = 0
    for pool, first, last in zip(req_pool_indices.tolist(), start.tolist(), end.tolist(), strict=True):
        req_to_token[pool, first:last] = slots[at : at + last - first].to(req_to_token.dtype)
        at += last - first


def create_flashinfer_kv_indices_triton(
    grid: tuple[int, ...],
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    lengths: Tensor,
    kv_indptr: Tensor,
    start: Tensor | None,
    out: Tensor,
    row_stride: int,
    *extra: Any,
    **options: Any,
) -> None:
    """Gather each request's slots from `start` on into one flat list."""
    _only_defaults(extra, options)
    counts, offsets = lengths.tolist(), kv_indptr.tolist()
    starts = [0] * len(counts) if start is None else start.tolist()
    for request, pool in enumerate(req_pool_indices.tolist()[: grid[0]]):
        count, at, first = counts[request], offsets[request], starts[request]
        out[at : at + count] = req_to_token[pool, first : first + count].to(out.dtype)


KERNELS: dict[str, Callable[..., None]] = {
    function.__name__: function
    for function in (generate_draft_decode_kv_indices, assign_req_to_token_pool, create_flashinfer_kv_indices_triton)
}
