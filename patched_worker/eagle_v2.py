"""The off step of EAGLEWorkerV2: the target runs as a plain decode, the draft's KV is brought up in batches.

Conventions of spec v2 that this relies on (sglang/srt/speculative/eagle_worker_v2.py, managers/scheduler.py):

- `batch.seq_lens` is the length before the step, a DECODE forward wants the length after it.
- The scheduler has already reserved the slots up to two rounds of drafts ahead and written them to `req_to_token`,
  restores every field of the batch after the worker, and relays `next_draft_input` by request row.
- A result carries its own stride, so one-token results need no padding.

Draft KV: see `pending`. A catch-up has the shape of the stock draft-extend (ring length = number of draft tokens),
so it uses its CUDA graph; what it writes beyond the pending positions lies in slots that the next verify overwrites,
as rejected drafts do. A request that ends with positions pending hands only what is written to the radix cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

from patched_worker import plain_graph
from patched_worker.control import Control, Identity
from patched_worker.pending import Pending
from patched_worker.probes import watch_draft, watch_target
from patched_worker.settings import Settings

VERSIONS: tuple[str, ...] = ("0.5.16", "0.5.23")

_WORKER = "sglang.srt.speculative.eagle_worker_v2"
_COMMON = (
    f"{_WORKER}:EAGLEWorkerV2.__init__",
    f"{_WORKER}:EAGLEWorkerV2.forward_batch_generation",
    f"{_WORKER}:EAGLEWorkerV2.init_cuda_graphs",
    f"{_WORKER}:EAGLEWorkerV2.verify",
    f"{_WORKER}:EagleDraftWorker.draft",
    f"{_WORKER}:EagleDraftWorker._draft_extend_for_decode",
    "sglang.srt.speculative.eagle_worker_common:prepare_for_draft_extend",
    "sglang.srt.speculative.eagle_utils:eagle_prepare_for_decode",
    "sglang.srt.speculative.eagle_info:EagleDraftInput",
    "sglang.srt.managers.scheduler:Scheduler.run_batch",
    "sglang.srt.managers.scheduler:Scheduler._forward_isolation",
    "sglang.srt.managers.scheduler:Scheduler._apply_war_barrier",
    "sglang.srt.managers.scheduler_components.batch_result_processor:"
    "SchedulerBatchResultProcessor.process_batch_result_decode",
    "sglang.srt.managers.scheduler_components.batch_result_processor:"
    "SchedulerBatchResultProcessor._resolve_spec_v2_tokens",
    "sglang.srt.managers.tp_worker:TpModelWorker.forward_batch_generation",
    "sglang.srt.managers.utils:GenerationBatchResult",
    "sglang.srt.mem_cache.common:release_kv_cache",
    "sglang.srt.model_executor.forward_batch_info:ForwardBatch.init_new",
    "sglang.srt.model_executor.model_runner:ModelRunner.forward",
    "sglang.srt.model_executor.model_runner:ModelRunner.sample",
    "sglang.srt.model_executor.model_runner:ModelRunner._get_attention_backend",
    "sglang.srt.model_executor.runner.decode_cuda_graph_runner:DecodeCudaGraphRunner",
)
TOUCHES: dict[str, tuple[str, ...]] = {
    "0.5.16": (*_COMMON, "sglang.srt.managers.schedule_batch:Req.effective_kv_committed_len"),
    "0.5.23": (*_COMMON, "sglang.srt.managers.schedule_batch:Req.owned_kv_len"),
}

# what a plain forward and a catch-up rewrite on the batch; between the two phases of one step we put it back ourselves
_FIELDS = (
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
# the event behind which the scheduler may rewrite shared buffers, published by the runner that read them last
_READ_DONE = {"0.5.16": "war_fastpath_read_done_event", "0.5.23": "shared_read_done_event"}


def worker_class(base: Any, identity: Identity, settings: Settings) -> type:
    """A subclass of SGLang's EAGLEWorkerV2; its instances carry their Control as `specpivot`."""

    class PatchedEAGLEWorkerV2(base):  # type: ignore[misc]  # SGLang's class is known at run time only
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.specpivot = Control(settings.policy, self.speculative_num_steps, identity)
            watch_target(self.target_worker.model_runner, self.specpivot)
            watch_draft(self.draft_worker, self.specpivot)

        def init_cuda_graphs(self) -> None:  # the last of SGLang's start-up hooks: pools and backends exist by now
            super().init_cuda_graphs()
            self.off_step = OffStep(self, self.specpivot, settings.draft_sync_steps)

        @property
        def war_fastpath_runner(self) -> Any:  # 0.5.16's name
            return self.off_step.last_reader

        @property
        def last_shared_read_runner(self) -> Any:  # 0.5.23's name
            return self.off_step.last_reader

        def forward_batch_generation(self, batch: Any, on_publish: Any = None, **kwargs: Any) -> Any:
            off, control = self.off_step, self.specpivot
            off.last_reader = self.draft_worker.draft_runner
            if batch.forward_mode.is_extend() or batch.is_extend_in_batch:
                control.interrupt()
                off.pending.clear(_host_rows(batch))  # a prefill writes all of these requests' draft KV
                return super().forward_batch_generation(batch, on_publish, **kwargs)
            if batch.forward_mode.is_idle() or batch.spec_info is None:
                return super().forward_batch_generation(batch, on_publish, **kwargs)
            step = control.begin(len(batch.seq_lens))
            if step.off:
                result = off.run(batch, on_publish, kwargs.get("grammar_barrier"))
            else:
                off.before_on_step(batch)
                result = super().forward_batch_generation(batch, on_publish, **kwargs)
            control.end(step)
            result.specpivot_step = step
            return result

    return PatchedEAGLEWorkerV2


