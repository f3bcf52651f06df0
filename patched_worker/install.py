"""Put the patched worker into one SGLang process, and prove that it runs.

The launcher's scheduler entry and the plugin both call `install` in every process. It replaces four things, all by
name on their classes: the choice of worker, the scheduler's start (to verify), its idle hook, and the two requests
that read and set its state. A scheduler that comes up without our worker ends the server.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from patched_worker import compat, fingerprints, settings
from patched_worker.control import KEYS, Control, Identity
from patched_worker.probes import TokenCount
from patched_worker.ranks import broadcaster
from patched_worker.refusals import refuse_arrangement, resolved
from patched_worker.settings import Refusal, Settings
from patched_worker.steptrace import Trace

logger = logging.getLogger(__name__)

ATTRIBUTE = "specpivot"  # the worker's Control, and the key in /server_info
STEP_ATTRIBUTE = "specpivot_step"  # on a result: the decode step whose tokens it carries


def run_scheduler_process(*args: Any, **kwargs: Any) -> Any:
    """SGLang's scheduler process, patched first. Top level, so that a spawned process can find it by name."""
    install(settings.from_environ())
    from sglang.srt.managers import scheduler

    return scheduler.run_scheduler_process(*args, **kwargs)


def plugin() -> None:
    """Entry point of the group `sglang.srt.plugins`; does nothing unless the environment asks for a policy."""
    if not settings.requested():
        return
    chosen = settings.from_environ()
    if chosen.allow_modified_source and settings.LAUNCHED not in os.environ:
        raise Refusal("modified source is checked before serving; start with `python -m patched_worker` for that")
    install(chosen)


def install(chosen: Settings) -> None:
    """Patch this process. A second call does nothing.

    Raises:
        Refusal: this SGLang is not known.
    """
    version = compat.sglang_version()
    from sglang.srt.managers import scheduler
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    if hasattr(scheduler.Scheduler, "specpivot_installed"):
        return
    scheduler.Scheduler.specpivot_installed = True
    _choose_worker(SpeculativeAlgorithm, chosen, version)
    _verify_start(scheduler.Scheduler, chosen)
    _serve_state(scheduler.Scheduler)
    _watch_idle(scheduler.Scheduler)
    _watch_results(scheduler)


