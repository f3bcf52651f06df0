"""manifest.json as a run goes on: what was asked for, where, which servers played what, and what could not be had."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime

import msgspec

from harness.config import SweepConfig, variants_to_run
from harness.environment import collect_environment, installed
from harness.errors import UserError
from harness.proof import wrong_worker
from harness.records import PATCHED_VARIANTS, SCHEMA_VERSION, Manifest, ServerRecord, Settings, Variant, VariantRecord
from harness.runfolder import RunWriter
from harness.servers import Server
from harness.variants import confounders, policy_of, reference_of, server_plans, unequal
from harness.workload import WorkloadPlan


def workload_of(config: SweepConfig, under_way: bool = True) -> WorkloadPlan:
    """The request lists of a sweep.

    Args:
        under_way: a closed loop begins as if it had always run; False for a load that comes and goes, and where answers
            themselves are looked at.
    """
    return WorkloadPlan(
        dataset=config.dataset,
        input_tokens=config.input_tokens,
        output_tokens=config.output_tokens,
        range_ratio=config.random_range_ratio,
        seed=config.seed,
        api=config.api,
        vocab_size=config.vocab_size,
        tokenizer=config.tokenizer,
        under_way=under_way,
    )


def new_manifest(config: SweepConfig, command: Sequence[str], under_way: bool = True) -> Manifest:
    """The manifest of a run that begins now; `under_way` is that of its `workload_of`."""
    wanted = variants_to_run(config)
    return Manifest(
        schema=SCHEMA_VERSION,
        source="simulated" if config.sim is not None else "measured",
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        command=tuple(command),
        specpivot_version=installed("specpivot") or "source",
        settings=Settings(
            variants=wanted,
            concurrency=config.concurrency,
            repeats=config.repeats,
            duration_s=config.duration_s,
            warmup_s=config.warmup_s,
            threshold=config.threshold,
            resume_at=config.resume_at,
            min_dwell=config.min_dwell,
        ),
        config=msgspec.to_builtins(config),
        workload=workload_of(config, under_way).describe(config.concurrency, config.repeats),
        environment=collect_environment(),
        latency_intervals=True,
    )


def record_servers(
    config: SweepConfig, writer: RunWriter, found: dict[str, Server | UserError], say: Callable[[str], None]
) -> None:
    """Write down who plays what, what differs between the servers, and what could not be had."""
    up = {name: server.record for name, server in found.items() if isinstance(server, Server)}
    table = confounders(up)
    simulated = {name: s.simulation for name, s in found.items() if isinstance(s, Server) and s.simulation}
    warnings = [*unequal(table), *_lacking(up), *_wrong_worker(config, up), *_simulated(config, simulated)]
    manifest = writer.manifest
    previous = {record.server_run: record for record in manifest.servers.values()}
    variants = _variant_records(config, found)
    warnings += _moved(previous | {record.server_run: record for record in up.values()}, manifest.variants, variants)
    writer.set_manifest(
        msgspec.structs.replace(
            manifest,
            source="simulated" if simulated else manifest.source,
            servers=previous | {record.server_run: record for record in up.values()},
            variants=manifest.variants | variants,
            confounders=manifest.confounders | table,
            warnings=tuple(dict.fromkeys([*manifest.warnings, *warnings])),
            simulation=next(iter(simulated.values()), None),
        )
    )
    for line in warnings:
        say(f"warning: {line}")
    for variant, record in writer.manifest.variants.items():
        if record.not_run:
            say(f"not run: {variant}: {record.not_run}")


def _variant_records(config: SweepConfig, found: dict[str, Server | UserError]) -> dict[str, VariantRecord]:
    records: dict[str, VariantRecord] = {}
    wanted = variants_to_run(config)
    for plan in server_plans(config):
        server = found.get(plan.name)
        if server is None:
            continue
        for variant in plan.variants:
            records[variant] = _variant_record(variant, server, config, wanted)
    for variant in wanted:
        if config.attach and variant not in config.attach:
            records[variant] = VariantRecord(not_run="no --attach URL was given for it")
    return records


def _variant_record(
    variant: Variant, server: Server | UserError, config: SweepConfig, wanted: tuple[Variant, ...]
) -> VariantRecord:
    if isinstance(server, UserError):
        return VariantRecord(not_run=str(server))
    if variant in PATCHED_VARIANTS and not server.patched:
        return VariantRecord(
            not_run=f"{server.record.url} is no patched server; start it with python -m patched_worker"
        )
    policy = policy_of(variant, config) if server.patched else None
    return VariantRecord(
        server_run=server.record.server_run,
        reference=reference_of(variant, wanted, server.record.server_args.get("disable_overlap_schedule") is True),
        policy=None if policy is None else msgspec.to_builtins(policy),
    )


def _moved(
    servers: dict[str, ServerRecord], before: dict[str, VariantRecord], now: dict[str, VariantRecord]
) -> list[str]:
    """Variants that a resumed run goes on to measure on other GPUs than before."""
    found = []
    for variant in before.keys() & now.keys():
        then, here = (
            [gpu.uuid for gpu in servers[each.server_run].gpus.counted] if each.server_run in servers else []
            for each in (before[variant], now[variant])
        )
        if then and here and then != here:
            found.append(f"{variant} is measured on GPU {', '.join(here)} now, and was on {', '.join(then)} before")
    return sorted(found)


def _lacking(up: dict[str, ServerRecord]) -> list[str]:
    return [
        f"{name} lacks {', '.join(record.lacking)}: idle, token counts and worker are not verified there"
        for name, record in up.items()
        if record.lacking
    ]


def _simulated(config: SweepConfig, names: Iterable[str]) -> list[str]:
    """Said of servers that were attached to: nobody asked for a simulation."""
    return [] if config.sim else [f"{name} is a simulated server: nothing here is measured" for name in names]


def _wrong_worker(config: SweepConfig, up: dict[str, ServerRecord]) -> list[str]:
    complaint = wrong_worker(config.worker, up["speculative"].worker) if "speculative" in up else None
    return [complaint] if complaint else []
