"""SGLang's two Triton attention entry points in plain torch: exact, for models of a few hundred rows.

Same arguments as `extend_attention_fwd` and `decode_attention_fwd` of triton_ops; what is not implemented is refused,
so that a change of SGLang's shows as an error and not as other numbers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def _attend(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, scale: float, logit_cap: float) -> Tensor:
    """Softmax attention of q [rows, heads, dim] over k, v [keys, kv heads, dim]; visible is [rows, keys]."""
    group = q.shape[1] // k.shape[1]
    keys, values = (t.float().repeat_interleave(group, dim=1) for t in (k, v))
    scores = torch.einsum("rhd,khd->hrk", q.float(), keys) * scale
    if logit_cap:
        scores = logit_cap * torch.tanh(scores / logit_cap)
    if visible is not None:
        scores = scores.masked_fill(~visible, float("-inf"))
    return torch.einsum("hrk,khd->rhd", scores.softmax(dim=-1), values)


def _refuse_unless_plain(sinks: object, window: int | None, rest: dict[str, Any]) -> None:
    special = {
        name: value for name, value in rest.items() if name in ("skip_prefix", "skip_extend", "xai_temperature_len")
    }
    special.pop("xai_temperature_len", None)
    if sinks is not None or window not in (None, -1) or any(special.values()):
        raise NotImplementedError(f"attention on a CPU: sinks={sinks}, sliding_window_size={window}, {special}")


def extend_attention_fwd(
    q_extend: Tensor,
    k_extend: Tensor,
    v_extend: Tensor,
    o_extend: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    qo_indptr: Tensor,
    kv_indptr: Tensor,
    kv_indices: Tensor,
    custom_mask: Tensor | None,
    is_causal: bool,
    mask_indptr: Tensor | None,
    max_len_extend: int,
    *scales: float,
    sm_scale: float | None = None,
    logit_cap: float = 0.0,
    sliding_window_size: int | None = -1,
    sinks: Tensor | None = None,
    **rest: Any,
) -> None:
    """New rows over a cached prefix and one another, causally or by a custom mask; writes o_extend.

    `scales` is (sm_scale) in 0.5.9, (k_scale, v_scale, sm_scale) later.
    """
    _refuse_unless_plain(sinks, sliding_window_size, rest)
    scale = sm_scale or (scales[-1] if len(scales) in (1, 3) else q_extend.shape[-1] ** -0.5)
    rows, prefix = qo_indptr.tolist(), kv_indptr.tolist()
    for request in range(len(prefix) - 1):
        first, last = rows[request], rows[request + 1]
        slots = kv_indices[prefix[request] : prefix[request + 1]]
        new, old = last - first, slots.numel()
        if new == 0:
            continue
        visible = torch.ones(new, old + new, dtype=torch.bool)
        if custom_mask is not None:
            assert mask_indptr is not None
            start = int(mask_indptr[request])
            mask = custom_mask[start : start + visible.numel()].view(new, old + new).bool()
            visible[:, old:] = mask[:, old:]  # the prefix is always seen
        elif is_causal:
            visible[:, old:] = visible[:, old:].tril()
        keys, values = k_extend[first:last], v_extend[first:last]
        if old:  # without a prefix the new rows may have more heads than the cache, as latent attention's prefill has
            keys, values = torch.cat([k_buffer[slots], keys]), torch.cat([v_buffer[slots], values])
        o_extend[first:last] = _attend(q_extend[first:last], keys, values, visible, scale, logit_cap).to(o_extend.dtype)


def decode_attention_fwd(
    q: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    o: Tensor,
    kv_indptr: Tensor,
    kv_indices: Tensor,
    attn_logits: Tensor,
    attn_lse: Tensor,
    num_kv_splits: Tensor,
    max_kv_splits: int,
    sm_scale: float,
    *scales: float,
    logit_cap: float = 0.0,
    sinks: Tensor | None = None,
    **rest: Any,
) -> None:
    """One row per request over its cached keys; writes o."""
    _refuse_unless_plain(sinks, None, rest)
    prefix = kv_indptr.tolist()
    for row in range(q.shape[0]):
        slots = kv_indices[prefix[row] : prefix[row + 1]]
        if slots.numel():
            out = _attend(q[row : row + 1], k_buffer[slots], v_buffer[slots], None, sm_scale, logit_cap)
            o[row : row + 1] = out.to(o.dtype)
