"""Measures one point on servers that are up: idle gate, flush, policy, load, proof, row. Sweep and tuner share it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from harness.api import PlannedRequest
from harness.checks import judge, sent_share
from harness.config import SweepConfig
from harness.crowd import Crowd, mean_users
from harness.edges import Reading, proven, read, with_counts
from harness.errors import UserError
from harness.hostcpu import WindowCpu, with_cpu
from harness.levelsfile import as_written
from harness.load import LoadResult, WorkerCrashed, run_closed_loop, run_open_loop
from harness.load_plan import LoadPlan
from harness.metrics import level_metrics
from harness.proof import wrong_worker
from harness.records import LevelRow, PointKey, RequestRecord, Status, Variant
from harness.runfolder import RunWriter
from harness.selftest import load_calibration
from harness.servers import Server, prove
from harness.telemetry import GpuSampler
from harness.workload import WorkloadPlan
from patched_worker.policy import NEVER_DISABLE, Policy

IDLE_TIMEOUT_S = 60.0
SLIP_LIMIT = 0.02  # of the window: a simulated server further behind has shown other step times than its table
WARM_UP_S = 6.0  # of load, before the first point
WARM_UP_REPEAT = 0  # whose requests no point sends


class Bench:
    """Servers, a workload and a run folder, ready to measure points.

    Args:
        config: the sweep's settings.
        writer: where records and rows go.
        servers: the server that plays each variant.
        workload: the request lists.
        attempts: how often each point was measured before.
        stop: set to end the point in progress early; its records are kept.
        open_loop: the workload's requests carry times, and concurrency only bounds what is in flight.
        drop_after_s: an open loop drops what is so late; None never drops.
        crowd: how many users a closed loop has at which second of the point's clock; () is the concurrency.
    """

    def __init__(
        self,
        config: SweepConfig,
        writer: RunWriter,
        servers: dict[Variant, Server],
        workload: WorkloadPlan,
        attempts: Counter[PointKey],
        stop: threading.Event,
        open_loop: bool = False,
        drop_after_s: float | None = None,
        crowd: Crowd = (),
    ) -> None:
        self.config = config
        self.writer = writer
        self.servers = servers
        self.workload = workload
        self.attempts = attempts
        self.stop = stop
        self.open_loop = open_loop
        self.drop_after_s = drop_after_s
        self.crowd = crowd
        self._calibration = load_calibration()

    def measure(
        self, key: PointKey, policy: Policy | None, on_progress: Callable[[float], None] | None = None
    ) -> LevelRow:
        """Measure a point and put its row into levels.csv.

        Args:
            key: the point; its variant's server must be up.
            policy: what the patched server must hold; None leaves a stock server alone.
            on_progress: called with the seconds of the point that have passed.
        """
        server = self.servers[key.variant]
        self.attempts[key] += 1
        row = self._measured(server, key, policy, on_progress)
        self.writer.put_row(row)
        return row

    def warm_up(self, server: Server) -> str | None:
        """Serve the largest load once, unmeasured, then freeze the garbage collector.

        A kernel is loaded when a batch first needs it, and a full collection in SGLang's processes stops all streams
        for up to half a second; either would fall into whichever point comes first. On its way up the load passes
        every smaller batch. /freeze_gc is SGLang's remedy.

        Returns:
            Why it could not be done; None where it was, or was told to stop.
        """
        always, never = Policy.from_threshold(None), Policy.from_threshold(0)
        level = self.config.max_concurrency
        key = PointKey(server.plan.variants[0], level, WARM_UP_REPEAT)
        plan = replace(self._load_plan(server, key), warmup_s=WARM_UP_S / 2, duration_s=WARM_UP_S / 2)
        for policy in (never, always) if server.patched else (None,):
            if self.stop.is_set():
                return None
            if problem := self._prepare(server, policy):
                return problem
            requests = self.workload.requests(level, WARM_UP_REPEAT)
            with suppress(WorkerCrashed):  # if that was no accident, the point itself will say so
                run_closed_loop(plan, requests, key, 0, lambda records: None, None, self.stop)
        server.endpoint.freeze_gc()
        return None

    def _measured(
        self, server: Server, key: PointKey, policy: Policy | None, on_progress: Callable[[float], None] | None
    ) -> LevelRow:
        set_policy = policy if server.patched else None
        problem = self._prepare(server, set_policy)
        if problem:
            return self._row(server, key, set_policy, "invalid", problem)
        before = read(server)
        if before.identity != server.identity:
            self._note_stranger(server, key)
            return self._row(server, key, set_policy, "invalid", "unproven_worker")
        records: list[RequestRecord] = []

        def keep(batch: Sequence[RequestRecord]) -> None:
            scaled = [stretched(record, self._scale(server)) for record in batch]
            records.extend(scaled)
            self.writer.add_requests(scaled)

        plan, requests = self._load_plan(server, key), self._requests(server, key)
        cpu = WindowCpu(None if server.simulation else server.pid, plan.warmup_s, plan.warmup_s + plan.duration_s)

        def progressed(point_s: float) -> None:
            cpu.at(point_s)
            if on_progress is not None:
                on_progress(point_s)

        run = run_open_loop if self.open_loop else run_closed_loop
        try:
            with GpuSampler([gpu.index for gpu in server.record.gpus.counted]) as gpu:
                result = run(plan, requests, key, self.attempts[key], keep, progressed, self.stop)
                used = cpu.figures()
        except WorkerCrashed:  # its own words are on standard error
            row = self._row(server, key, set_policy, "invalid", "client_crashed")
            return replace(row, **level_metrics(records, 0.0, 0.0).row_fields())
        after = read(server)
        row = self._judged(server, key, set_policy, records, result, before, after)
        return row if server.simulation else with_cpu(with_gpu(row, gpu, result), used)

    def _prepare(self, server: Server, policy: Policy | None) -> str | None:
        """Make the server ready for a point; the verdict when it cannot be."""
        if not server.endpoint.becomes_healthy():  # a dead one refuses at once
            return "server_died"
        if server.endpoint.flush_when_idle(IDLE_TIMEOUT_S) is False:
            return "server_busy"
        if policy is not None:
            try:
                server.endpoint.set_policy(policy)
            except UserError:
                return "policy_refused"
        return None

    def _load_plan(self, server: Server, key: PointKey) -> LoadPlan:
        scale = self._scale(server)
        return LoadPlan(
            url=server.endpoint.url,
            api=self.config.api,
            headers=server.endpoint.headers,
            concurrency=key.concurrency,
            warmup_s=self.config.warmup_s / scale,
            duration_s=self.config.duration_s / scale,
            workers=self.config.client_workers,
            transport=self.config.transport,
            drop_after_s=None if self.drop_after_s is None else self.drop_after_s / scale,
            crowd=tuple((at_s / scale, users) for at_s, users in self.crowd),
        )

    def _requests(self, server: Server, key: PointKey) -> Iterator[PlannedRequest]:
        requests = self.workload.requests(key.concurrency, key.repeat)
        scale = self._scale(server)
        if not self.open_loop or scale == 1.0:
            return requests
        return (replace(planned, due_s=(planned.due_s or 0.0) / scale) for planned in requests)

    @staticmethod
    def _scale(server: Server) -> float:
        return float(server.simulation["time_scale"]) if server.simulation else 1.0

    def _judged(
        self,
        server: Server,
        key: PointKey,
        policy: Policy | None,
        records: list[RequestRecord],
        result: LoadResult,
        before: Reading,
        after: Reading,
    ) -> LevelRow:
        scale = self._scale(server)
        window = (as_written(result.window_start_s * scale), as_written(result.window_end_s * scale))
        metrics = level_metrics(records, *window)
        dropped = result.dropped if self.open_loop or self.crowd else None
        share = sent_share(len(records), dropped)
        if self.crowd and metrics.duration_s:
            share = (metrics.in_flight_mean or 0.0) / mean_users(self.crowd, *window)
        steps, unproven = proven(before, after, policy)
        if after.identity != server.identity:
            self._note_stranger(server, key)
            unproven = unproven or "another server answers at this address"
        unproven = unproven or wrong_worker(self.config.worker, server.record.worker)
        client = replace(result.client, lag_p99_s=result.client.lag_p99_s * scale)
        judgement = judge(
            metrics,
            client,
            key.concurrency,
            workers=result.workers,
            interrupted=result.interrupted,
            server_died=result.server_died or (metrics.errors > 0 and not server.endpoint.becomes_healthy()),
            unproven=unproven,
            shared_prefix=self.workload.shares_prefix,
            open_share=share,
            calibration=None if server.simulation else self._calibration,
        )
        row = self._row(server, key, policy, judgement.status, judgement.verdict)
        if row.usable and after.slipped_s - before.slipped_s > SLIP_LIMIT * metrics.duration_s:
            row = replace(row, status="invalid", verdict="simulation_slipped")
        row = replace(row, flags=judgement.flags, dropped=dropped, **metrics.row_fields())
        row = replace(row, client_lag_p99_s=client.lag_p99_s, client_cpu=client.cpu)
        return with_counts(row, steps, before, after)

    def _note_stranger(self, server: Server, key: PointKey) -> None:
        """Write into the manifest which server answers now where another was proven before."""
        now = prove(server.plan, server.endpoint).record
        manifest = self.writer.manifest
        warning = (
            f"from {key} on, {now.server_run} answers in place of {server.record.server_run}: restarted or changed"
        )
        if now.server_run not in manifest.servers:
            self.writer.set_manifest(
                replace(
                    manifest,
                    servers={**manifest.servers, now.server_run: now},
                    warnings=(*manifest.warnings, warning),
                )
            )

    def _row(self, server: Server, key: PointKey, policy: Policy | None, status: Status, verdict: str) -> LevelRow:
        return LevelRow(
            variant=key.variant,
            concurrency=key.concurrency,
            repeat=key.repeat,
            status=status,
            verdict=verdict,
            attempt=self.attempts[key],
            server_run=server.record.server_run,
            worker=server.record.worker,
            threshold=None if policy is None else NEVER_DISABLE if policy.threshold is None else policy.threshold,
            resume_at=policy.resume_at if policy else None,
            min_dwell=policy.min_dwell if policy else None,
        )


def with_gpu(row: LevelRow, gpu: GpuSampler, result: LoadResult) -> LevelRow:
    """The row with what the server's GPUs did in the window; as it is where there are none."""
    figures = gpu.figures(result.zero_s + result.window_start_s, result.zero_s + result.window_end_s)
    if figures is None:
        return row
    return msgspec.structs.replace(
        row,
        gpu_power_w=figures.power_w,
        gpu_utilisation=figures.utilisation,
        gpu_sm_clock_mhz=figures.sm_clock_mhz,
        flags=" ".join([*row.flags.split(), *figures.flags]),
    )


def stretched(record: RequestRecord, scale: float) -> RequestRecord:
    """A record on the simulated clock, on which `scale` seconds pass per second of ours."""
    if scale == 1.0:
        return record
    return replace(
        record,
        start_s=record.start_s * scale,
        end_s=record.end_s * scale,
        send_delay_s=record.send_delay_s * scale,
        scheduled_s=None if record.scheduled_s is None else record.scheduled_s * scale,
        chunk_ticks=tuple(round(ticks * scale) for ticks in record.chunk_ticks),
    )
