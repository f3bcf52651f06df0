"""Small run folders for the tests, written through the harness's own writer; everything in them is simulated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import numpy as np

from harness.records import (
    SCHEMA_VERSION,
    LevelRow,
    Manifest,
    ServerRecord,
    Settings,
    Source,
    Variant,
    VariantRecord,
    Workload,
)
from harness.runfolder import RunFolder, RunWriter

LEVELS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
Curve = Callable[[float], float]

SERVER = ServerRecord(
    server_run="41@1.0",
    url="http://127.0.0.1:30000",
    pid=41,
    start_time=1.0,
    arguments=("python", "-m", "patched_worker", "--model-path", "m"),
    version="0.5.16",
    server_args={
        "speculative_num_steps": 3,
        "speculative_eagle_topk": 1,
        "cuda_graph_bs": [1, 2, 4, 8, 16, 24, 32, 40],
    },
    worker="EAGLEWorkerV2",
)


def baseline(batch: float) -> float:
    """Tokens per second without speculation: saturates."""
    return 200 * batch / (1 + batch / 90)


def eagle3(batch: float) -> float:
    """Twice the baseline alone; crosses 0.97 of the baseline at a batch of about 49."""
    return 400 * batch / (1 + batch / 31)


def forced_off(batch: float) -> float:
    """3 % below the baseline."""
    return 0.97 * baseline(batch)


CURVES: dict[Variant, Curve] = {"baseline": baseline, "eagle3": eagle3, "forced_off": forced_off}


def rows(
    curves: Mapping[Variant, Curve] = CURVES,
    levels: Iterable[int] = LEVELS,
    repeats: int = 3,
    noise: float = 0.01,
    seed: int = 1,
    batch: Curve | None = lambda c: 0.95 * c,
) -> list[LevelRow]:
    """Rows as a sweep would give them, with lognormal noise; `batch` maps C to the decode batch, None hides it."""
    rng = np.random.default_rng(seed)
    found = []
    for repeat in range(1, repeats + 1):
        for variant, curve in curves.items():
            for c in levels:
                at = batch(c) if batch else float(c)
                rate = curve(at) * float(np.exp(noise * rng.standard_normal()))
                found.append(_row(variant, c, repeat, rate, at if batch else None))
    return found


def _row(variant: Variant, c: int, repeat: int, rate: float, batch: float | None) -> LevelRow:
    tpot_s = (batch or c) / rate
    return LevelRow(
        variant=variant,
        concurrency=c,
        repeat=repeat,
        status="done",
        verdict="ok",
        server_run=SERVER.server_run,
        decode_batch_mean=batch,
        requests=10 * c,
        duration_s=20.0,
        output_tok_per_s=rate,
        output_tok_per_s_low=0.98 * rate,
        output_tok_per_s_high=1.02 * rate,
        user_tok_per_s=1 / tpot_s,
        ttft_p50_s=0.05,
        tpot_p50_s=tpot_s,
        tpot_p50_s_low=0.99 * tpot_s,
        tpot_p50_s_high=1.01 * tpot_s,
    )


def manifest(source: Source = "simulated", **changes: Any) -> Manifest:
    """A manifest of one simulated H200; `changes` replace fields."""
    made = Manifest(
        schema=SCHEMA_VERSION,
        source=source,
        created_at="2026-01-02T03:04:05+00:00",
        command=("specpivot", "sweep", "--sim", "test"),
        specpivot_version="0.1.0",
        settings=Settings(("baseline", "eagle3", "forced_off"), LEVELS, 3, 20.0, 3.0),
        config={"sim": "test"},
        workload=Workload("random", 128, 128, 1, "a" * 64),
        environment={"gpus": [{"name": "NVIDIA H200", "memory_gib": 140}], "packages": {"sglang": "0.5.16"}},
        variants={
            "baseline": VariantRecord("40@1.0"),
            "eagle3": VariantRecord(SERVER.server_run, "baseline"),
            "forced_off": VariantRecord(SERVER.server_run, "baseline", {"threshold": 0}),
        },
        servers={SERVER.server_run: SERVER},
        confounders={"max_running_requests": "256 for every variant"},
        simulation={"preset": "test"} if source == "simulated" else None,
    )
    return msgspec.structs.replace(made, **changes)


def write_run(path: Path, points: Iterable[LevelRow] | None = None, made: Manifest | None = None) -> RunFolder:
    """Write a run folder and open it for reading."""
    # What the disk holds after a power cut is not under test here, and waiting for it is slow.
    with mock.patch("os.fsync"), RunWriter.create(path, made or manifest()) as writer:
        for row in rows() if points is None else points:
            writer.put_row(row)
    return RunFolder(path)
