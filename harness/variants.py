"""Which servers play which variants, and that they differ in nothing else.

eagle3, dynamic and forced_off are one server process whose policy is set live, wherever the patched worker is needed;
eagle3 alone runs on the stock server.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from typing import Any

from harness.config import SweepConfig, is_patched, variants_to_run
from harness.ourselves import environment, program
from harness.records import SPECULATIVE_VARIANTS, ServerRecord, Variant
from patched_worker.policy import NEVER_DISABLE, Policy

# Room per request beyond prompt and output: page rounding, and the draft tokens that speculation reserves ahead.
KV_SLACK_TOKENS = 64

# Arguments that must be equal, or the comparison is of them; `doctor` and the manifest name each that is not.
EQUALISED = (
    "max_running_requests",
    "max_total_num_tokens",
    "page_size",
    "disable_radix_cache",
    "attention_backend",
    "chunked_prefill_size",
    "enable_mixed_chunk",
    "sampling_backend",
    "kv_cache_dtype",
    "dtype",
    "quantization",
    "tp_size",
    "schedule_policy",
    "disable_cuda_graph",
)
# Arguments that SGLang itself sets differently with speculation; shown, not equalised.
INHERENT = ("disable_overlap_schedule", "cuda_graph_max_bs", "mem_fraction_static")
SPECULATIVE = (
    "speculative_algorithm",
    "speculative_num_steps",
    "speculative_eagle_topk",
    "speculative_num_draft_tokens",
    "speculative_draft_model_path",
)
RECORDED = ("model_path", "version", *EQUALISED, *INHERENT, *SPECULATIVE)


@dataclass(frozen=True, slots=True)
class ServerPlan:
    """One server to attach to or to start.

    Attributes:
        name: "baseline", "baseline_no_overlap" or "speculative".
        variants: those it plays, in the order asked for.
        command: how to start it, without its port; () where it is attached to.
        env: variables added to ours.
        url: where it already runs.
    """

    name: str
    variants: tuple[Variant, ...]
    command: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    url: str | None = None


def server_plans(config: SweepConfig) -> tuple[ServerPlan, ...]:
    """The servers of a sweep, references first."""
    wanted = variants_to_run(config)
    if config.attach:
        return _attached(config.attach, wanted)
    plain = [ServerPlan(v, (v,)) for v in wanted if v not in SPECULATIVE_VARIANTS]
    speculative = tuple(v for v in wanted if v in SPECULATIVE_VARIANTS)
    plans = [*plain, *([ServerPlan("speculative", speculative)] if speculative else [])]
    describe = _simulated if config.sim is not None else _sglang
    return tuple(describe(config, plan) for plan in plans)


def policy_of(variant: Variant, config: SweepConfig) -> Policy | None:
    """The policy that a patched server must hold while it plays this variant; None for a server without speculation."""
    if variant == "dynamic":
        return config.dynamic_policy
    if variant == "forced_off":
        return Policy.from_threshold(0, min_dwell=config.min_dwell)
    return Policy.from_threshold(None, min_dwell=config.min_dwell) if variant == "eagle3" else None


def reference_of(variant: Variant, wanted: tuple[Variant, ...], overlap_off: bool) -> Variant | None:
    """What a variant is judged against: the server an operator would run without it, under the same scheduler."""
    if variant == "baseline":
        return None
    preferred: tuple[Variant, ...] = ("baseline",)
    if variant in SPECULATIVE_VARIANTS and overlap_off:
        preferred = ("baseline_no_overlap", "baseline")
    return next((reference for reference in preferred if reference in wanted), None)


def confounders(servers: dict[str, ServerRecord]) -> dict[str, dict[str, Any]]:
    """Each equalised or inherent argument that two servers report differently: name to value by server.

    Args:
        servers: by plan name.
    """
    reporting = {name: record.server_args for name, record in servers.items() if record.server_args}
    table: dict[str, dict[str, Any]] = {}
    for argument in (*EQUALISED, *INHERENT):
        values = {name: args.get(argument) for name, args in reporting.items() if argument in args}
        if len({repr(value) for value in values.values()}) > 1:
            table[argument] = values
    return table


def unequal(table: dict[str, dict[str, Any]]) -> list[str]:
    """A warning for each argument that should have been equal."""
    return [
        f"{name} differs between servers ({', '.join(f'{server}: {value}' for server, value in values.items())})"
        for name, values in table.items()
        if name in EQUALISED
    ]


def _attached(attach: dict[str, str], wanted: tuple[Variant, ...]) -> tuple[ServerPlan, ...]:
    by_url: dict[str, list[Variant]] = {}
    for variant in wanted:
        if variant in attach:
            by_url.setdefault(attach[variant], []).append(variant)
    return tuple(ServerPlan(_name(variants), tuple(variants), url=url) for url, variants in by_url.items())


def _name(variants: list[Variant]) -> str:
    return "speculative" if variants[0] in SPECULATIVE_VARIANTS else variants[0]


def _simulated(config: SweepConfig, plan: ServerPlan) -> ServerPlan:
    command = [*program("harness.sim.server"), "--preset", str(config.sim), "--variant", plan.variants[0]]
    command += ["--time-scale", str(config.time_scale), "--seed", str(config.seed)]
    if plan.name == "speculative" and config.num_steps is not None:
        command += ["--num-steps", str(config.num_steps)]
    if plan.name == "speculative" and config.topk != 1:
        command += ["--topk", str(config.topk)]
    where = environment(os.environ | config.server_env)["PYTHONPATH"]
    return ServerPlan(plan.name, plan.variants, tuple(command), config.server_env | {"PYTHONPATH": where})


def _sglang(config: SweepConfig, plan: ServerPlan) -> ServerPlan:
    patched = is_patched(plan.variants)
    longest = round((config.input_tokens + config.output_tokens) * (1 + config.random_range_ratio))
    tokens = config.max_concurrency * (longest + KV_SLACK_TOKENS)
    command = [sys.executable, "-m", "patched_worker" if patched else "sglang.launch_server"]
    command += ["--model-path", str(config.model), "--tp", str(config.tp), "--host", "127.0.0.1"]
    command += ["--max-running-requests", str(config.max_concurrency), "--max-total-tokens", str(tokens)]
    command += ["--enable-metrics", "--random-seed", str(config.seed)]
    env = dict(config.server_env)
    if plan.name == "baseline_no_overlap":
        command.append("--disable-overlap-schedule")
    if plan.name == "speculative":
        command += _speculative_arguments(config)
        if config.worker == "v1":
            command.append("--disable-overlap-schedule")
        if config.worker == "v2":
            env.setdefault("SGLANG_ENABLE_SPEC_V2", "1")
    if patched:
        command += ["--speculative-disable-batch-threshold", str(NEVER_DISABLE)]
    return ServerPlan(plan.name, plan.variants, (*command, *config.server_args), env)


def _speculative_arguments(config: SweepConfig) -> list[str]:
    draft_tokens = config.draft_tokens if config.draft_tokens is not None else config.draft_steps + 1
    return [
        *("--speculative-algorithm", "EAGLE3"),
        *("--speculative-draft-model-path", str(config.draft)),
        *("--speculative-num-steps", str(config.draft_steps)),
        *("--speculative-eagle-topk", str(config.topk)),
        *("--speculative-num-draft-tokens", str(draft_tokens)),
    ]
