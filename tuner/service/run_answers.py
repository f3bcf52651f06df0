"""What the service answers of runs, as records: the JSON on the wire and the schemas of openapi.json are these."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from harness.records import LevelRow, Source, Variant
from tuner.service.answers import Bounds

Format = Literal["json", "sglang", "sglang-adaptive", "vllm", "trtllm"]
Shape = Literal["crossover", "always_on", "always_off", "not_monotone"]


class RunSummary(msgspec.Struct, frozen=True):
    """One run in the list. `threshold` and `shape` are those of its recommendation, null where there is none;
    a null threshold beside a shape never disables. `points_planned` of a tuning is the most it may measure."""

    name: str
    source: Source
    created_s: float
    command: Literal["sweep", "tune", "bench"]
    variants: list[Variant]
    points_done: int
    points_planned: int
    usable: int
    threshold: int | None
    shape: Shape | None
    has_recommendation: bool
    job: str | None


class Runs(msgspec.Struct, frozen=True):
    """Every run in the results folder, newest first."""

    runs: list[RunSummary]


class VariantDetail(msgspec.Struct, frozen=True):
    """Why a variant was not run, null where it was; and what it is judged against."""

    not_run: str | None
    reference: Variant | None


class RunDetail(msgspec.Struct, frozen=True):
    """What a run's manifest says: how it was asked for, where it ran, on which servers."""

    name: str
    source: Source
    created_s: float
    settings: dict[str, Any]
    environment: dict[str, Any]
    servers: dict[str, Any]
    warnings: list[str]
    variants: dict[str, VariantDetail]
    points_planned: int
    points_done: int


class Levels(msgspec.Struct, frozen=True):
    """The rows of levels.csv."""

    levels: list[LevelRow]


class CurvePoint(msgspec.Struct, frozen=True):
    """One variant at one concurrency, over its usable repeats; `points` of them."""

    concurrency: int
    decode_batch: float
    tok_per_s: float
    tok_per_s_low: float
    tok_per_s_high: float
    tpot_s: float | None
    ttft_s: float | None
    user_tok_per_s: float | None
    points: int


class PivotAnswer(msgspec.Struct, frozen=True):
    """The fitted pivot and its 90 % interval; 0 never speculates, null never disables."""

    threshold: int | None
    low: int | None
    high: int | None
    shape: Shape


class CurvesAnswer(msgspec.Struct, frozen=True):
    """What the plots of a run are drawn from; `pivot` is null where the run cannot be judged."""

    run: str
    source: Source
    variants: dict[str, list[CurvePoint]]
    pivot: PivotAnswer | None


class RecommendationAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """recommendation.json; its four paragraphs stand in `words` as a list."""

    schema: int
    threshold: int | None
    interval: Bounds
    effective_threshold: int | None
    resume_at: int | None
    min_dwell_steps: int
    shape: Shape
    ladder: list[dict[str, int | None]] | None
    contexts: list[dict[str, Any]] = []
    objective: Literal["score", "throughput"]
    score: float
    score_interval: list[float]
    best_by_throughput: dict[str, Any]
    latency_c1: dict[str, Any]
    off_tax: dict[str, float]
    off: Variant
    reference: Variant
    source: Source
    evidence: dict[str, Any]
    warnings: list[str]
    words: list[str]


class ExportAnswer(msgspec.Struct, frozen=True):
    """The recommendation in another program's words, and remarks for who installs it."""

    format: Format
    text: str
    notes: list[str] = []


class DifferenceAnswer(msgspec.Struct, frozen=True):
    """One metric of one variant at one concurrency: geometric means, b / a and its 95 % interval (null where neither
    run was repeated), and whether that excludes 1."""

    metric: str
    variant: Variant
    concurrency: int
    a: float
    b: float
    ratio: float
    low: float | None
    high: float | None
    clear: bool


class ComparisonAnswer(msgspec.Struct, frozen=True):
    """What `specpivot compare` says."""

    run_a: str
    run_b: str
    source: Source
    differences: list[DifferenceAnswer]
    pivots: dict[str, dict[str, Any]]
    not_shared: int
    notes: list[str]
