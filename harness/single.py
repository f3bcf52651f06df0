"""One running server under one load: what `specpivot bench` does.

The point is measured as a sweep measures its own, but the server is taken as it is: its policy is not touched, and
nothing is claimed about which variant it should be. It is waited for until idle, and its prefix cache is flushed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from harness.bench import Bench
from harness.config import SweepConfig, make_config
from harness.endpoint import Endpoint, check_url, specpivot_block
from harness.load import require_files_for
from harness.manifest import new_manifest, workload_of
from harness.openload import Arrivals, TimedWorkload
from harness.openloop import Goodput, OpenMetrics, Slo, goodput, open_metrics
from harness.records import LevelRow, Manifest, PointKey, Source, Variant, VariantRecord, json_file
from harness.regular import replace_file
from harness.runfolder import RunFolder, RunWriter, WriteFailed
from harness.servers import Server, prove
from harness.sweep import Keys, Reporter, countdown, interruptible
from harness.variants import server_plans
from patched_worker.policy import NEVER_DISABLE

REPORT = "bench.json"


class Asked(msgspec.Struct, frozen=True):
    """What a benchmark is asked to do beside the settings that a sweep has too.

    Attributes:
        model: the model name that an OpenAI API is given.
        drop_after_s: an open loop drops what is so late; None never drops.
        limits: what a good request keeps to.
    """

    arrivals: Arrivals = Arrivals()
    model: str = "default"
    drop_after_s: float | None = None
    limits: Slo = Slo()


class BenchReport(msgspec.Struct, frozen=True):
    """What was found.

    Attributes:
        loop: "closed" by concurrency, or "open" by a schedule.
        point: the row of levels.csv; its latencies count from the send.
        open: an open loop's figures from both of a request's beginnings; None in a closed loop.
        goodput: of the requests that kept to all limits; None where none was given.
        failed: why nothing more could be written.
    """

    run: str
    source: Source
    url: str
    loop: str
    point: LevelRow | None
    open: OpenMetrics | None = None
    goodput: Goodput | None = None
    limits: Slo = Slo()
    failed: str = ""

    @property
    def exit_code(self) -> int:
        if self.point is not None and self.point.verdict == "interrupted":
            return 130
        return 0 if self.point is not None and self.point.usable and not self.failed else 4


def run_bench(
    url: str, settings: dict[str, Any], asked: Asked, out: Path, command: Sequence[str], reporter: Reporter, keys: Keys
) -> BenchReport:
    """Measure one server under one load into a new run folder.

    Args:
        url: the running server.
        settings: keys of SweepConfig; `concurrency` is one number.
        asked: the rest.
        out: the run folder.
        command: the command line, for the manifest.
        reporter: told of every step.
        keys: the server's API keys.

    Raises:
        UserError: bad input, or no server answers.
    """
    endpoint = Endpoint(check_url(url), keys.api_key, keys.admin_api_key)
    endpoint.require_healthy("--url")
    variant, policy = played(endpoint.server_info())
    config = make_config({**settings, **policy, "attach": {variant: url}, "variants": [variant], "repeats": 1})
    require_files_for(config.max_concurrency, config.client_workers)
    (plan,) = server_plans(config)
    server = prove(plan, endpoint)
    common = msgspec.structs.asdict(workload_of(config, under_way=not asked.arrivals.open_loop))
    workload = TimedWorkload(**common | {"model": asked.model, "arrivals": asked.arrivals})
    manifest = _manifest(config, asked, server, variant, workload, command)
    key = PointKey(variant, config.max_concurrency, 1)
    with RunWriter.create(out, manifest) as writer, interruptible() as stop:
        for line in manifest.warnings:
            reporter.say(f"warning: {line}")
        open_loop = asked.arrivals.open_loop
        bench = Bench(config, writer, {variant: server}, workload, Counter(), stop, open_loop, asked.drop_after_s)
        return _reported(bench, key, asked, endpoint.public_url, reporter)


def _reported(bench: Bench, key: PointKey, asked: Asked, url: str, reporter: Reporter) -> BenchReport:
    """Measure the point and write its report; where the disk takes no more, the report says so."""
    out, point_s = bench.writer.path, bench.config.point_s
    reporter.plan(1, point_s)
    row, failed = None, ""
    try:
        row = bench.measure(key, None, countdown(reporter, key, point_s))
        reporter.row(row)
        report = _report(RunFolder(out), row, asked, url)
        replace_file(out / REPORT, json_file(report))
        return report
    except WriteFailed as error:
        failed = str(error)
    except OSError as error:
        failed = f"cannot write {out / REPORT}: {error.strerror}; make room"
    reporter.say(f"warning: {failed}")
    loop = "open" if bench.open_loop else "closed"
    return BenchReport(str(out), bench.writer.manifest.source, url, loop, row, failed=failed)


def played(info: dict[str, Any] | None) -> tuple[Variant, dict[str, Any]]:
    """Which variant a server plays as it stands, and the threshold keys of SweepConfig that say so.

    A server that does not say whether it speculates is filed under baseline; the manifest's warning tells.
    """
    if not info or info.get("speculative_algorithm") is None:
        return ("baseline_no_overlap" if (info or {}).get("disable_overlap_schedule") is True else "baseline"), {}
    threshold = (specpivot_block(info) or {}).get("threshold")
    if threshold is None or threshold == NEVER_DISABLE:
        return "eagle3", {}
    return ("forced_off", {}) if threshold == 0 else ("dynamic", {"threshold": threshold})


def _manifest(
    config: SweepConfig,
    asked: Asked,
    server: Server,
    variant: Variant,
    workload: TimedWorkload,
    command: Sequence[str],
) -> Manifest:
    block = server.record.worker_proof
    warnings = [f"the server lacks {', '.join(server.record.lacking)}"] if server.record.lacking else []
    if not server.record.server_args:
        warnings.append("the server does not say whether it speculates; it is filed under baseline")
    return msgspec.structs.replace(
        new_manifest(config, command),
        source="simulated" if server.simulation else "measured",
        config=msgspec.to_builtins(config) | {"bench": msgspec.to_builtins(asked)},
        workload=workload.describe(config.concurrency, 1),
        variants={variant: VariantRecord(server_run=server.record.server_run, policy=_held(block))},
        servers={server.record.server_run: server.record},
        simulation=server.simulation,
        warnings=tuple(warnings),
    )


def _held(proof: dict[str, Any]) -> dict[str, Any] | None:
    return {"policy_id": proof["policy_id"]} if "policy_id" in proof else None


def _report(run: RunFolder, row: LevelRow, asked: Asked, url: str) -> BenchReport:
    records = [record for record in run.requests() if record.attempt == row.attempt]
    window = (row.window_start_s, row.window_end_s)
    whole = row.window_end_s > row.window_start_s
    is_open = asked.arrivals.open_loop
    return BenchReport(
        run=str(run.path),
        source=run.manifest.source,
        url=url,
        loop="open" if is_open else "closed",
        point=row,
        open=open_metrics(records, *window) if is_open and whole else None,
        goodput=goodput(records, asked.limits, *window) if asked.limits != Slo() and whole else None,
        limits=asked.limits,
    )
