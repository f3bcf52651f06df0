"""EAGLEWorkerV2: which releases, what of them is called or wrapped, and the patched class."""

from __future__ import annotations

from typing import Any

from patched_worker import v2_current, v2_early
from patched_worker.control import Control, Identity
from patched_worker.probes import context_of, watch_draft, watch_target
from patched_worker.refusals import refuse_model, refuse_v2
from patched_worker.settings import Settings

_WORKER = "sglang.srt.speculative.eagle_worker_v2"
_SCHEDULER = "sglang.srt.managers.scheduler"
_COMMON = (
    f"{_WORKER}:EAGLEWorkerV2.__init__",
    f"{_WORKER}:EAGLEWorkerV2.forward_batch_generation",
    f"{_WORKER}:EAGLEWorkerV2.verify",
    f"{_WORKER}:EagleDraftWorker.draft",
    f"{_WORKER}:EagleDraftWorker._draft_extend_for_decode",
    f"{_SCHEDULER}:Scheduler.run_batch",
    "sglang.srt.speculative.eagle_info:EagleDraftInput",
    "sglang.srt.managers.tp_worker:TpModelWorker.forward_batch_generation",
    "sglang.srt.managers.utils:GenerationBatchResult",
    "sglang.srt.mem_cache.common:release_kv_cache",
    "sglang.srt.model_executor.forward_batch_info:ForwardBatch.init_new",
    "sglang.srt.model_executor.model_runner:ModelRunner.forward",
    "sglang.srt.model_executor.model_runner:ModelRunner.sample",
)
_RESULTS = "sglang.srt.managers.scheduler_components.batch_result_processor:SchedulerBatchResultProcessor"
_CURRENT = (
    *_COMMON,
    "sglang.srt.layers.logits_processor:LogitsProcessor._get_pruned_states",
    "sglang.srt.speculative.eagle_info:EagleDraftExtendInput",
    f"{_WORKER}:EAGLEWorkerV2.init_cuda_graphs",
    f"{_SCHEDULER}:Scheduler._forward_isolation",
    f"{_SCHEDULER}:Scheduler._apply_war_barrier",
    f"{_SCHEDULER}:Scheduler.on_idle",
    f"{_RESULTS}.process_batch_result_decode",
    f"{_RESULTS}._resolve_spec_v2_tokens",
    "sglang.srt.speculative.eagle_worker_common:prepare_for_draft_extend",
    "sglang.srt.speculative.eagle_utils:eagle_prepare_for_decode",
    "sglang.srt.model_executor.model_runner:ModelRunner._get_attention_backend",
    "sglang.srt.model_executor.runner.decode_cuda_graph_runner:DecodeCudaGraphRunner",
)
_RESULTS_EARLY = "sglang.srt.managers.scheduler_output_processor_mixin:SchedulerOutputProcessorMixin"
_EARLY = (
    *_COMMON,
    f"{_RESULTS_EARLY}.process_batch_result_decode",
    "sglang.srt.managers.overlap_utils:FutureMap",
    "sglang.srt.speculative.eagle_info_v2:EagleDraftInputV2Mixin",
    "sglang.srt.managers.schedule_batch:Req.pop_committed_kv_cache",
    "sglang.srt.managers.schedule_batch:Req.pop_overallocated_kv_cache",
    "sglang.srt.model_executor.model_runner:ModelRunner._get_attention_backend",
    "sglang.srt.model_executor.cuda_graph_runner:CudaGraphRunner",
)
TOUCHES: dict[str, tuple[str, ...]] = {
    "0.5.9": (
        *_EARLY,
        f"{_RESULTS_EARLY}._resolve_spec_overlap_token_ids",
        "sglang.srt.managers.scheduler_runtime_checker_mixin:SchedulerRuntimeCheckerMixin.self_check_during_idle",
    ),
    "0.5.12.post1": (
        *_EARLY,
        f"{_RESULTS_EARLY}._resolve_spec_overlap_tokens",
        "sglang.srt.managers.scheduler_runtime_checker_mixin:SchedulerRuntimeCheckerMixin.on_idle",
        "sglang.srt.managers.schedule_batch:Req._cache_commit_len",
    ),
    "0.5.16": (*_CURRENT, "sglang.srt.managers.schedule_batch:Req.effective_kv_committed_len"),
    "0.5.23": (*_CURRENT, "sglang.srt.managers.schedule_batch:Req.owned_kv_len"),
}
VERSIONS: tuple[str, ...] = tuple(TOUCHES)


def worker_class(base: Any, identity: Identity, settings: Settings) -> type:
    """A subclass of SGLang's EAGLEWorkerV2; its instances carry their Control as `specpivot`."""
    off_step_class = v2_early.EarlyOffStep if identity.version in v2_early.VERSIONS else v2_current.CurrentOffStep
    has_graph_hook = hasattr(base, "init_cuda_graphs")

    class PatchedEAGLEWorkerV2(base):  # type: ignore[misc]  # SGLang's class is known at run time only
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            refuse_model(self.target_worker.model_runner)
            refuse_v2(self)
            self.specpivot = Control(settings.policy, self.speculative_num_steps, identity)
            watch_target(self.target_worker.model_runner, self.specpivot)
            watch_draft(self.draft_worker, self.specpivot)
            if not has_graph_hook:
                self._make_off_step()

        def init_cuda_graphs(self) -> None:
            """The last of SGLang's start-up hooks, where there is one: pools and backends exist only now."""
            super().init_cuda_graphs()
            self._make_off_step()

        def _make_off_step(self) -> None:
            self.off_step = off_step_class(self, settings.draft_sync_steps, identity.version)
            self.specpivot.sync = self.off_step.sync

        @property
        def war_fastpath_runner(self) -> Any:  # 0.5.16's name
            return self.off_step.last_reader

        @property
        def last_shared_read_runner(self) -> Any:  # 0.5.23's name
            return self.off_step.last_reader

        def forward_batch_generation(self, batch: Any, **kwargs: Any) -> Any:
            off, control = self.off_step, self.specpivot
            if batch.forward_mode.is_extend() or batch.is_extend_in_batch:
                control.interrupt(len(batch.seq_lens))
                off.before_prefill(batch)
                result = super().forward_batch_generation(batch, **kwargs)
                off.after_prefill(result)
                return result
            if batch.forward_mode.is_idle() or batch.spec_info is None:
                return super().forward_batch_generation(batch, **kwargs)
            step = control.begin(len(batch.seq_lens), context_of(batch))
            if step.off:
                result = off.run(batch, kwargs.get("on_publish"), kwargs.get("grammar_barrier"))
            else:
                off.before_on_step(batch)
                result = super().forward_batch_generation(batch, **kwargs)
            control.end(step, bool(result.can_run_cuda_graph))
            result.specpivot_step = step
            return result

    return PatchedEAGLEWorkerV2