class OffStep:
    """The off step of one worker.

    Args:
        worker: the patched worker.
        control: its control.
        sync_steps: length of the ring; None takes the number of draft tokens.

    Attributes:
        pending: positions without draft KV.
        last_reader: the model runner whose event tells the scheduler that shared buffers have been read.
    """

    def __init__(self, worker: Any, control: Control, sync_steps: int | None) -> None:
        self._worker = worker
        self._draft = worker.draft_worker
        self._target = worker.target_worker.model_runner
        self._read_done = _READ_DONE[control.identity.version]
        captured = plain_graph.capture(self._target)
        self._graph_runner, self._attn_backend = captured or (None, self._target.attn_backend)
        self._req_to_token = worker.draft_worker.req_to_token_pool.req_to_token
        width = worker.speculative_num_draft_tokens
        self.pending = Pending(len(self._req_to_token), min(sync_steps or width, width), worker.device)
        self.last_reader = self._draft.draft_runner
        share_only_what_is_written(self.pending)

    # ---- the step

    def run(self, batch: Any, on_publish: Any, grammar_barrier: Any) -> Any:
        """One plain decode step for a batch that speculates otherwise.

        Args:
            batch: SGLang's ScheduleBatch; the caller restores it.
            on_publish: tells the scheduler the new lengths; None without the overlap scheduler.
            grammar_barrier: brings grammars up to the previous step's tokens (0.5.23).
        """
        import torch

        previous, rows = batch.spec_info, _host_rows(batch)
        new_seq_lens = batch.seq_lens + 1
        if on_publish is not None:
            on_publish(new_seq_lens)  # known before the forward: the next step's preparation need not wait for it
        with self._restored(batch):
            forward_batch = self._plain_batch(batch, previous.bonus_tokens, new_seq_lens)
        out = self._forward(forward_batch)
        if grammar_barrier is not None:
            grammar_barrier()
        logits = out.logits_output
        tokens = self._target.sample(logits, forward_batch)
        if batch.return_logprob and logits.next_token_logprobs is not None:
            logits.next_token_logprobs = logits.next_token_logprobs.reshape(-1, 1)  # spec's layout: request, token
        next_input = type(previous)(
            bonus_tokens=tokens.to(torch.int32),
            topk_p=previous.topk_p,
            topk_index=previous.topk_index,
            hidden_states=previous.hidden_states,
        )
        self.pending.add(batch.req_pool_indices, rows, batch.seq_lens, tokens, logits.hidden_states)
        if self.pending.most(rows) >= self.pending.length:
            with self._restored(batch):
                batch.seq_lens = new_seq_lens
                if batch.seq_lens_cpu is not None:
                    batch.seq_lens_cpu = batch.seq_lens_cpu + 1
                self._catch_up(batch, next_input)
        return type(out)(
            logits_output=logits,
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

    def before_on_step(self, batch: Any) -> None:
        """Bring the draft's KV up, so that a speculative step can follow plain ones."""
        if self.pending.most(_host_rows(batch)) == 0:
            return
        with self._restored(batch):
            self._catch_up(batch, batch.spec_info)
        # the catch-up's event must not stand for the reads of the step that follows
        self._forget_read_done(self._draft.draft_runner)

    def _plain_batch(self, batch: Any, tokens: Any, new_seq_lens: Any) -> Any:
        import torch
        from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode

        slots = self._req_to_token[batch.req_pool_indices, batch.seq_lens]
        batch.forward_mode = ForwardMode.DECODE
        batch.spec_info = None  # positions and KV indices would be taken from it
        batch.input_ids = tokens.to(torch.int64)
        batch.out_cache_loc = slots.to(torch.int64)
        batch.seq_lens = new_seq_lens
        if batch.seq_lens_cpu is not None:
            batch.seq_lens_cpu = batch.seq_lens_cpu + 1
        batch.seq_lens_sum = None  # computed again
        return ForwardBatch.init_new(
            batch, self._target, capture_hidden_mode=CaptureHiddenMode.FULL, return_hidden_states_before_norm=False
        )

    def _forward(self, forward_batch: Any) -> Any:
        """The target's forward, without sampling, through the plain decode's graph and attention backend.

        The verify's graph runner must not stay in place: it accepts a DECODE batch and replays a verify of several
        tokens per request.
        """
        target = self._target
        self._forget_read_done(target)
        kept = target.decode_cuda_graph_runner, target.attn_backend
        target.decode_cuda_graph_runner, target.attn_backend = self._graph_runner, self._attn_backend
        try:
            # is_verify means only that nothing is sampled in there
            out = self._worker.target_worker.forward_batch_generation(
                batch=None, forward_batch=forward_batch, is_verify=True
            )
        finally:
            target.decode_cuda_graph_runner, target.attn_backend = kept
        self.last_reader = target
        return out

    # ---- draft KV

    def _catch_up(self, batch: Any, draft_input: Any) -> None:
        """Draft-extend the pending positions of every request of the batch, and propose from the last one.

        Args:
            batch: with `seq_lens` = the present lengths; the caller restores it.
            draft_input: gets the proposals; requests with nothing pending keep theirs.
        """
        import torch

        pending, rows, host_rows = self.pending, batch.req_pool_indices, _host_rows(batch)
        host_counts = pending.counts_of(host_rows)
        counts = host_counts.to(rows.device, non_blocking=True)
        start = batch.seq_lens - counts
        tokens, hidden = pending.window(rows, start)
        slots = self._req_to_token[rows.unsqueeze(1), pending.positions(start)]
        batch.out_cache_loc = slots.reshape(-1).to(torch.int64)
        batch.seq_lens = start
        if batch.seq_lens_cpu is not None:
            batch.seq_lens_cpu = batch.seq_lens_cpu - host_counts
        batch.seq_lens_sum = None
        proposal = type(draft_input)()
        extended = SimpleNamespace(  # what _draft_extend_for_decode reads of a verify's result
            logits_output=SimpleNamespace(hidden_states=hidden),
            next_token_ids=tokens,
            next_draft_input=proposal,
            accept_lens=counts.clamp(min=1).to(torch.int32),
            new_seq_lens=start + counts,
            prepared_draft_extend_inputs=None,
        )
        self._forget_read_done(self._draft.draft_runner)
        with self._draft_context(), self._ring_width():
            self._draft._draft_extend_for_decode(batch, extended)
        self.last_reader = self._draft.draft_runner
        had = (counts > 0).unsqueeze(1)
        for name in ("topk_p", "topk_index", "hidden_states"):
            setattr(draft_input, name, torch.where(had, getattr(proposal, name), getattr(draft_input, name)))
        pending.clear(host_rows)

    @contextmanager
    def _ring_width(self) -> Iterator[None]:
        """A ring shorter than the draft tokens needs an extend of its own width, which has no captured graph."""
        draft, width = self._draft, self.pending.length
        kept = draft.speculative_num_draft_tokens, draft.cuda_graph_runner_for_draft_extend
        if width == kept[0]:
            yield
            return
        draft.speculative_num_draft_tokens, draft.cuda_graph_runner_for_draft_extend = width, None
        try:
            yield
        finally:
            draft.speculative_num_draft_tokens, draft.cuda_graph_runner_for_draft_extend = kept

    def _draft_context(self) -> ExitStack:
        """The contexts in which EAGLEWorkerV2 runs its draft."""
        from sglang.srt.layers.moe.utils import speculative_moe_a2a_backend_context, speculative_moe_backend_context
        from sglang.srt.speculative.spec_utils import draft_tp_context

        layout = getattr(self._draft, "parallel_layout", None)  # 0.5.23; before, the group itself
        stack = ExitStack()
        stack.enter_context(draft_tp_context(self._draft.draft_runner.tp_group if layout is None else layout))
        stack.enter_context(speculative_moe_backend_context())
        stack.enter_context(speculative_moe_a2a_backend_context())
        return stack

    def _forget_read_done(self, runner: Any) -> None:
        setattr(runner, self._read_done, None)

    @staticmethod
    @contextmanager
    def _restored(batch: Any) -> Iterator[None]:
        saved = {name: getattr(batch, name) for name in _FIELDS}
        try:
            yield
        finally:
            for name, value in saved.items():
                setattr(batch, name, value)


def _host_rows(batch: Any) -> list[int]:
    rows: list[int] = batch.req_pool_indices_cpu.tolist()
    return rows


def share_only_what_is_written(pending: Pending) -> None:
    """Cap what an ending request hands to the radix cache at the positions whose draft KV is written.

    The count covers launched steps, at most one more than are committed: the cap may cost one token of reuse. It
    never reaches into what the tree owns already.
    """
    from sglang.srt.managers.schedule_batch import Req

    name = "owned_kv_len" if hasattr(Req, "owned_kv_len") else "effective_kv_committed_len"
    original = getattr(Req, name)

    def capped(self: Any) -> int:
        length: int = original(self)
        holder = self.kv if hasattr(self.kv, "cache_protected_len") else self  # moved there in 0.5.20
        if holder.req_pool_idx is None:
            return length
        synced: int = length - pending.counts[holder.req_pool_idx]
        return max(synced, min(length, int(holder.cache_protected_len)))

    setattr(Req, name, capped)
