"""The off step of spec v2 in 0.5.16 and 0.5.23.

The scheduler hands the worker its own batch and restores every field afterwards, relays `next_draft_input` by request
row, lets a result carry its own stride, and may rewrite shared buffers once the runner that read them last has
published an event.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from patched_worker import plain_graph
from patched_worker.off_step import OffStep, Publish, synced_length
from patched_worker.pending import Pending

VERSIONS = ("0.5.16", "0.5.23")
READ_DONE = {"0.5.16": "war_fastpath_read_done_event", "0.5.23": "shared_read_done_event"}


class CurrentOffStep(OffStep):
    """See `OffStep`; the event of `last_reader` is the one that the scheduler waits for."""

    batch_fields = (
        "forward_mode",
        "input_ids",
        "spec_info",
        "seq_lens",
        "seq_lens_cpu",
        "seq_lens_sum",
        "out_cache_loc",
        "prefix_lens",
        "extend_lens",
        "extend_num_tokens",
    )
    runner_attribute = "decode_cuda_graph_runner"

    def __init__(self, worker: Any, sync_steps: int | None, version: str) -> None:
        target = worker.target_worker.model_runner
        super().__init__(worker, sync_steps, plain_graph.capture(target) or (None, target.attn_backend))
        self._read_done = READ_DONE[version]
        _cap_shared_prefix(self.pending)

    def host_rows(self, batch: Any) -> list[int]:
        rows: list[int] = batch.req_pool_indices_cpu.tolist()
        return rows

    def lengths_known(self, new_seq_lens: Any, publish: Publish) -> None:
        if publish is not None:
            publish(new_seq_lens)

    def plain_forward(self, batch: Any) -> tuple[Any, Any]:
        from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch

        forward_batch = ForwardBatch.init_new(
            batch, self.target, capture_hidden_mode=CaptureHiddenMode.FULL, return_hidden_states_before_norm=False
        )
        self._forget_read_done(self.target)
        # is_verify means only that nothing is sampled in there
        out = self.worker.target_worker.forward_batch_generation(
            batch=None, forward_batch=forward_batch, is_verify=True
        )
        self.last_reader = self.target
        return out, forward_batch

    def ragged_forward(self, batch: Any, hidden: Any, prefix: Any, widths: list[int], last: Any) -> tuple[Any, Any]:
        import torch
        from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch
        from sglang.srt.speculative.eagle_info import EagleDraftExtendInput

        wide = (batch.seq_lens - prefix).to(torch.int32)
        batch.spec_info = EagleDraftExtendInput(
            hidden_states=hidden, num_correct_drafts=wide - 1, num_accept_tokens=wide, select_index=last
        )
        batch.prefix_lens, batch.extend_lens = prefix.to(torch.int32), wide
        if batch.seq_lens_cpu is not None:  # all on the host, or nothing
            batch.extend_lens = widths
            batch.prefix_lens = (batch.seq_lens_cpu - torch.tensor(widths)).tolist()
        forward_batch = ForwardBatch.init_new(
            batch,
            self.draft.draft_runner,
            capture_hidden_mode=CaptureHiddenMode.FULL,
            return_hidden_states_before_norm=False,
        )
        forward_batch.extend_seq_lens_cpu = widths  # or the attention backend would ask the GPU for the longest
        out = self.draft.draft_runner.forward(forward_batch).logits_output
        return out.next_token_logits, out.hidden_states[last]

    def last_tokens(self, draft_input: Any) -> Any:
        return draft_input.bonus_tokens

    def next_input(self, previous: Any, tokens: Any, new_seq_lens: Any, known: None) -> Any:
        import torch

        return type(previous)(
            bonus_tokens=tokens.to(torch.int32),
            topk_p=previous.topk_p,
            topk_index=previous.topk_index,
            hidden_states=previous.hidden_states,
        )

    def empty_input(self, like: Any) -> Any:
        return type(like)()

    def result(self, out: Any, forward_batch: Any, tokens: Any, new_seq_lens: Any, next_input: Any) -> Any:
        import torch

        return type(out)(
            logits_output=out.logits_output,
            next_token_ids=tokens,
            can_run_cuda_graph=out.can_run_cuda_graph,
            speculative_num_draft_tokens=1,  # the stride of `next_token_ids`
            accept_lens=torch.ones_like(tokens, dtype=torch.int32),
            new_seq_lens=new_seq_lens,
            next_draft_input=next_input,
            routed_experts_output=out.routed_experts_output,
            indexer_topk_output=out.indexer_topk_output,
            extra_keep_alive_refs=[forward_batch],
        )

    def draft_tp_context(self) -> AbstractContextManager[Any]:
        from sglang.srt.speculative.spec_utils import draft_tp_context

        layout = getattr(self.draft, "parallel_layout", None)
        context: AbstractContextManager[Any] = (
            self.draft.draft_tp_context(self.draft.draft_runner.tp_group)  # 0.5.16
            if layout is None
            else draft_tp_context(layout)
        )
        return context

    # ---- which event the scheduler waits for

    def before_prefill(self, batch: Any) -> None:
        super().before_prefill(batch)
        self.last_reader = self.draft.draft_runner

    def before_on_step(self, batch: Any) -> bool:
        caught_up = super().before_on_step(batch)
        self.last_reader = self.draft.draft_runner
        if caught_up:  # its event must not stand for the reads of the step that follows
            self._forget_read_done(self.draft.draft_runner)
        return caught_up

    def before_catch_up(self) -> None:
        self._forget_read_done(self.draft.draft_runner)
        self.last_reader = self.draft.draft_runner

    def _forget_read_done(self, runner: Any) -> None:
        setattr(runner, self._read_done, None)


def _cap_shared_prefix(pending: Pending) -> None:
    from sglang.srt.managers.schedule_batch import Req

    name = "owned_kv_len" if hasattr(Req, "owned_kv_len") else "effective_kv_committed_len"
    original = getattr(Req, name)

    def capped(self: Any) -> int:
        holder = self.kv if hasattr(self.kv, "cache_protected_len") else self  # moved there in 0.5.20
        return synced_length(pending, holder.req_pool_idx, original(self), holder.cache_protected_len)

    setattr(Req, name, capped)