def _wrap(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    original = getattr(owner, name)
    setattr(owner, name, functools.wraps(original)(make(original)))


def _choose_worker(algorithm: Any, chosen: Settings, version: str) -> None:
    def make(original: Any) -> Any:
        def create_worker(self: Any, server_args: Any) -> type:
            base = original(self, server_args)
            module = compat.generation_of(base)
            refuse_arrangement(resolved(server_args))
            identity = identify(base, module, version, chosen)
            worker: type = module.worker_class(base, identity, chosen)
            return worker

        return create_worker

    _wrap(algorithm, "create_worker", make)


def identify(base: type, module: Any, version: str, chosen: Settings) -> Identity:
    """Who the worker is; checks that SGLang's functions are the validated ones.

    Raises:
        Refusal: some are not, and the operator did not allow that.
    """
    prints = compat.source_prints(module, version)
    changed = compat.modified(prints, version)
    if changed and not chosen.allow_modified_source:
        raise Refusal(
            f"SGLang {version} is modified here in {', '.join(changed)}; reinstall the release, "
            "or pass --allow-modified-source to run unvalidated"
        )
    if changed:
        logger.warning("specpivot: MODIFIED SOURCE allowed, not validated: %s", ", ".join(changed))
    return Identity(
        worker=f"{base.__module__}.{base.__qualname__}",
        module=module.__name__,
        version=version,
        source_hash=fingerprints.digest(prints),
        modified_source=bool(changed),
    )


def control_of(scheduler: Any) -> Control:
    """The control of a scheduler's worker.

    Raises:
        Refusal: the scheduler runs a worker that is not ours.
    """
    worker = getattr(scheduler, "draft_worker", None)
    control = getattr(worker, ATTRIBUTE, None)
    if not isinstance(control, Control):
        raise Refusal(
            f"the scheduler runs {type(worker).__module__}.{type(worker).__qualname__}, not the patched worker; "
            "pass --speculative-algorithm EAGLE3 and a draft, and remove other plugins that replace workers"
        )
    return control


def _verify_start(scheduler_class: Any, chosen: Settings) -> None:
    def make(original: Any) -> Any:
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            control = control_of(self)
            _connect(self, control, chosen)
            policy, who = control.gate.policy, control.identity
            logger.info(
                "specpivot active: %s of SGLang %s, off step %s (%s), source %s, policy %s: threshold %s, "
                "resume at %s, dwell %s steps",
                who.worker,
                who.version,
                who.module,
                inspect.getsourcefile(type(self.draft_worker)),
                who.source_hash,
                policy.policy_id,
                policy.threshold,
                policy.resume_at,
                policy.min_dwell,
            )

        return __init__

    _wrap(scheduler_class, "__init__", make)


def _connect(scheduler: Any, control: Control, chosen: Settings) -> None:
    """Autopilot and trace; the ranks of one server meet over the CPU group where there are several."""
    world, leading = scheduler.tp_group.world_size, scheduler.tp_group.rank_in_group == 0
    exchange = broadcaster(scheduler.tp_cpu_group) if world > 1 else None
    trace = None
    if chosen.trace_file is not None and leading:
        header = {"num_steps": control.num_steps, **asdict(control.identity)}
        try:
            trace = Trace(chosen.trace_file, header)
        except OSError as error:
            raise Refusal(f"--speculative-trace-file {chosen.trace_file}: {error.strerror}; give another") from error
    control.connect(chosen.order, trace, exchange, leading)


def _serve_state(scheduler_class: Any) -> None:
    def make_get(original: Any) -> Any:
        def get_internal_state(self: Any, request: Any) -> Any:
            answer = original(self, request)
            answer.internal_state = dict(answer.internal_state, **{ATTRIBUTE: gathered(self)})
            return answer

        return get_internal_state

    def make_set(original: Any) -> Any:
        def set_internal_state(self: Any, request: Any) -> Any:
            ours = {key: value for key, value in request.server_args.items() if key in KEYS}
            if not ours:
                return original(self, request)
            control = control_of(self)
            policy = control.prepare(ours)
            if policy is None:
                return _answer(updated=False)
            rest = {key: value for key, value in request.server_args.items() if key not in KEYS}
            if rest:
                request.server_args = rest
                answer = original(self, request)
                if not answer.updated:
                    return answer
            control.apply(policy, ours)
            return _answer(updated=True)

        return set_internal_state

    _wrap(scheduler_class, "get_internal_state", make_get)
    _wrap(scheduler_class, "set_internal_state", make_set)


def _answer(updated: bool) -> Any:
    from sglang.srt.managers.io_struct import SetInternalStateReqOutput as output

    if "server_args" in inspect.signature(output).parameters:  # up to 0.5.12 it is required
        return output(updated=updated, server_args={})
    return output(updated=updated)


def gathered(scheduler: Any) -> dict[str, object]:
    """The `specpivot` block, with all tensor-parallel ranks compared.

    State requests reach every rank at the same place of the scheduler's loop, so a gather here cannot deadlock.
    """
    control = control_of(scheduler)
    world = scheduler.tp_group.world_size
    prints = [control.fingerprint()]
    if world > 1:
        import torch.distributed

        prints = [()] * world
        torch.distributed.all_gather_object(prints, control.fingerprint(), group=scheduler.tp_cpu_group)
    agree = not control.disagree(prints)
    return {**control.snapshot(), "ranks": world, "ranks_agree": agree}


def _watch_idle(scheduler_class: Any) -> None:
    def make(original: Any) -> Any:
        def on_idle(self: Any, *args: Any, **kwargs: Any) -> Any:
            control_of(self).idle()
            return original(self, *args, **kwargs)

        return on_idle

    name = "on_idle" if hasattr(scheduler_class, "on_idle") else "self_check_during_idle"
    _wrap(scheduler_class, name, make)


def _watch_results(scheduler: Any) -> None:
    """Credit tokens to steps where the scheduler appends them (v2); v1 appends in the worker and credits there."""
    count = TokenCount()

    def make(original: Any) -> Any:
        def process_batch_result_decode(self: Any, batch: Any, result: Any, *args: Any, **kwargs: Any) -> Any:
            step = getattr(result, STEP_ATTRIBUTE, None)
            if step is None:
                return original(self, batch, result, *args, **kwargs)
            count.before(batch.reqs)
            answer = original(self, batch, result, *args, **kwargs)
            step.add_tokens(count.after())
            return answer

        return process_batch_result_decode

    _wrap(compat.result_processor(scheduler), "process_batch_result_decode", make)
