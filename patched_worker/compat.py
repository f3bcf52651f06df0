"""Which SGLang this is, which of its workers will run, and what is refused.

A release is known when its worker was validated here; a function is known when its fingerprint is the validated one.
Anything else is refused with the reason and the remedy, because a worker that is patched wrongly answers with wrong
tokens, and one that is not patched at all makes every measurement of it worthless.
"""

from __future__ import annotations

import importlib.metadata
from typing import Any

from patched_worker import eagle_v1, eagle_v2, fingerprints
from patched_worker.settings import Refusal

Generation = Any  # the module eagle_v1 or eagle_v2; both offer VERSIONS, TOUCHES and worker_class

SCHEDULER = "sglang.srt.managers.scheduler"
SPEC_INFO = "sglang.srt.speculative.spec_info"
HTTP_SERVER = "sglang.srt.entrypoints.http_server"

COMMON_TOUCHES = (
    f"{SCHEDULER}:run_scheduler_process",
    f"{SCHEDULER}:Scheduler.get_internal_state",
    f"{SCHEDULER}:Scheduler.set_internal_state",
    f"{SPEC_INFO}:SpeculativeAlgorithm.create_worker",
    f"{HTTP_SERVER}:launch_server",
    f"{HTTP_SERVER}:_wait_and_warmup",
)
WORKERS: dict[str, Generation] = {"EAGLEWorker": eagle_v1, "EAGLEWorkerV2": eagle_v2}
VERSIONS = tuple(sorted({*eagle_v1.VERSIONS, *eagle_v2.VERSIONS}))


def sglang_version() -> str:
    """The installed release.

    Raises:
        Refusal: SGLang is not installed, or the release is not known.
    """
    try:
        version = importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError as error:
        raise Refusal("SGLang is not installed here; pip install one of " + ", ".join(VERSIONS)) from error
    if version not in VERSIONS:
        raise Refusal(f"SGLang {version} is not known to the patched worker; install one of {', '.join(VERSIONS)}")
    return version


def generation_of(base: type) -> Generation:
    """The module that holds the off step for SGLang's worker class.

    Raises:
        Refusal: SGLang chose a class that we have no off step for, or not in this release.
    """
    module = WORKERS.get(base.__name__)
    if module is None or not base.__module__.startswith("sglang.srt.speculative."):
        raise Refusal(
            f"SGLang would run {base.__module__}.{base.__name__}; use --speculative-algorithm EAGLE or EAGLE3"
        )
    version = sglang_version()
    if version not in module.VERSIONS:
        raise Refusal(
            f"{base.__name__} of SGLang {version} has no off step here; it exists for {', '.join(module.VERSIONS)}"
        )
    return module


def result_processor(scheduler_module: Any) -> Any:
    """The class whose `process_batch_result_decode` appends a step's tokens: a component of its own from 0.5.16."""
    try:
        from sglang.srt.managers.scheduler_components import batch_result_processor
    except ImportError:
        return scheduler_module.Scheduler
    return batch_result_processor.SchedulerBatchResultProcessor


def touched(version: str) -> tuple[str, ...]:
    """Everything that is called or wrapped in a release, for all its generations."""
    targets = list(COMMON_TOUCHES)
    for module in WORKERS.values():
        targets += module.TOUCHES.get(version, ())
    return tuple(dict.fromkeys(targets))


def source_prints(module: Generation, version: str) -> dict[str, str]:
    """The fingerprints, on this machine, of what one generation touches."""
    targets = (*COMMON_TOUCHES, *module.TOUCHES[version])
    return fingerprints.fingerprints(fingerprints.site_of("sglang"), targets)


def modified(prints: dict[str, str], version: str) -> list[str]:
    """The functions that differ from the validated ones."""
    validated = fingerprints.known().get(version, {})
    return [target for target, value in prints.items() if validated.get(target) != value]
