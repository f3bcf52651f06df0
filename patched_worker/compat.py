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

COMMON_TOUCHES = (
    f"{SCHEDULER}:run_scheduler_process",
    f"{SCHEDULER}:Scheduler.get_internal_state",
    f"{SCHEDULER}:Scheduler.set_internal_state",
    f"{SPEC_INFO}:SpeculativeAlgorithm.create_worker",
)
WORKERS: dict[str, Generation] = {"EAGLEWorker": eagle_v1, "EAGLEWorkerV2": eagle_v2}
VERSIONS = tuple(sorted({*eagle_v1.VERSIONS, *eagle_v2.VERSIONS}))

# attribute of ServerArgs, the value it must have, and what the operator can do
ARRANGEMENTS: tuple[tuple[str, object, str], ...] = (
    ("enable_dp_attention", False, "attention DP runs batches of different sizes; drop --enable-dp-attention"),
    ("pp_size", 1, "pipeline stages are not synchronised; drop --pipeline-parallel-size"),
    ("enable_multi_layer_eagle", False, "multi-layer EAGLE has its own worker; drop --enable-multi-layer-eagle"),
    ("enable_two_batch_overlap", False, "two-batch overlap splits a step; drop --enable-two-batch-overlap"),
    ("enable_single_batch_overlap", False, "not validated; drop --enable-single-batch-overlap"),
    ("enable_pdmux", False, "PD multiplexing is not validated; drop --enable-pdmux"),
    ("disaggregation_mode", "null", "prefill/decode disaggregation is not validated; drop --disaggregation-mode"),
    ("enable_hierarchical_cache", False, "HiCache may evict draft KV; drop --enable-hierarchical-cache"),
    ("enable_hisparse", False, "HiSparse is not validated; drop --enable-hisparse"),
    ("enable_return_hidden_states", False, "not validated; drop --enable-return-hidden-states"),
    ("enable_lora", False, "LoRA is not validated; drop --enable-lora and --lora-paths"),
    ("speculative_token_map", None, "a draft token map is not validated; drop --speculative-token-map"),
    ("speculative_adaptive", False, "upstream's adaptive mode switches by itself; drop --speculative-adaptive"),
    ("speculative_use_rejection_sampling", False, "not validated; drop --speculative-use-rejection-sampling"),
    ("enable_mixed_chunk", False, "a prefill would carry decode requests; drop --enable-mixed-chunk"),
    ("enable_streaming_session", False, "a session keeps KV beyond a request; drop --enable-streaming-session"),
    ("enable_mis", False, "multi-item scoring is not validated; drop --enable-mis"),
)


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


def refuse_arrangement(server_args: Any) -> None:
    """Refuse what was not validated.

    Args:
        server_args: SGLang's resolved ServerArgs.

    Raises:
        Refusal: with every reason, in one line.
    """
    reasons = [
        f"{name}={value!r}: {remedy}"
        for name, wanted, remedy in ARRANGEMENTS
        if (value := getattr(server_args, name, wanted)) != wanted and (value or wanted)
    ]
    if server_args.speculative_algorithm not in ("EAGLE", "EAGLE3"):
        reasons.append(f"speculative_algorithm={server_args.speculative_algorithm!r}: use EAGLE or EAGLE3")
    if reasons:
        raise Refusal("the patched worker refuses this arrangement: " + "; ".join(reasons))


def resolved(server_args: Any) -> Any:
    """ServerArgs with SGLang's own decisions applied; releases from 0.5.20 keep those beside the record."""
    try:
        from sglang.srt.arg_groups.overrides import resolving_view
    except ImportError:
        return server_args
    return resolving_view(server_args)


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
