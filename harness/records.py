"""The nouns of a run, frozen, and the schema of its files.

A run folder holds manifest.json (Manifest), requests.jsonl (RequestRecord, one line per finished request) and
levels.csv (LevelRow, one row per point). A point is one variant at one concurrency in one repeat. Nothing is ever
removed from requests.jsonl: a point measured again has a higher `attempt`, and its row says which one counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_args

import msgspec

# A reader refuses another number; a change of meaning or a removed field raises it. 1 is the first format.
SCHEMA_VERSION = 1

Source = Literal["measured", "simulated"]
Status = Literal["done", "partial", "invalid"]
Variant = Literal["baseline", "baseline_no_overlap", "eagle3", "dynamic", "forced_off"]

VARIANTS: tuple[Variant, ...] = get_args(Variant)
PATCHED_VARIANTS: frozenset[Variant] = frozenset({"dynamic", "forced_off"})
SPECULATIVE_VARIANTS: frozenset[Variant] = frozenset({"eagle3", "dynamic", "forced_off"})

# Chunk arrivals are stored as whole ticks: exact enough for a gap of a millisecond, and a third of the bytes.
TICK_S = 1e-5


def json_file(value: object) -> bytes:
    """JSON as the files of a run hold it, for people too."""
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


class PointKey(msgspec.Struct, frozen=True, order=True):
    """Names one point of a run."""

    variant: Variant
    concurrency: int
    repeat: int

    def __str__(self) -> str:
        return f"{self.variant} C={self.concurrency} repeat {self.repeat}"


class RequestRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one finished request did. All times are in seconds on the point's own monotonic clock.

    Attributes:
        index: position in the point's planned request list.
        attempt: which measurement of the point this belongs to, from 1.
        worker: client process that sent it.
        start_s: when the request was due to be written to the socket (t0 of every latency).
        send_delay_s: from start_s until its last byte was handed to the socket.
        scheduled_s: when an open loop wanted it sent; None in a closed loop.
        end_s: when the stream ended, or when the error was known.
        chunk_ticks: arrivals of chunks with tokens, in TICK_S: the first from start_s, each other from the last.
        chunk_tokens: new tokens of each chunk; None means one each.
        tokens_exact: False where the API does not say how many tokens a chunk brought.
        planned_prompt_tokens, planned_output_tokens: what was asked for; None where the client cannot know.
        verify_steps: the server's own number of speculative verify steps for this request, where it says.
        finish_reason: as the server gave it, "length" or "stop" in a success.
        error: class of the failure (see harness.client), None in a success.
    """

    variant: Variant
    concurrency: int
    repeat: int
    index: int
    start_s: float
    end_s: float
    attempt: int = 1
    worker: int = 0
    send_delay_s: float = 0.0
    scheduled_s: float | None = None
    chunk_ticks: tuple[int, ...] = ()
    chunk_tokens: tuple[int, ...] | None = None
    tokens_exact: bool = True
    prompt_tokens: int | None = None
    planned_prompt_tokens: int | None = None
    output_tokens: int = 0
    planned_output_tokens: int | None = None
    cached_tokens: int | None = None
    verify_steps: int | None = None
    finish_reason: str | None = None
    degenerate: bool = False
    status_code: int | None = None
    error: str | None = None
    error_detail: str | None = None

    @property
    def key(self) -> PointKey:
        return PointKey(self.variant, self.concurrency, self.repeat)

    @property
    def ok(self) -> bool:
        return self.error is None

    def arrivals(self) -> Iterator[tuple[float, int]]:
        """(time in seconds on the point's clock, new tokens) of each chunk."""
        ticks = 0
        counts = self.chunk_tokens if self.chunk_tokens is not None else (1,) * len(self.chunk_ticks)
        for delta, tokens in zip(self.chunk_ticks, counts, strict=True):
            ticks += delta
            yield self.start_s + ticks * TICK_S, tokens


