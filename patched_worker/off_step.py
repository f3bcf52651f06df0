"""The off step of spec v2: the target runs as a plain decode, the draft's KV is brought up in batches.

Conventions of spec v2 that this relies on (sglang/srt/speculative/eagle_worker_v2.py, managers/scheduler.py):

- `batch.seq_lens` is the length before the step, a DECODE forward wants the length after it.
- The scheduler has already reserved the slots up to two rounds of drafts ahead and written them to `req_to_token`.
- The first proposals of a later speculative step travel with `next_draft_input`, per request.

Draft KV: see `catch_up`. What differs between releases is in `v2_current` and `v2_early`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from patched_worker.catch_up import CatchUp
from patched_worker.pending import Pending

Publish = Callable[[Any], None] | None


class OffStep(CatchUp):
    """The off step of one worker.

    Args:
        worker: SGLang's worker, with its pools and backends in place.
        sync_steps: see `CatchUp`.
        plain: graph runner (or None) and attention backend of the plain decode.

    Attributes:
        last_reader: the model runner that reads the scheduler's shared buffers last in this step.
    """

    runner_attribute: str  # where the target keeps its decode graph runner

    def __init__(self, worker: Any, sync_steps: int | None, plain: tuple[Any, Any]) -> None:
        super().__init__(worker, sync_steps)
        self.target = worker.target_worker.model_runner
        self.last_reader = self.draft.draft_runner
        self._plain = plain

    # ---- what differs between releases

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
            window = self._window_when_due(batch, rows, new_seq_lens)
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
        if window is not None:
            with self.restored(batch):
                batch.seq_lens = new_seq_lens
                if batch.seq_lens_cpu is not None:
                    batch.seq_lens_cpu = batch.seq_lens_cpu + 1
                self._catch_up(batch, next_input, window)
        return self.result(out, forward_batch, tokens, new_seq_lens, next_input)

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
