"""A recommendation in the words of the server that is to use it.

json            recommendation.json itself, which the patched worker reads with --speculative-policy-file
sglang          shell flags of `python -m patched_worker`
sglang-adaptive SGLang's own --speculative-adaptive-config (0.5.14 and later): slot key -> candidate steps
                (docs.sglang.io/advanced_features/adaptive_speculative_decoding)
vllm            --speculative-config with num_speculative_tokens_per_batch_size [[first, last, K], ...], K 0 is off
                (docs.vllm.ai, features/speculative_decoding/dynamic_speculative_decoding)
trtllm          speculative_config with draft_len_schedule {largest batch: length}, off above the last key
                (TensorRT-LLM pull request 10860; releases before it read the keys as the smallest batch)

A format that cannot say what is recommended gets a UserError, never an approximation in silence.
"""

from __future__ import annotations

import json
import shlex
from typing import Any, Literal

import msgspec

from harness.errors import UserError
from harness.runfolder import RunFolder
from patched_worker.policy import Policy
from tuner.graphs import captured_sizes, effective_threshold, whole
from tuner.recommend import Recommendation, dumped

Format = Literal["json", "sglang", "sglang-adaptive", "vllm", "trtllm"]
Band = tuple[int, int | None, int]  # first batch, last batch (None: no end), draft steps

DEFAULT_NUM_STEPS = 3
MAX_BATCH = 512  # last batch of a vLLM table where the server's max_running_requests is unknown


class Export(msgspec.Struct, frozen=True):
    """Text for the server, and remarks for the person who installs it."""

    text: str
    notes: tuple[str, ...] = ()


class Server(msgspec.Struct, frozen=True):
    """What an export needs to know of the measured server.

    Attributes:
        num_steps: draft steps while speculating.
        graph_sizes: captured batch sizes; () where unknown.
        max_batch: largest batch the server runs.
        notes: what had to be assumed.
    """

    num_steps: int
    graph_sizes: tuple[int, ...]
    max_batch: int
    notes: tuple[str, ...] = ()


def export(found: Recommendation, form: Format, server: Server) -> Export:
    """Put a recommendation into a format.

    Args:
        found: the recommendation.
        form: one of the formats above.
        server: what is known of the measured server, see `measured_server`.

    Raises:
        UserError: the format cannot express the recommendation.
    """
    if form == "json":
        return Export(dumped(found))
    if form == "sglang":
        return _sglang(found)
    if form == "sglang-adaptive":
        return _adaptive(found, server)
    return _vllm(found, server) if form == "vllm" else _trtllm(found, server)


def measured_server(run: RunFolder, num_steps: int | None = None) -> Server:
    """What the run's speculative server reported of itself.

    Args:
        run: the run folder.
        num_steps: draft steps, where the user says.
    """
    record = run.manifest.variants.get("eagle3")
    server = run.manifest.servers.get(record.server_run) if record else None
    args = server.server_args if server else {}
    steps, notes = num_steps or whole(args.get("speculative_num_steps")), []
    if not steps:
        notes.append(f"the run does not say the number of draft steps: {DEFAULT_NUM_STEPS} assumed, see --num-steps")
    return Server(
        num_steps=steps or DEFAULT_NUM_STEPS,
        graph_sizes=captured_sizes(args),
        max_batch=whole(args.get("max_running_requests")) or MAX_BATCH,
        notes=tuple(notes),
    )


def policy_bands(policy: Policy, num_steps: int) -> tuple[Band, ...]:
    """A policy as bands of the decode batch, without gaps, ignoring hysteresis.

    Args:
        policy: the rule; its rungs must have no context limit.
        num_steps: for rungs that do not say.

    Raises:
        UserError: a rung depends on the context length, which no table by batch can say.
    """
    if any(rung.max_mean_context is not None for rung in policy.rungs):
        raise UserError(
            "the recommendation depends on the context length; only --format json and sglang can say"
            " that; --one-threshold gives any other the smallest one"
        )
    bands: list[Band] = []
    first = 1
    for rung in policy.rungs:
        bands.append((first, rung.threshold, num_steps if rung.num_steps is None else rung.num_steps))
        if rung.threshold is None:
            return tuple(bands)
        first = rung.threshold + 1
    return (*bands, (first, None, 0))


