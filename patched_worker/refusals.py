"""Arrangements and models that were not validated, refused at start with the reason and the remedy."""

from __future__ import annotations

from typing import Any

from patched_worker.settings import Refusal

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
    ("enable_torch_compile", False, "compiled plain decode graphs are not validated; drop --enable-torch-compile"),
    ("enable_mis", False, "multi-item scoring is not validated; drop --enable-mis"),
)
# attribute of the target's ModelRunner that says it holds more than a plain KV cache
MODEL_STATE = {
    "hybrid_gdn_config": "a recurrent state",
    "mamba2_config": "a recurrent state",
    "hybrid_lightning_config": "a recurrent state",
    "mambaish_config": "a recurrent state",
    "is_hybrid_swa": "a sliding-window KV pool",
}


def resolved(server_args: Any) -> Any:
    """ServerArgs with SGLang's own decisions applied; releases from 0.5.20 keep those beside the record."""
    try:
        from sglang.srt.arg_groups.overrides import resolving_view
    except ImportError:
        return server_args
    return resolving_view(server_args)


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


def refuse_model(target: Any) -> None:
    """Refuse targets whose state is more than a plain KV cache.

    Args:
        target: the target's ModelRunner.

    Raises:
        Refusal: verify keeps such a state by itself, which a plain decode between verifies was not validated to do.
    """
    for name, what in MODEL_STATE.items():
        if getattr(target, name, None):
            raise Refusal(f"the target has {what} ({name}), which is not validated; serve another model")


def refuse_v2(worker: Any) -> None:
    """Refuse what only spec v2 offers and was not validated.

    Args:
        worker: SGLang's EAGLEWorkerV2.

    Raises:
        Refusal: a draft tree, or planning on another stream, which does not wait for what a catch-up prepares.
    """
    if worker.topk != 1:
        raise Refusal(f"speculative_eagle_topk={worker.topk} is not validated on EAGLEWorkerV2; use 1")
    if worker.plan_stream:
        raise Refusal("SGLANG_ENABLE_OVERLAP_PLAN_STREAM is not validated; unset it")
