"""Test-only looks into a server, and the few things that tests make it do.

Always: one log line per EAGLE worker that is made; in /server_info the number of free KV slots and, on a GPU, the
bytes that tensors hold there.

With SPECPIVOT_TEST_WRONG_CLASS=1 the choice of worker stays upstream's: a patch of a class that does not run.

With SPECPIVOT_TEST_PROBES=FOLDER, in which the tests write control.json while the server runs:
- "force": N makes the gate switch every N decode steps, whatever the policy says;
- "ungate": true runs what should be an off step as upstream's own step: a patch that does not take;
- "deaf_rank": N leaves that tensor-parallel rank's policy as it is when one is set: ranks that differ;
- "sync": false takes back what an off step has written to the draft's KV: the negative control of the draft KV test;
- every rank adds to FOLDER/steps-PID.jsonl its decode steps: requests, draft steps that the gate asked for, target
  tokens, rounds of proposals;
- every request whose rid starts with "probe-" leaves FOLDER/RID@LENGTH.npz at each round of proposals: the draft's KV
  rows of all its positions so far, and the proposal that the round starts from.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from import_hooks import after_import

_FOLDER = Path(os.environ["SPECPIVOT_TEST_PROBES"]) if "SPECPIVOT_TEST_PROBES" in os.environ else None
_WORKERS = ("sglang.srt.speculative.eagle_worker", "sglang.srt.speculative.eagle_worker_v2")


class _Control:
    """control.json, read again when it has changed."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._stamp = 0
        self._values: dict[str, Any] = {}

    def get(self, name: str, default: Any) -> Any:
        stamp = self._file.stat().st_mtime_ns if self._file.exists() else 0
        if stamp != self._stamp:
            self._stamp, self._values = stamp, json.loads(self._file.read_text())
        return self._values.get(name, default)


def _wrap(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    setattr(owner, name, make(getattr(owner, name)))


@after_import(*_WORKERS)
def _say_which_worker(module: Any) -> None:
    for name in ("EAGLEWorker", "EAGLEWorkerV2"):
        worker = vars(module).get(name)
        if worker is not None and worker.__module__ == module.__name__:
            _wrap(worker, "__init__", lambda original, name=name: _announced(original, name))


def _announced(original: Any, name: str) -> Any:
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        print(f"probe: worker {name}", flush=True)
        original(self, *args, **kwargs)

    return init


@after_import("sglang.srt.managers.scheduler")
def _show_free_memory(module: Any) -> None:
    import torch

    def make(original: Any) -> Any:
        def get_internal_state(self: Any, request: Any) -> Any:
            answer = original(self, request)
            seen = {"probe_free_kv_slots": int(self.token_to_kv_pool_allocator.available_size())}
            if torch.cuda.is_available():
                seen["probe_gpu_bytes"] = torch.cuda.memory_allocated()
            answer.internal_state = dict(answer.internal_state, **seen)
            return answer

        return get_internal_state

    _wrap(module.Scheduler, "get_internal_state", make)


if os.environ.get("SPECPIVOT_TEST_WRONG_CLASS") == "1":

    @after_import("patched_worker.install")
    def _leave_upstream_class(module: Any) -> None:
        module._choose_worker = lambda *args, **kwargs: None


if _FOLDER is not None:
    _control = _Control(_FOLDER / "control.json")

    @after_import("patched_worker.policy")
    def _force_switches(module: Any) -> None:
        def make(original: Any) -> Any:
            count = 0

            def decide(self: Any, batch: int, seq_lens_sum: int = 0) -> int:
                nonlocal count
                every = _control.get("force", 0)
                if not every:
                    return int(original(self, batch, seq_lens_sum))
                count += 1
                return 0 if (count // every) % 2 else self.num_steps

            return decide

        _wrap(module.Gate, "decide", make)

    @after_import("patched_worker.control")
    def _watch_ranks(module: Any) -> None:
        def make_end(original: Any) -> Any:
            def end(self: Any, step: Any, *args: Any) -> None:
                with (_FOLDER / f"steps-{os.getpid()}.jsonl").open("a") as file:
                    file.write(json.dumps([step.batch, step.num_steps, step.target_tokens, step.draft_calls]) + "\n")
                original(self, step, *args)

            return end

        def make_apply(original: Any) -> Any:
            def apply(self: Any, policy: Any, *args: Any) -> None:
                import torch.distributed

                if torch.distributed.get_rank() != _control.get("deaf_rank", -1):
                    original(self, policy, *args)

            return apply

        _wrap(module.Control, "end", make_end)
        _wrap(module.Control, "apply", make_apply)

    @after_import("patched_worker.eagle_v1", "patched_worker.off_step")
    def _ungate(module: Any) -> None:
        def make(original: Any) -> Any:
            def run(self: Any, batch: Any, *args: Any) -> Any:
                if not _control.get("ungate", False):
                    return original(self, batch, *args)
                upstream = type(self.worker).__mro__[1].forward_batch_generation
                return upstream(self.worker, batch, *(arg for arg in args[:1] if arg is not None))

            return run

        _wrap(module.OffStep, "run", make)

    @after_import("patched_worker.eagle_v1")
    def _forget_v1(module: Any) -> None:
        _wrap(module.OffStep, "run", lambda method: _unwritten(method, lambda self: self.worker.draft_model_runner))

    @after_import("patched_worker.off_step")
    def _forget_v2(module: Any) -> None:
        _wrap(module.OffStep, "_catch_up", lambda method: _unwritten(method, lambda self: self.draft.draft_runner))

    def _unwritten(method: Any, runner_of: Callable[[Any], Any]) -> Any:
        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            if _control.get("sync", True):
                return method(self, *args, **kwargs)
            pool = runner_of(self).token_to_kv_pool
            buffers = [pool.get_key_buffer(0), pool.get_value_buffer(0)]
            kept = [buffer.clone() for buffer in buffers]
            answer = method(self, *args, **kwargs)
            for buffer, before in zip(buffers, kept, strict=True):
                buffer.copy_(before)
            return answer

        return run

    @after_import(*_WORKERS)
    def _record_proposals(module: Any) -> None:
        for name, runner in (("EAGLEWorker", "draft_model_runner"), ("EagleDraftWorker", "draft_runner")):
            owner = vars(module).get(name)
            if owner is not None and owner.__module__ == module.__name__:
                _wrap(owner, "draft", lambda original, runner=runner: _recorded(original, runner))

    def _recorded(original: Any, runner: str) -> Any:
        def draft(self: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
            for row, req in enumerate(batch.reqs or ()):
                if req.rid.startswith("probe-"):
                    _save(getattr(self, runner), batch, row, req.rid)
            return original(self, batch, *args, **kwargs)

        return draft

    def _save(runner: Any, batch: Any, row: int, rid: str) -> None:
        import numpy as np

        length = int(batch.seq_lens[row])
        slots = runner.req_to_token_pool.req_to_token[int(batch.req_pool_indices[row]), :length].long()
        pool, proposal = runner.token_to_kv_pool, batch.spec_info
        np.savez(
            _FOLDER / f"{rid}@{length}.npz",
            keys=pool.get_key_buffer(0)[slots].cpu().numpy(),
            values=pool.get_value_buffer(0)[slots].cpu().numpy(),
            proposed=proposal.topk_index[row].cpu().numpy(),
            probabilities=proposal.topk_p[row].cpu().numpy(),
        )