class LevelRow(msgspec.Struct, frozen=True):
    """One row of levels.csv: a point's metrics, its verdict and the proof of what ran.

    Formulas and units are in docs/metrics.md. A value that does not exist (tpot of one token, say) is None and an
    empty cell. `*_low` and `*_high` are the ends of a 95 % interval.
    """

    variant: Variant
    concurrency: int
    repeat: int
    status: Status
    verdict: str
    flags: str = ""  # space-separated remarks that do not invalidate
    attempt: int = 1
    server_run: str = ""  # "pid@start_time" of the server process, or its URL where that is unknown
    worker: str = ""  # worker class as proven by the server, "" where it says nothing
    threshold: int | None = None  # -1: never disable; None: not a patched server
    resume_at: int | None = None
    min_dwell: int | None = None
    decode_batch_mean: float | None = None
    requests: int = 0
    errors: int = 0
    dropped: int | None = None  # requests of an open loop that were not sent, 0 of a crowd; None in a closed loop
    duration_s: float = 0.0
    window_start_s: float = 0.0
    window_end_s: float = 0.0
    output_tok_per_s: float | None = None
    output_tok_per_s_low: float | None = None
    output_tok_per_s_high: float | None = None
    user_tok_per_s: float | None = None
    user_tok_per_s_low: float | None = None
    user_tok_per_s_high: float | None = None
    ttft_p50_s: float | None = None
    ttft_p50_s_low: float | None = None
    ttft_p50_s_high: float | None = None
    ttft_p99_s: float | None = None
    ttft_p99_s_low: float | None = None
    ttft_p99_s_high: float | None = None
    tpot_p50_s: float | None = None
    tpot_p50_s_low: float | None = None
    tpot_p50_s_high: float | None = None
    tpot_p99_s: float | None = None
    tpot_p99_s_low: float | None = None
    tpot_p99_s_high: float | None = None
    gap_p50_s: float | None = None
    gap_p50_s_low: float | None = None
    gap_p50_s_high: float | None = None
    gap_p99_s: float | None = None
    gap_p99_s_low: float | None = None
    gap_p99_s_high: float | None = None
    gap_max_s: float | None = None
    e2e_p50_s: float | None = None
    e2e_p50_s_low: float | None = None
    e2e_p50_s_high: float | None = None
    e2e_p99_s: float | None = None
    e2e_p99_s_low: float | None = None
    e2e_p99_s_high: float | None = None
    tokens_per_chunk: float | None = None
    accept_len: float | None = None
    accept_len_low: float | None = None
    accept_len_high: float | None = None
    in_flight_mean: float | None = None
    client_lag_p99_s: float | None = None
    client_cpu: float | None = None  # busiest client process, share of one core
    send_delay_p99_s: float | None = None
    window_slope: float | None = None  # relative change of throughput over the window
    window_autocorrelation: float | None = None  # lag-1, of the window's slices
    steps_on: int | None = None
    steps_off: int | None = None
    switches: int | None = None
    cached_tokens: int | None = None
    server_tokens: int | None = None  # /metrics delta over the point
    worker_tokens: int | None = None  # by_batch delta over the point
    ranks: int | None = None  # tensor-parallel ranks whose own counters and policy were equal after the point
    gpu_power_w: float | None = None  # the GPUs of the row's server together, mean over the window
    gpu_utilisation: float | None = None  # of the busiest, 0 to 1
    gpu_sm_clock_mhz: float | None = None  # of the busiest
    host_cpu_steal: float | None = None  # share of the CPU time in the window that the hypervisor gave to others
    host_cpu_busy: float | None = None  # share of it that was not idle, what was stolen included
    server_cpu_wait: float | None = None  # share of the window for which a busy thread of the server waited for a CPU
    server_cpu_used: float | None = None  # by the server's processes together, cores

    @property
    def key(self) -> PointKey:
        return PointKey(self.variant, self.concurrency, self.repeat)

    @property
    def usable(self) -> bool:
        return self.status == "done" and self.verdict == "ok"


class Gpu(msgspec.Struct, frozen=True):
    """One GPU of this machine: NVML's number, and the identity that stays when numbers change."""

    index: int
    uuid: str = ""


class ServerGpus(msgspec.Struct, frozen=True):
    """The GPUs that a row's gpu_* figures count, and in words where that is known from; () where there are none."""

    counted: tuple[Gpu, ...] = ()
    known_from: str = ""


class ServerRecord(msgspec.Struct, frozen=True):
    """One server process that took part in a run.

    Attributes:
        url: where it was reached, without credentials.
        arguments: command line of a server we started; () where it was attached to.
        env: environment variables that choose its class, acceptance or kernels.
        server_args: the resolved arguments it reports at /server_info; {} where it reports none.
        worker: the worker class that it proves to run, "" where it cannot.
        lacking: endpoints that it lacks, each of which leaves something unverified.
        gpus: the GPUs of this machine that it runs on, as far as can be known.
    """

    server_run: str
    url: str
    pid: int | None = None
    start_time: float | None = None
    arguments: tuple[str, ...] = ()
    env: dict[str, str] = {}
    version: str = ""
    server_args: dict[str, Any] = {}
    worker: str = ""
    worker_proof: dict[str, Any] = {}
    lacking: tuple[str, ...] = ()
    log: str = ""
    gpus: ServerGpus = ServerGpus()


class VariantRecord(msgspec.Struct, frozen=True):
    """How one variant was run, or why it was not.

    Attributes:
        server_run: the server that played it (several variants may share one).
        reference: the variant it is judged against.
        policy: threshold, resume_at and min_dwell set on a patched server.
        not_run: why this variant could not be run; None where it was.
    """

    server_run: str = ""
    reference: Variant | None = None
    policy: dict[str, Any] | None = None
    not_run: str | None = None


class Workload(msgspec.Struct, frozen=True):
    """What was sent, in words and as a hash over every request of every point."""

    dataset: str
    input_tokens: int | None
    output_tokens: int | None
    seed: int
    sha256: str
    api: str = "generate"
    tokenizer: str | None = None  # folder of the tokenizer whose template made token ids of a data set
    range_ratio: float | None = None  # half the width of random lengths, as a share of their mean
    under_way: bool = False  # whether the first C requests were found under way, see workload.py


class Settings(msgspec.Struct, frozen=True):
    """How the run was to be measured."""

    variants: tuple[Variant, ...]
    concurrency: tuple[int, ...]
    repeats: int
    duration_s: float
    warmup_s: float
    threshold: int | None = None
    resume_at: int | None = None
    min_dwell: int | None = None


class Manifest(msgspec.Struct, frozen=True):
    """manifest.json: everything needed to repeat a run and to judge what may be compared with it."""

    schema: int
    source: Source
    created_at: str  # ISO 8601, UTC
    command: tuple[str, ...]
    specpivot_version: str
    settings: Settings
    config: dict[str, Any]  # as given to the command, without secrets; --resume reads it
    workload: Workload
    environment: dict[str, Any]  # client host, GPU, driver, Python, versions
    variants: dict[str, VariantRecord] = {}
    servers: dict[str, ServerRecord] = {}  # by server_run
    confounders: dict[str, Any] = {}  # what was equalised, per variant, and what could not be
    simulation: dict[str, Any] | None = None  # preset, time scale, noise; None in a measured run
    warnings: tuple[str, ...] = ()
    latency_intervals: bool = False  # every row has them; a run begun before they came may have rows without
