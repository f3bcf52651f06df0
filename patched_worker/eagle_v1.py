"""The off step of EAGLEWorker (v1, no overlap scheduler): the target runs as a plain decode, the draft keeps up.

In v1 the worker's verify does what the scheduler does for a plain decode: it samples, appends to the requests, ends
them, and keeps grammars, penalties, log-probabilities and KV lengths (sglang/srt/speculative/eagle_worker.py and
eagle_info.py). An off step therefore keeps verify, with a tree of one node, and replaces only the target's forward
inside it: the batch of one token per request is turned into an ordinary DECODE batch. Sampling does not change its
meaning at a switch, and the draft-extend that follows writes the draft's KV row and next proposal as after any
verify. Between two steps nothing differs from what upstream left behind, so any step may be on or off.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from patched_worker.control import Control, Identity
from patched_worker.plain_graph_early import capture
from patched_worker.probes import TokenCount, context_of, watch_draft, watch_target
from patched_worker.refusals import refuse_model
from patched_worker.settings import DRAFT_SYNC_STEPS, Refusal, Settings

VERSIONS: tuple[str, ...] = ("0.5.9", "0.5.12.post1")

_WORKER = "sglang.srt.speculative.eagle_worker:EAGLEWorker"
_INFO = "sglang.srt.speculative.eagle_info"
_RUNNER = "sglang.srt.model_executor.model_runner:ModelRunner"
_COMMON = (
    f"{_WORKER}.__init__",
    f"{_WORKER}.forward_batch_generation",
    f"{_WORKER}._draft_preprocess_decode",
    f"{_WORKER}.draft",
    f"{_WORKER}.verify",
    f"{_WORKER}.forward_draft_extend_after_decode",
    f"{_INFO}:EagleVerifyInput",
    f"{_INFO}:EagleDraftInput",
    f"{_RUNNER}.forward",
    f"{_RUNNER}._get_attention_backend",
    "sglang.srt.layers.utils.logprob:add_output_logprobs_for_spec_v1",
    "sglang.srt.managers.schedule_batch:ScheduleBatch.get_model_worker_batch",
    "sglang.srt.managers.scheduler:Scheduler.run_batch",
    "sglang.srt.managers.tp_worker:TpModelWorker.forward_batch_generation",
    "sglang.srt.managers.utils:GenerationBatchResult",
    "sglang.srt.model_executor.cuda_graph_runner:CudaGraphRunner",
    "sglang.srt.model_executor.forward_batch_info:ForwardBatch.init_new",
)
TOUCHES: dict[str, tuple[str, ...]] = {
    "0.5.9": _COMMON,
    "0.5.12.post1": (
        *_COMMON,
        f"{_INFO}:EagleDraftExtendInput",
        f"{_WORKER}._draft_preprocess_idle",
    ),
}


def worker_class(base: Any, identity: Identity, settings: Settings) -> type:
    """A subclass of SGLang's EAGLEWorker; its instances carry their Control as `specpivot`.

    Raises:
        Refusal: steps between two draft-extends were asked for.
    """
    if settings.draft_sync_steps is not None:
        raise Refusal(f"{DRAFT_SYNC_STEPS}: EAGLEWorker brings the draft's KV up at every step; leave it out")

    class PatchedEAGLEWorker(base):  # type: ignore[misc]  # SGLang's class is known at run time only
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            target = self.target_worker.model_runner
            refuse_model(target)
            self.specpivot = Control(settings.policy, self.speculative_num_steps, identity)
            self.off_step = OffStep(self, identity.version)
            self.token_count = TokenCount()
            watch_target(target, self.specpivot)
            watch_draft(self, self.specpivot)

        def forward_batch_generation(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
            control: Control = self.specpivot
            if batch.forward_mode.is_extend() or batch.is_extend_in_batch or batch.forward_mode.is_idle():
                control.interrupt(len(batch.reqs))
                return super().forward_batch_generation(batch, *args, **kwargs)
            self.token_count.before(batch.reqs)
            step = control.begin(len(batch.reqs), context_of(batch))
            result = self.off_step.run(batch) if step.off else super().forward_batch_generation(batch, *args, **kwargs)
            control.end(step, bool(result.can_run_cuda_graph))
            step.add_tokens(self.token_count.after())  # verify has appended them, finished requests' included
            return result

    return PatchedEAGLEWorker


class OffStep:
    """The off step of one worker.

    Args:
        worker: the patched worker, initialised.
        version: SGLang's version.
    """

    def __init__(self, worker: Any, version: str) -> None:
        self.worker = worker
        self._target = worker.target_worker.model_runner
        self._decoding = DecodingTarget(worker.target_worker)
        self._verify_and_extend = {
            "0.5.9": self._verify_and_extend_0_5_9,
            "0.5.12.post1": self._verify_and_extend_0_5_12,
        }[version]
        self._names_0_5_9 = version == "0.5.9"
        self._graph_runner, self._attn_backend = capture(self._target)

    def run(self, batch: Any) -> Any:
        """One plain decode step for a batch that speculates otherwise.

        Args:
            batch: SGLang's ScheduleBatch; it is left as after a speculative step.
        """
        import torch

        draft_input = batch.spec_info
        last = draft_input.verified_id if self._names_0_5_9 else draft_input.bonus_tokens
        last = last.to(torch.int64)  # a draft-extend leaves int32
        self._prepare(batch, last)
        with self._off():
            return self._verify_and_extend(batch, self._one_node_tree(batch, last))

    def _prepare(self, batch: Any, last: Any) -> None:
        """What `_draft_preprocess_decode` does to the batch besides preparing drafts."""
        batch.maybe_evict_swa()
        for req in batch.reqs:
            req.decode_batch_idx += 1
        penalizer = batch.sampling_info.penalizer_orchestrator
        if penalizer.is_required:
            penalizer.cumulate_output_tokens(last)
        batch.seq_lens_sum = int(batch.seq_lens_cpu.sum())
        batch.return_hidden_states = False

    def _one_node_tree(self, batch: Any, last: Any) -> Any:
        """A verify input whose tree is its root: the last sampled token, whose KV is not written yet."""
        import torch
        from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
        from sglang.srt.speculative.eagle_info import EagleVerifyInput

        size = len(batch.reqs)
        none = torch.full((size, 1), -1, dtype=torch.int64, device=batch.device)
        prefix = "retrive" if self._names_0_5_9 else "retrieve"
        links = {
            f"{prefix}_index": torch.arange(size, dtype=torch.int64, device=batch.device)[:, None],
            f"{prefix}_next_token": none,
            f"{prefix}_next_sibling": none.clone(),
            f"{prefix}_cum_len": None,
        }
        return EagleVerifyInput(
            draft_token=last,
            custom_mask=None,  # a plain decode has none
            positions=batch.seq_lens.to(torch.int64),
            spec_steps=0,
            topk=1,
            draft_token_num=1,
            capture_hidden_mode=CaptureHiddenMode.FULL,
            seq_lens_sum=batch.seq_lens_sum,
            seq_lens_cpu=batch.seq_lens_cpu,
            **links,
        )

    @contextmanager
    def _off(self) -> Iterator[None]:
        """The worker as one without draft steps, for the length of one step: nothing else ever sees it so.

        `topk` stays, since the draft-extend proposes that many tokens for a next step that speculates; so do
        SGLang's arguments, from which the scheduler reserves KV slots for such a step.
        """
        worker, target = self.worker, self._target
        kept = (
            worker.speculative_num_steps,
            worker.speculative_num_draft_tokens,
            worker.target_worker,
            target.attn_backend,
            target.graph_runner,
        )
        worker.speculative_num_steps, worker.speculative_num_draft_tokens = 0, 1
        worker.target_worker = self._decoding
        target.attn_backend, target.graph_runner = self._attn_backend, self._graph_runner
        try:
            yield
        finally:
            (
                worker.speculative_num_steps,
                worker.speculative_num_draft_tokens,
                worker.target_worker,
                target.attn_backend,
                target.graph_runner,
            ) = kept

    def _verify_and_extend_0_5_9(self, batch: Any, tree: Any) -> Any:
        from sglang.srt.managers.utils import GenerationBatchResult

        worker = self.worker
        logits, verified, _, graph = worker.verify(batch, tree)
        if len(batch.spec_info.verified_id):  # else every request has finished
            with self._draft_context():
                worker.forward_draft_extend_after_decode(batch)
        return GenerationBatchResult(
            logits_output=logits,
            next_token_ids=verified.verified_id,
            num_accepted_tokens=0,
            accept_length_per_req_cpu=verified.accept_length_per_req_cpu,
            can_run_cuda_graph=graph,
        )

    def _verify_and_extend_0_5_12(self, batch: Any, tree: Any) -> Any:
        from sglang.srt.managers.utils import GenerationBatchResult

        worker = self.worker
        batch.spec_info = tree
        logits, verified, graph = worker.verify(batch)
        with self._draft_context():
            if len(verified.draft_extend_input.input_ids):
                batch.spec_info = verified.draft_extend_input
                batch.spec_info = worker.forward_draft_extend_after_decode(batch)
            else:  # every request has finished
                worker._draft_preprocess_idle(batch)
        return GenerationBatchResult(
            logits_output=logits,
            next_token_ids=verified.accept_tokens,
            num_correct_drafts=0,
            num_correct_drafts_per_req_cpu=verified.num_correct_drafts_per_req_cpu,
            can_run_cuda_graph=graph,
        )

    def _draft_context(self) -> ExitStack:
        """The contexts in which EAGLEWorker runs its draft."""
        from sglang.srt.layers.moe.utils import speculative_moe_a2a_backend_context, speculative_moe_backend_context

        stack = ExitStack()
        stack.enter_context(self.worker.draft_tp_context(self.worker.draft_model_runner.tp_group))
        stack.enter_context(speculative_moe_backend_context())
        stack.enter_context(speculative_moe_a2a_backend_context())
        return stack


class DecodingTarget:
    """Stands in for the worker's target while verify runs: its one-token batch becomes a plain DECODE batch.

    Args:
        target_worker: SGLang's TpModelWorker of the target.
    """

    def __init__(self, target_worker: Any) -> None:
        self._target_worker = target_worker

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target_worker, name)

    def forward_batch_generation(self, batch: Any, is_verify: bool) -> Any:
        """The target's logits and hidden states; `is_verify` means that verify samples, and nothing in here.

        Args:
            batch: a ModelWorkerBatch that verify has prepared.
        """
        from sglang.srt.model_executor.forward_batch_info import ForwardMode

        batch.forward_mode = ForwardMode.DECODE
        batch.spec_info = None  # an attention backend would take it for a decode of the draft
        # DECODE counts the token at hand among the lengths. New tensors: these are the scheduler's
        batch.seq_lens = batch.seq_lens + 1
        batch.seq_lens_cpu = batch.seq_lens_cpu + 1
        batch.seq_lens_sum = batch.seq_lens_sum + len(batch.seq_lens)
        batch.extend_seq_lens = batch.extend_prefix_lens = batch.extend_logprob_start_lens = None  # the prefill's
        return self._target_worker.forward_batch_generation(batch, is_verify=is_verify)
