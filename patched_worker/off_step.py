"""The off step of spec v2: the target runs as a plain decode, the draft's KV is brought up in batches.

Conventions of spec v2 that this relies on (sglang/srt/speculative/eagle_worker_v2.py, managers/scheduler.py):

- `batch.seq_lens` is the length before the step, a DECODE forward wants the length after it.
- The scheduler has already reserved the slots up to two rounds of drafts ahead and written them to `req_to_token`.
- The first proposals of a later speculative step travel with `next_draft_input`, per request.

Draft KV: see `pending`. A catch-up has the shape of the stock draft-extend (ring length = number of draft tokens),
so it uses its CUDA graph; what it writes beyond the pending positions lies in slots that the next verify overwrites,
as rejected drafts do. What differs between releases is in `eagle_v2` (0.5.16, 0.5.23) and `eagle_v2_early`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

from patched_worker.pending import Pending

Publish = Callable[[Any], None] | None


class OffStep(ABC):
    """The off step of one worker.

    Args:
        worker: SGLang's worker, with its pools and backends in place.
        sync_steps: length of the ring; None takes the number of draft tokens, which is also the most.
        plain: graph runner (or None) and attention backend of the plain decode.

    Attributes:
        pending: positions without draft KV.
        last_reader: the model runner that reads the scheduler's shared buffers last in this step.
    """

    batch_fields: tuple[str, ...]  # what a plain forward and a catch-up rewrite on the batch
    runner_attribute: str  # where the target keeps its decode graph runner

    def __init__(self, worker: Any, sync_steps: int | None, plain: tuple[Any, Any]) -> None:
        self.worker = worker
        self.draft = worker.draft_worker
        self.target = worker.target_worker.model_runner
        self.last_reader = self.draft.draft_runner
        self._plain = plain
        self._req_to_token = self.draft.req_to_token_pool.req_to_token
        width = worker.speculative_num_draft_tokens
        self.pending = Pending(len(self._req_to_token), min(sync_steps or width, width), worker.device)

    # ---- what differs between releases

    @abstractmethod
    def host_rows(self, batch: Any) -> list[int]:
        """The requests' rows in `req_to_token`, on the host."""

    @abstractmethod
    def plain_forward(self, batch: Any) -> tuple[Any, Any]:
        """Run the target over a batch in DECODE mode, capturing hidden states, without sampling.

        Returns:
            SGLang's GenerationBatchResult and its ForwardBatch.
        """

    @abstractmethod
    def lengths_known(self, new_seq_lens: Any, publish: Publish) -> Any:
        """Tell the scheduler the new lengths, or make what will; passed on to `next_input`."""

    @abstractmethod
    def next_input(self, previous: Any, tokens: Any, new_seq_lens: Any, known: Any) -> Any:
        """The EagleDraftInput of the next step, with the proposals of `previous`."""

    @abstractmethod
    def result(self, out: Any, forward_batch: Any, tokens: Any, new_seq_lens: Any, next_input: Any) -> Any:
        """The step's GenerationBatchResult."""

    @abstractmethod
    def empty_input(self, like: Any) -> Any:
        """An EagleDraftInput for the draft-extend to fill."""

    @abstractmethod
    def draft_tp_context(self) -> AbstractContextManager[Any]:
        """SGLang's tensor-parallel context for its draft."""

    @abstractmethod
    def before_catch_up(self) -> None:
        """A draft-extend is about to run outside of a speculative step."""

    @abstractmethod
    def last_tokens(self, draft_input: Any) -> Any:
        """The token of each request that is sampled but not in the KV yet."""

    # ---- the step

    def run(self, batch: Any, publish: Publish, grammar_barrier: Callable[[], None] | None = None) -> Any:
        """One plain decode step for a batch that speculates otherwise.

        Args:
            batch: what SGLang's worker gets; its fields are as before afterwards.
            publish: tells the scheduler the new lengths (0.5.16 and later, with the overlap scheduler).
            grammar_barrier: brings grammars up to the previous step's tokens (0.5.23).
        """
        previous, rows = batch.spec_info, self.host_rows(batch)
        new_seq_lens = batch.seq_lens + 1
        with self.restored(batch), self._plain_decode():
            slots = self._slots_of_full_ring(batch, rows, new_seq_lens)
            self._make_plain(batch, previous, new_seq_lens)
            # Before the forward, so that preparing the next step need not wait for it; after every slot was looked
            # up, because from here on the scheduler may give the row of a request that has ended to another one
            known = self.lengths_known(new_seq_lens, publish)
            out, forward_batch = self.plain_forward(batch)
        if grammar_barrier is not None:
            grammar_barrier()
        logits = out.logits_output
        tokens = self.target.sample(logits, forward_batch)
        if batch.return_logprob and logits.next_token_logprobs is not None:
            logits.next_token_logprobs = logits.next_token_logprobs.reshape(-1, 1)  # spec's layout: request, token
        next_input = self.next_input(previous, tokens, new_seq_lens, known)
        self.pending.add(batch.req_pool_indices, rows, batch.seq_lens, tokens, logits.hidden_states)
        if slots is not None:
            with self.restored(batch):
                batch.seq_lens = new_seq_lens
                if batch.seq_lens_cpu is not None:
                    batch.seq_lens_cpu = batch.seq_lens_cpu + 1
                self._catch_up(batch, next_input, slots)
        return self.result(out, forward_batch, tokens, new_seq_lens, next_input)

    def before_on_step(self, batch: Any) -> bool:
        """Bring the draft's KV up, so that a speculative step can follow plain ones; whether there was need."""
        if self.pending.most(self.host_rows(batch)) == 0:
            return False
        with self.restored(batch):
            slots = self._ring_slots(batch.req_pool_indices, batch.seq_lens - self._counts(batch))
            self._catch_up(batch, batch.spec_info, slots)
        return True

    def before_prefill(self, batch: Any) -> None:
        """A prefill writes all of its requests' draft KV, whatever their rows held before."""
        self.pending.clear(self.host_rows(batch))

    def _make_plain(self, batch: Any, previous: Any, new_seq_lens: Any) -> None:
        import torch
        from sglang.srt.model_executor.forward_batch_info import ForwardMode

        batch.forward_mode = ForwardMode.DECODE
        batch.spec_info = None  # positions and KV indices would be taken from it
        batch.input_ids = self.last_tokens(previous).to(torch.int64)
        batch.out_cache_loc = self._req_to_token[batch.req_pool_indices, batch.seq_lens].to(torch.int64)
        batch.seq_lens = new_seq_lens
        if batch.seq_lens_cpu is not None:
            batch.seq_lens_cpu = batch.seq_lens_cpu + 1
        batch.seq_lens_sum = None if batch.seq_lens_cpu is None else int(batch.seq_lens_cpu.sum())

    @contextmanager
    def _plain_decode(self) -> Iterator[None]:
        """The target with the plain decode's graph runner and attention backend.

        The verify's runner must not stay in place: it accepts a DECODE batch and replays a verify of several tokens
        per request.
        """
        target, name = self.target, self.runner_attribute
        kept = getattr(target, name), target.attn_backend
        runner, backend = self._plain
        setattr(target, name, runner)
        target.attn_backend = backend
        try:
            yield
        finally:
            setattr(target, name, kept[0])
            target.attn_backend = kept[1]

    # ---- draft KV

    def _slots_of_full_ring(self, batch: Any, rows: list[int], new_seq_lens: Any) -> Any:
        """Where this step's catch-up will write, if the step fills the ring of any request; else None."""
        if self.pending.most(rows) + 1 < self.pending.length:
            return None
        return self._ring_slots(batch.req_pool_indices, new_seq_lens - self._counts(batch) - 1)

    def _counts(self, batch: Any) -> Any:
        return self.pending.counts_of(self.host_rows(batch)).to(batch.seq_lens.device, non_blocking=True)

    def _ring_slots(self, rows: Any, start: Any) -> Any:
        """KV slots of a ring's positions from `start` on, flat."""
        import torch

        return self._req_to_token[rows.unsqueeze(1), self.pending.positions(start)].reshape(-1).to(torch.int64)

    def _catch_up(self, batch: Any, draft_input: Any, slots: Any) -> None:
        """Draft-extend the pending positions of every request of the batch, and propose from the last one.

        Args:
            batch: with `seq_lens` = the present lengths; the caller restores it.
            draft_input: gets the proposals; requests with nothing pending keep theirs.
            slots: of `_ring_slots`, from the first pending position on.
        """
        import torch

        pending, rows, host_rows = self.pending, batch.req_pool_indices, self.host_rows(batch)
        host_counts = pending.counts_of(host_rows)
        counts = host_counts.to(rows.device, non_blocking=True)
        start = batch.seq_lens - counts
        tokens, hidden = pending.window(rows, start)
        batch.out_cache_loc = slots
        batch.seq_lens = start
        if batch.seq_lens_cpu is not None:
            batch.seq_lens_cpu = batch.seq_lens_cpu - host_counts
        batch.seq_lens_sum = None if batch.seq_lens_cpu is None else int(batch.seq_lens_cpu.sum())
        proposal = self.empty_input(draft_input)
        extended = SimpleNamespace(  # what _draft_extend_for_decode reads of a verify's result
            logits_output=SimpleNamespace(hidden_states=hidden),
            next_token_ids=tokens,
            next_draft_input=proposal,
            accept_lens=counts.clamp(min=1).to(torch.int32),
            new_seq_lens=start + counts,
            prepared_draft_extend_inputs=None,
        )
        self.before_catch_up()
        with self._draft_context(), self._ring_width():
            self.draft._draft_extend_for_decode(batch, extended)
        had = (counts > 0).unsqueeze(1)
        for name in ("topk_p", "topk_index", "hidden_states"):
            setattr(draft_input, name, torch.where(had, getattr(proposal, name), getattr(draft_input, name)))
        pending.clear(host_rows)

    def _draft_context(self) -> ExitStack:
        """The contexts in which EAGLEWorkerV2 runs its draft."""
        from sglang.srt.layers.moe.utils import speculative_moe_a2a_backend_context, speculative_moe_backend_context

        stack = ExitStack()
        stack.enter_context(self.draft_tp_context())
        stack.enter_context(speculative_moe_backend_context())
        stack.enter_context(speculative_moe_a2a_backend_context())
        return stack

    @contextmanager
    def _ring_width(self) -> Iterator[None]:
        """A ring shorter than the draft tokens needs an extend of its own width, which has no captured graph."""
        draft, width = self.draft, self.pending.length
        kept = draft.speculative_num_draft_tokens, draft.cuda_graph_runner_for_draft_extend
        if width == kept[0]:
            yield
            return
        draft.speculative_num_draft_tokens, draft.cuda_graph_runner_for_draft_extend = width, None
        try:
            yield
        finally:
            draft.speculative_num_draft_tokens, draft.cuda_graph_runner_for_draft_extend = kept

    @contextmanager
    def restored(self, batch: Any) -> Iterator[None]:
        """Put the batch's fields back, so that the phases of a step do not see each other's."""
        saved = {name: getattr(batch, name) for name in self.batch_fields}
        try:
            yield
        finally:
            for name, value in saved.items():
                setattr(batch, name, value)


def synced_length(pending: Pending, row: int | None, length: int, protected: int) -> int:
    """What an ending request may hand to the radix cache: the positions whose draft KV is written.

    The count covers launched steps, at most one more than are committed: the cap may cost one token of reuse.

    Args:
        pending: the ring.
        row: the request's row in `req_to_token`; None when it has none.
        length: what SGLang would hand over, in tokens.
        protected: positions that the tree owns already. With a draft its keys are pairs of tokens, so a request that
            hands over n positions keeps n - 1 there and frees the last: handing over fewer than one more than the
            tree owns would free a slot of the tree's.
    """
    if row is None:
        return length
    return max(length - pending.counts[row], min(length, protected + 1))