def _sglang(found: Recommendation) -> Export:
    if found.ladder:
        return Export(
            "--speculative-policy-file recommendation.json\n",
            ("a ladder does not fit into flags: copy recommendation.json to the server",),
        )
    wanted = "never" if found.threshold is None else str(found.threshold)
    flags = ["--speculative-disable-batch-threshold", wanted]
    if found.threshold:
        flags += ["--speculative-resume-batch-threshold", str(found.resume_at)]
        flags += ["--speculative-min-dwell-steps", str(found.min_dwell_steps)]
    return Export(shlex.join(flags) + "\n", ("flags of `python -m patched_worker`",))


def _adaptive(found: Recommendation, server: Server) -> Export:
    bands = policy_bands(found.policy, server.num_steps)
    if not any(steps for _, _, steps in bands):
        raise UserError("the recommendation is never to speculate: start SGLang without its --speculative-* flags")
    slots = {str(first): {"candidate_steps": [steps]} for first, _, steps in bands}
    flags = "--speculative-adaptive --speculative-adaptive-config FILE"
    notes = [f"SGLang 0.5.14 or later, EAGLE topk 1: {flags} --speculative-num-steps {server.num_steps}"]
    notes.append("it has no hysteresis: load that hovers around the threshold switches at every step")
    real = effective_threshold(found.threshold, server.graph_sizes)
    if not server.graph_sizes:
        notes.append("captured graph sizes unknown: batches are padded to them first, so it may switch off earlier")
    elif real != found.threshold:
        notes.append(f"effective threshold {real}, not {found.threshold}: batches are padded to captured sizes first")
    return Export(_json(slots), (*server.notes, *notes))


def _vllm(found: Recommendation, server: Server) -> Export:
    bands = policy_bands(found.policy, server.num_steps)
    top = max(server.max_batch, *(first for first, _, _ in bands))
    rows = [[first, top if last is None else last, steps] for first, last, steps in bands]
    config = {
        "method": "eagle3",
        "model": "DRAFT_MODEL",
        "num_speculative_tokens": max(server.num_steps, *(steps for _, _, steps in bands)),
        "num_speculative_tokens_per_batch_size": rows,
    }
    notes = ("vllm serve --speculative-config; put your draft in place of DRAFT_MODEL", _elsewhere("vLLM"))
    return Export(_json(config), (*server.notes, *notes))


def _trtllm(found: Recommendation, server: Server) -> Export:
    bands = policy_bands(found.policy, server.num_steps)
    if not any(steps for _, _, steps in bands):
        raise UserError("the recommendation is never to speculate: start TensorRT-LLM without a speculative_config")
    config: dict[str, Any] = {
        "decoding_type": "Eagle3",
        "max_draft_len": max(steps for _, _, steps in bands),
        "speculative_model": "DRAFT_MODEL",
    }
    schedule = {str(last): steps for _, last, steps in bands if last is not None}
    if bands[-1][1] is None and bands[-1][2]:
        schedule[str(max(server.max_batch, bands[-1][0]))] = bands[-1][2]
    if len(bands) > 1:
        config["draft_len_schedule"] = schedule
    notes = ("goes under speculative_config; a release before pull request 10860 reads the keys otherwise",)
    return Export(_json(config), (*server.notes, *notes, _elsewhere("TensorRT-LLM")))


def _elsewhere(engine: str) -> str:
    return f"measured on SGLang: {engine}'s own pivot may lie elsewhere"


def _json(value: Any) -> str:
    return json.dumps(value) + "\n"
