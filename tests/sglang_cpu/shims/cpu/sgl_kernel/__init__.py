"""The functions of the `sgl_kernel` wheel that EAGLE calls, in Python, for batches of a few tiny trees.

Names and argument orders are the wheel's. Any other function of it fails when called.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def __getattr__(name: str) -> Callable[..., Any]:
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*args: object, **kwargs: object) -> Any:
        raise NotImplementedError(f"sgl_kernel.{name} has no CPU version here")

    return absent


# ---- trees -----------------------------------------------------------------------------------


def build_tree_kernel_efficient(
    parent_list: Tensor,
    selected_index: Tensor,
    seq_lens: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    retrieve_index: Tensor,
    next_token: Tensor,
    next_sibling: Tensor,
    topk: int,
    depth: int,
    num_tokens: int,
    mask_mode: int = 0,
) -> None:
    """Fill mask, positions and child/sibling links of each request's tree from the chosen candidates.

    Candidate c hangs below entry c // topk of `parent_list`, which holds a candidate again (the root is entry 0).
    """
    full_width = int(mask_mode) == 0
    if int(mask_mode) not in (0, 1):
        raise NotImplementedError("bit-packed tree masks")
    at = 0
    for request, length in enumerate(seq_lens.tolist()):
        chosen, parents = selected_index[request].tolist(), parent_list[request].tolist()
        node_of = {candidate: node for node, candidate in enumerate(chosen, start=1)}
        parent = [-1] + [0 if c < topk else node_of[int(parents[c // topk])] for c in chosen]
        ancestors, level = torch.eye(num_tokens, dtype=torch.bool), [0] * num_tokens
        for node in range(1, num_tokens):
            ancestors[node] |= ancestors[parent[node]]
            level[node] = level[parent[node]] + 1
        child, sibling = [-1] * num_tokens, [-1] * num_tokens
        for node in reversed(range(1, num_tokens)):
            sibling[node], child[parent[node]] = child[parent[node]], node
        width = num_tokens + (length if full_width else 0)
        mask = tree_mask[at : at + num_tokens * width].view(num_tokens, width)
        mask[:, width - num_tokens :] = ancestors
        at += num_tokens * width
        positions.view(-1, num_tokens)[request] = torch.tensor(level) + length
        retrieve_index[request] = torch.arange(num_tokens) + request * num_tokens
        next_token[request], next_sibling[request] = torch.tensor(child), torch.tensor(sibling)


build_tree_kernel_efficient_cpu = build_tree_kernel_efficient


def _follow(
    request: int,
    links: tuple[Tensor, Tensor, Tensor],
    candidates: Tensor,
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    accepts: Callable[[int, int, int], bool],
) -> int:
    """Walk down from the root while a child is accepted; the node that was reached.

    Args:
        links: flat index, first child and next sibling of each node.
        accepts: (node, child, child's token) -> whether to go on there; tried sibling by sibling.
    """
    flat, child, sibling = (table[request].tolist() for table in links)
    tokens = candidates[request].tolist()
    node, taken = 0, 0
    accept_index[request, 0] = flat[0]
    while taken + 1 < accept_index.shape[1]:
        below = child[node]
        while below != -1 and not accepts(node, below, tokens[below]):
            below = sibling[below]
        if below == -1:
            break
        predicts[flat[node]] = tokens[below]
        taken += 1
        accept_index[request, taken] = flat[below]
        node = below
    accept_token_num[request] = taken
    return node


def verify_tree_greedy(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Accept children that are the target's argmax; then the target's own token at the node reached."""
    links = (retrive_index, retrive_next_token, retrive_next_sibling)
    for request in range(candidates.shape[0]):
        best = target_predict[request].tolist()

        def accepts(node: int, below: int, token: int, best: list[int] = best) -> bool:
            return bool(token == best[node])

        node = _follow(request, links, candidates, predicts, accept_index, accept_token_num, accepts)
        predicts[retrive_index[request, node]] = best[node]


verify_tree_greedy_cpu = verify_tree_greedy


def tree_speculative_sampling_target_only(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    uniform_samples: Tensor,
    uniform_samples_for_final_sampling: Tensor,
    target_probs: Tensor,
    draft_probs: Tensor,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    deterministic: bool = True,
) -> None:
    """Accept siblings while the coin falls into their summed target probability, then sample from what is left."""
    links = (retrive_index, retrive_next_token, retrive_next_sibling)
    for request in range(candidates.shape[0]):
        coins = uniform_samples[request].tolist()
        coin, mass = coins[0], 0.0

        def accepts(node: int, below: int, token: int, request: int = request, coins: list[float] = coins) -> bool:
            nonlocal coin, mass
            probability = float(target_probs[request, node, token])
            mass += probability
            if coin <= mass / max(threshold_acc, 1e-9) or probability >= threshold_single:
                coin, mass = coins[below], 0.0
                return True
            draft_probs[request, node, token] = probability  # rejected: not to be sampled below
            return False

        node = _follow(request, links, candidates, predicts, accept_index, accept_token_num, accepts)
        weights = target_probs[request, node]
        if int(accept_token_num[request]) + 1 < accept_index.shape[1]:
            weights = (weights - draft_probs[request, node]).clamp_min(0)
        total = weights.cumsum(0)
        drawn = int((total <= uniform_samples_for_final_sampling[request] * total[-1]).sum())
        predicts[retrive_index[request, node]] = min(drawn, weights.numel() - 1)


# ---- sampling --------------------------------------------------------------------------------


def top_k_renorm_prob(probs: Tensor, top_k: Tensor | int) -> Tensor:
    """Keep each row's k largest probabilities and renormalise."""
    k = torch.as_tensor(top_k).expand(probs.shape[0]).clamp(1, probs.shape[-1]).long()
    smallest = probs.sort(dim=-1, descending=True).values.gather(1, (k - 1)[:, None])
    kept = torch.where(probs >= smallest, probs, 0)
    return kept / kept.sum(dim=-1, keepdim=True)


def top_p_renorm_prob(probs: Tensor, top_p: Tensor | float) -> Tensor:
    """Keep each row's most likely tokens up to mass p and renormalise."""
    ordered, index = probs.sort(dim=-1, descending=True)
    limit = torch.as_tensor(top_p, dtype=probs.dtype).expand(probs.shape[0])[:, None]
    ordered = torch.where(ordered.cumsum(dim=-1) - ordered < limit, ordered, 0)
    kept = torch.zeros_like(probs).scatter_(1, index, ordered)
    return kept / kept.sum(dim=-1, keepdim=True)


top_k_renorm_probs, top_p_renorm_probs = top_k_renorm_prob, top_p_renorm_prob


# ---- slot tables: names that 0.5.16 and later import on a CPU ----------------------------------


def assign_req_to_token_pool_cpu(
    req_pool_indices: Tensor, req_to_token: Tensor, start: Tensor, end: Tensor, slots: Tensor, row_stride: int
) -> None:
    at = 0
    for pool, first, last in zip(req_pool_indices.tolist(), start.tolist(), end.tolist(), strict=True):
        req_to_token[pool, first:last] = slots[at : at + last - first].to(req_to_token.dtype)
        at += last - first


def assign_extend_cache_locs_cpu(
    req_pool_indices: Tensor, req_to_token: Tensor, start: Tensor, end: Tensor, out: Tensor, row_stride: int
) -> None:
    at = 0
    for pool, first, last in zip(req_pool_indices.tolist(), start.tolist(), end.tolist(), strict=True):
        out[at : at + last - first] = req_to_token[pool, first:last].to(out.dtype)
        at += last - first


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    seq_lens: Tensor,
    out: Tensor,
    row_stride: int,
    topk: int,
    steps: int,
) -> None:
    count = topk * steps
    for row, (pool, length) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)):
        out[row * count : (row + 1) * count] = req_to_token[pool, length : length + count].to(out.dtype)


def fill_bonus_tokens_cpu(accept_tokens: Tensor, accept_lens: Tensor, out: Tensor, stride: int) -> None:
    """Each request's last accepted token."""
    last = torch.arange(accept_lens.numel()) * stride + accept_lens.long() - 1
    out.copy_(accept_tokens.flatten()[last])


def fill_accept_out_cache_loc_cpu(accept_index: Tensor, out_cache_loc: Tensor, out: Tensor) -> None:
    """The slots of the accepted tokens, without gaps."""
    index = accept_index.flatten()
    index = index[index >= 0].long()
    out[: index.numel()] = out_cache_loc[index].to(out.dtype)


def copy_all_layer_kv_cache_cpu(pointers: Tensor, strides: Tensor, to_slots: Tensor, from_slots: Tensor) -> None:
    """Move rows of every layer's buffer, which is known by its address only; source and target may overlap."""
    for base, stride in zip(pointers.tolist(), strides.tolist(), strict=True):
        rows = [ctypes.string_at(base + slot * stride, stride) for slot in from_slots.tolist()]
        for slot, row in zip(to_slots.tolist(), rows, strict=True):
            ctypes.memmove(base + slot * stride, row, stride)
