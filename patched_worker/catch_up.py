"""The draft's KV after plain steps of spec v2: brought up in batches, exactly as a draft-extend at every step would.

By default a catch-up follows as many plain steps as there are draft tokens, has the shape of SGLang's own draft-extend
and uses its CUDA graph; what it writes beyond the pending positions lies in slots that the next verify overwrites, as
rejected drafts do. After any other number of steps it is one eager extend over what each request lacks, and nothing
beyond that: padding of more steps' width would reach past the slots that the scheduler has reserved. Such an extend
stays within the chunk of a prefill, for which SGLang has set memory aside.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from patched_worker.draft_sync import DraftSync
from patched_worker.pending import Pending
from patched_worker.refusals import resolved


@dataclass(frozen=True, slots=True)
class Window:
    """What a catch-up reads of the ring and writes to the draft's KV.

    Attributes:
        counts: positions pending, per request.
        widths: positions that are computed, per request.
        stock: whether they are SGLang's own draft-extend's, padding and all.
        counts_gpu, widths_gpu: counts and widths on the device.
        start: the first position per request, on the device.
        slots, cells: of each position, flat: KV slots and places in the ring.
    """

    counts: list[int]
    widths: list[int]
    stock: bool
    counts_gpu: Any
    widths_gpu: Any
    start: Any
    slots: Any
    cells: Any


class CatchUp(ABC):
    """The draft's KV of one worker.

    Args:
        worker: SGLang's worker, with its pools and backends in place.
        sync_steps: plain steps until the draft's KV is brought up, and the ring's length; None takes the number of
            draft tokens.

    Attributes:
        sync: how often that is, and how often it was.
        pending: positions without draft KV.
    """

    batch_fields: tuple[str, ...]  # what a plain forward and a catch-up rewrite on the batch

    def __init__(self, worker: Any, sync_steps: int | None) -> None:
        self.worker = worker
        self.draft = worker.draft_worker
        self._req_to_token = self.draft.req_to_token_pool.req_to_token
        self.sync = DraftSync.of(sync_steps, worker.speculative_num_draft_tokens, self.draft.draft_runner.attn_backend)
        self.pending = Pending(len(self._req_to_token), self.sync.most, worker.device)
        self._chunk_tokens: int | None = resolved(worker.server_args).chunked_prefill_size  # None or -1: no chunks

    # ---- what differs between releases

    @abstractmethod
    def host_rows(self, batch: Any) -> list[int]:
        """The requests' rows in `req_to_token`, on the host."""

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
    def ragged_forward(self, batch: Any, hidden: Any, prefix: Any, widths: list[int], last: Any) -> tuple[Any, Any]:
        """Extend the draft by `widths[i]` positions of request i.

        Args:
            batch: in DRAFT_EXTEND_V2, with tokens, slots and the lengths after the extend; the caller restores it.
            hidden: the target's hidden states of those positions.
            prefix: lengths before the extend, on the device.
            widths: see above.
            last: where each request's last position lies among them, on the device.

        Returns:
            Logits and hidden states of the draft at each request's last position.
        """

    # ---- when

    def before_on_step(self, batch: Any) -> bool:
        """Bring the draft's KV up, so that a speculative step can follow plain ones; whether there was need."""
        counts = self.pending.of(self.host_rows(batch))
        if max(counts, default=0) == 0:
            return False
        with self.restored(batch):
            self._catch_up(batch, batch.spec_info, self._window(batch, counts, batch.seq_lens))
        return True

    def before_prefill(self, batch: Any) -> None:
        """A prefill writes all of its requests' draft KV, whatever their rows held before."""
        self.pending.clear(self.host_rows(batch))

    def after_prefill(self, result: Any) -> None:
        """The first one, in the server's own warm-up, shows how wide the ring must be."""
        self.pending.allocate(result.logits_output.hidden_states)

    def _window_when_due(self, batch: Any, rows: list[int], new_seq_lens: Any) -> Window | None:
        """What the catch-up after this step will read and write; None if every request may wait for longer.

        Looked up before the step adds its own position.
        """
        counts = [count + 1 for count in self.pending.of(rows)]
        return None if max(counts) < self._steps(len(counts)) else self._window(batch, counts, new_seq_lens)

    def _steps(self, requests: int) -> int:
        """How many plain steps so many requests may wait.

        No more than fill the chunk of a prefill, but always as many as there are draft tokens, which SGLang's own
        draft-extend computes for each request at every step.
        """
        if self._chunk_tokens is None or self._chunk_tokens <= 0:
            return self.sync.steps
        draft_tokens: int = self.worker.speculative_num_draft_tokens
        return min(self.sync.steps, max(draft_tokens, self._chunk_tokens // requests))

    def _window(self, batch: Any, counts: list[int], seq_lens: Any) -> Window:
        """The last `counts[i]` positions of requests of these lengths."""
        import torch

        pending, width = self.pending, self.worker.speculative_num_draft_tokens
        # The second condition alone would do; the first keeps any other number of steps to one way, as it is measured
        stock = self.sync.steps == width and max(counts) <= width
        # Whatever has nothing pending gets one position of padding, where a verify or a prefill writes next
        widths = [width if stock else max(count, 1) for count in counts]
        counts_gpu, widths_gpu = pending.numbers(counts), pending.numbers(widths)
        start = seq_lens - counts_gpu
        request, positions = pending.places(start, widths_gpu, sum(widths))
        rows = batch.req_pool_indices[request]
        slots = self._req_to_token[rows, positions].to(torch.int64)
        cells = pending.cells(rows, positions)
        return Window(counts, widths, stock, counts_gpu, widths_gpu, start, slots, cells)

    def _catch_up(self, batch: Any, draft_input: Any, window: Window) -> None:
        """Draft-extend the pending positions of every request of the batch, and propose from the last one.

        Args:
            batch: with `seq_lens` = the present lengths; the caller restores it.
            draft_input: gets the proposals; requests with nothing pending keep theirs.
            window: what is pending.
        """
        import torch

        batch.out_cache_loc = window.slots
        proposal = self.empty_input(draft_input)
        self.before_catch_up()
        with self._draft_context():
            (self._stock_extend if window.stock else self._ragged_extend)(batch, proposal, window)
        had = (window.counts_gpu > 0).unsqueeze(1)
        for name in ("topk_p", "topk_index", "hidden_states"):
            setattr(draft_input, name, torch.where(had, getattr(proposal, name), getattr(draft_input, name)))
        self.pending.clear(self.host_rows(batch))
        self.sync.count += 1

    def _stock_extend(self, batch: Any, proposal: Any, window: Window) -> None:
        """SGLang's own draft-extend, as after a verify that accepted what is pending."""
        import torch

        self._set_lengths(batch, window.start, [-count for count in window.counts])
        tokens, hidden = self.pending.read(window.cells)
        verified = SimpleNamespace(  # what _draft_extend_for_decode reads of a verify's result
            logits_output=SimpleNamespace(hidden_states=hidden),
            next_token_ids=tokens,
            next_draft_input=proposal,
            accept_lens=window.counts_gpu.clamp(min=1).to(torch.int32),
            new_seq_lens=window.start + window.counts_gpu,
            prepared_draft_extend_inputs=None,
        )
        self.draft._draft_extend_for_decode(batch, verified)

    def _ragged_extend(self, batch: Any, proposal: Any, window: Window) -> None:
        """An extend of as many positions as each request lacks, with logits of the last one only, without a graph."""
        import torch
        from sglang.srt.model_executor.forward_batch_info import ForwardMode

        tokens, hidden = self.pending.read(window.cells)
        batch.forward_mode = ForwardMode.DRAFT_EXTEND_V2
        batch.input_ids, batch.extend_num_tokens = tokens, len(tokens)
        padding = [width - count for width, count in zip(window.widths, window.counts, strict=True)]
        self._set_lengths(batch, window.start + window.widths_gpu, padding)
        last = window.widths_gpu.cumsum(0) - 1
        logits, proposal.hidden_states = self.ragged_forward(batch, hidden, window.start, window.widths, last)
        proposal.topk_index = logits.argmax(dim=-1, keepdim=True)  # a chain: its first token, whatever its probability
        proposal.topk_p = torch.ones_like(proposal.topk_index, dtype=torch.float32)

    def _set_lengths(self, batch: Any, seq_lens: Any, grown: list[int]) -> None:
        """The batch's lengths, on the host too where it has them: those that it had there, grown by so much."""
        import torch

        batch.seq_lens = seq_lens
        if batch.seq_lens_cpu is not None:
            batch.seq_lens_cpu = batch.seq_lens_cpu + torch.tensor(grown, dtype=torch.int64)
        batch.seq_lens_sum = None if batch.seq_lens_cpu is None else int(batch.seq_lens_cpu.sum())

    def _draft_context(self) -> ExitStack:
        """The contexts in which EAGLEWorkerV2 runs its draft."""
        from sglang.srt.layers.moe.utils import speculative_moe_a2a_backend_context, speculative_moe_backend_context

        stack = ExitStack()
        stack.enter_context(self.draft_tp_context())
        stack.enter_context(speculative_moe_backend_context())
        stack.enter_context(speculative_moe_a2a_backend_context())
        return stack

    @contextmanager
    def restored(self, batch: Any) -> Iterator[None]:
        """Put the batch's fields back, so that the phases of a step do not see each other's."""
        saved = {name: getattr(batch, name) for name in self.batch_fields}
        try:
            yield
        finally:
            for name, value in saved.items():
                setattr(batch, name, value)
