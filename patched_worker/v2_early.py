"""The off step of spec v2 in 0.5.9 and 0.5.12.post1.

The scheduler hands the worker a ModelWorkerBatch made for one step, and waits for the event in `next_draft_input`
before it prepares the next one; a plain step knows its lengths beforehand, so that wait is short. 0.5.9 slices every
result with the width of a verify, so there one token per request is padded to it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from patched_worker import plain_graph_early
from patched_worker.off_step import OffStep, Publish, synced_length
from patched_worker.pending import Pending

VERSIONS = ("0.5.9", "0.5.12.post1")


class EarlyOffStep(OffStep):
    """See `OffStep`."""

    batch_fields = (
        "forward_mode",
        "input_ids",
        "spec_info",
        "seq_lens",
        "seq_lens_cpu",
        "seq_lens_sum",
        "out_cache_loc",
        "capture_hidden_mode",
        "extend_seq_lens",
        "extend_prefix_lens",
        "extend_num_tokens",
    )
    runner_attribute = "graph_runner"

    def __init__(self, worker: Any, sync_steps: int | None, version: str) -> None:
        super().__init__(worker, sync_steps, plain_graph_early.capture(worker.target_worker.model_runner))
        self._last_token = "verified_id" if version == "0.5.9" else "bonus_tokens"
        self._pads = version == "0.5.9"
        _cap_shared_prefix(self.pending)

    def host_rows(self, batch: Any) -> list[int]:
        """A request that has finished since the batch was made has given its row back; the batch still runs on it."""
        for req in batch.reqs:
            if req.req_pool_idx is not None:
                req.specpivot_row = req.req_pool_idx
        return [req.specpivot_row for req in batch.reqs]

    def lengths_known(self, new_seq_lens: Any, publish: Publish) -> Any:
        import torch

        event = torch.get_device_module(new_seq_lens.device).Event()
        event.record()
        return event

    def last_tokens(self, draft_input: Any) -> Any:
        return getattr(draft_input, self._last_token)

    def plain_forward(self, batch: Any) -> tuple[Any, Any]:
        from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch

        batch.capture_hidden_mode = CaptureHiddenMode.FULL
        forward_batch = ForwardBatch.init_new(batch, self.target)
        # is_verify means only that nothing is sampled in there
        out = self.worker.target_worker.forward_batch_generation(
            model_worker_batch=None, forward_batch=forward_batch, is_verify=True
        )
        return out, forward_batch

    def next_input(self, previous: Any, tokens: Any, new_seq_lens: Any, known: Any) -> Any:
        import torch

        following = type(previous)(
            topk_p=previous.topk_p,
            topk_index=previous.topk_index,
            hidden_states=previous.hidden_states,
            new_seq_lens=new_seq_lens,
            verify_done=known,
        )
        setattr(following, self._last_token, tokens.to(torch.int32))
        return following

    def empty_input(self, like: Any) -> Any:
        return type(like)()

    def result(self, out: Any, forward_batch: Any, tokens: Any, new_seq_lens: Any, next_input: Any) -> Any:
        import torch

        result = type(out)(
            logits_output=out.logits_output,
            next_token_ids=self._padded(tokens) if self._pads else tokens,
            can_run_cuda_graph=out.can_run_cuda_graph,
            next_draft_input=next_input,
            accept_lens=torch.ones_like(tokens, dtype=torch.int32),
        )
        if not self._pads:
            result.speculative_num_draft_tokens = 1  # the stride of `next_token_ids`
            result.routed_experts_output = out.routed_experts_output
            result.indexer_topk_output = out.indexer_topk_output
        return result

    def ragged_forward(self, batch: Any, hidden: Any, prefix: Any, widths: list[int], last: Any) -> tuple[Any, Any]:
        import torch
        from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch
        from sglang.srt.speculative.eagle_info import EagleDraftInput

        batch.spec_info = EagleDraftInput(hidden_states=hidden)
        batch.capture_hidden_mode = CaptureHiddenMode.FULL
        batch.extend_seq_lens = widths
        batch.extend_prefix_lens = (batch.seq_lens_cpu - torch.tensor(widths)).tolist()
        forward_batch = ForwardBatch.init_new(batch, self.draft.draft_runner)
        out = self.draft.draft_runner.forward(forward_batch).logits_output
        return out.next_token_logits[last], out.hidden_states[last]  # these releases compute the logits of all

    def before_catch_up(self) -> None:
        """These releases publish no event that a draft-extend could spoil."""

    def _padded(self, tokens: Any) -> Any:
        wide = tokens.new_zeros((len(tokens), self.worker.speculative_num_draft_tokens))
        wide[:, 0] = tokens
        return wide.reshape(-1)

    def draft_tp_context(self) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = self.draft.draft_tp_context(self.draft.draft_runner.tp_group)
        return context


def _cap_shared_prefix(pending: Pending) -> None:
    """Both the length that is committed and the start of what is freed beyond it come from one place."""
    from sglang.srt.managers.schedule_batch import Req

    if hasattr(Req, "_cache_commit_len"):  # 0.5.12.post1
        committed = Req._cache_commit_len

        def capped(self: Any) -> int:
            return synced_length(pending, self.req_pool_idx, committed(self), self.cache_protected_len)

        Req._cache_commit_len = capped
        return
    pop = Req.pop_committed_kv_cache

    def pop_capped(self: Any) -> Any:
        self.kv_committed_len = synced_length(
            pending, self.req_pool_idx, self.kv_committed_len, self.cache_protected_len
        )
        return pop(self)

    Req.pop_committed_kv_cache = pop_capped
