"""Two runs side by side: differences with intervals, or the reason why they must not be compared.

Runs are comparable when one could have been a repeat of the other but for what is under test: both measured or both
simulated, the same requests (workload sha256), the same GPUs. Releases, arguments and variables may differ: that is
what one compares, and each such difference is named. Where the runs have no baseline in common, as v1 and v2 have not,
the one's reference is compared with the other's.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import msgspec
import numpy as np
import scipy

from harness.errors import UserError
from harness.records import VARIANTS, LevelRow, Manifest, Source, Variant
from harness.runfolder import RunFolder
from tuner.curves import pivot
from tuner.levels import reference_in, usable

MAX_EXPONENT = 700.0  # what a float's exponential can hold: two repeats that have nothing to do with each other
METRICS = ("output_tok_per_s", "tpot_p50_s")


class Difference(msgspec.Struct, frozen=True):
    """One metric of one variant at one concurrency.

    Attributes:
        a, b: geometric means over repeats, in the metric's unit.
        ratio: b / a, with its 95 % interval; the ends are None where neither run was repeated.
        clear: whether the interval excludes 1.
    """

    metric: str
    variant: Variant
    concurrency: int
    a: float
    b: float
    ratio: float
    low: float | None
    high: float | None
    clear: bool


class Comparison(msgspec.Struct, frozen=True):
    """Outcome of `compare`.

    Attributes:
        pivots: threshold and its 90 % interval of each run, by run name; absent where a run has none.
        not_shared: points that only one of the runs has.
        notes: in what else the runs differ, in words.
    """

    run_a: str
    run_b: str
    source: Source
    differences: tuple[Difference, ...]
    pivots: dict[str, dict[str, Any]]
    not_shared: int
    notes: tuple[str, ...]


def compare(run_a: RunFolder, run_b: RunFolder) -> Comparison:
    """Compare two runs point by point.

    Raises:
        UserError: they must not be compared, or share no usable point.
    """
    reasons = refusals(run_a.manifest, run_b.manifest)
    if reasons:
        raise UserError(f"{run_a.path} and {run_b.path} must not be compared: {'; '.join(reasons)}")
    a, b = _by_point(run_a), _by_point(run_b)
    one, two = _reference(run_a, a), _reference(run_b, b)
    paired = bool(one and two) and not _variants(a) & _variants(b) & {one, two}
    if one and paired:
        b = {(one if variant == two else variant, level): rows for (variant, level), rows in b.items()}
    shared = sorted(a.keys() & b.keys(), key=lambda key: (VARIANTS.index(key[0]), key[1]))
    if not shared:
        raise UserError(f"{run_a.path} and {run_b.path} share no usable point; measure the same variants and levels")
    found = [difference(metric, a[key], b[key]) for metric in METRICS for key in shared]
    names = _names(run_a, run_b)
    return Comparison(
        *names,
        source=run_a.manifest.source,
        differences=tuple(item for item in found if item is not None),
        pivots={name: fit for name, run in zip(names, (run_a, run_b), strict=True) if (fit := _pivot(run))},
        not_shared=len(a.keys() ^ b.keys()),
        notes=(
            *([f"reference: {one} and {two}, told as {one}"] if paired else []),
            *notes(run_a.manifest, run_b.manifest),
        ),
    )


def refusals(a: Manifest, b: Manifest) -> list[str]:
    """Every reason not to compare two runs; [] where they may be."""
    reasons = []
    if a.source != b.source:
        reasons.append(f"one is {a.source}, the other {b.source}")
    if a.schema != b.schema:
        reasons.append(f"their schemas differ ({a.schema} and {b.schema})")
    if a.workload.sha256 != b.workload.sha256:
        reasons.append(f"their requests differ ({_workload(a)} and {_workload(b)})")
    if _gpus(a) != _gpus(b):
        reasons.append(f"their GPUs differ ({_gpus(a) or 'none'} and {_gpus(b) or 'none'})")
    if a.simulation and b.simulation and a.simulation.get("preset") != b.simulation.get("preset"):
        reasons.append(f"their presets differ ({a.simulation.get('preset')} and {b.simulation.get('preset')})")
    return reasons


def notes(a: Manifest, b: Manifest) -> tuple[str, ...]:
    """What differs between comparable runs: server arguments, variables, releases, how long points lasted."""
    found = []
    for what, one, two in _facts(a, b):
        for key in sorted(one.keys() | two.keys()):
            if one.get(key) != two.get(key):
                found.append(f"{what} {key}: {one.get(key, 'not set')} and {two.get(key, 'not set')}")
    return tuple(found)


def difference(metric: str, a: list[LevelRow], b: list[LevelRow]) -> Difference | None:
    """Welch's interval for the ratio of two geometric means; None where the metric is undefined.

    Args:
        metric: a column of levels.csv.
        a, b: usable rows of one variant at one concurrency.
    """
    logs_a, logs_b = _logs(metric, a), _logs(metric, b)
    if not logs_a or not logs_b:
        return None
    mean_a, mean_b = float(np.mean(logs_a)), float(np.mean(logs_b))
    half = _half_width(logs_a, logs_b)
    shift = mean_b - mean_a
    return Difference(
        metric,
        a[0].variant,
        a[0].concurrency,
        math.exp(mean_a),
        math.exp(mean_b),
        math.exp(shift),
        None if half is None else math.exp(shift - half),
        None if half is None else math.exp(min(shift + half, MAX_EXPONENT)),
        half is not None and abs(shift) > half,
    )


def _half_width(a: list[float], b: list[float]) -> float | None:
    """Half of the 95 % interval of mean(b) - mean(a); None where the spread of either is unknown."""
    if len(a) < 2 or len(b) < 2:
        return None
    squares = [float(np.var(values, ddof=1)) / len(values) for values in (a, b)]
    total = sum(squares)
    if total == 0:
        return 0.0
    freedom = total**2 / sum(s**2 / (n - 1) for s, n in zip(squares, (len(a), len(b)), strict=True))
    return float(scipy.stats.t.ppf(0.975, freedom)) * math.sqrt(total)


def _logs(metric: str, rows: list[LevelRow]) -> list[float]:
    return [math.log(value) for row in rows if (value := getattr(row, metric))]


def _by_point(run: RunFolder) -> dict[tuple[Variant, int], list[LevelRow]]:
    found: dict[tuple[Variant, int], list[LevelRow]] = {}
    for row in usable(run.levels()):
        found.setdefault((row.variant, row.concurrency), []).append(row)
    return found


def _variants(points: Collection[tuple[Variant, int]]) -> set[Variant]:
    return {variant for variant, _ in points}


def _reference(run: RunFolder, points: Collection[tuple[Variant, int]]) -> Variant | None:
    """The reference of eagle3, where the run has both."""
    return reference_in(run.manifest, _variants(points)) if "eagle3" in _variants(points) else None


def _pivot(run: RunFolder) -> dict[str, Any] | None:
    record = run.manifest.variants.get("eagle3")
    fit = pivot(run.levels(), record.reference if record else None)
    return {"shape": fit.shape, "threshold": fit.threshold, "interval": fit.interval} if fit else None


def _names(a: RunFolder, b: RunFolder) -> tuple[str, str]:
    """Folder names, or whole paths where the names are the same."""
    if a.path.name != b.path.name:
        return a.path.name, b.path.name
    return str(a.path), str(b.path)


def _workload(manifest: Manifest) -> str:
    load = manifest.workload
    return f"{load.dataset} {load.input_tokens}/{load.output_tokens} tokens, sha256 {load.sha256[:8]}"


def _gpus(manifest: Manifest) -> list[str]:
    return [str(gpu.get("name")) for gpu in manifest.environment.get("gpus") or []]


def _facts(a: Manifest, b: Manifest) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    def servers(manifest: Manifest) -> dict[str, dict[str, Any]]:
        played = {v: manifest.servers.get(record.server_run) for v, record in manifest.variants.items()}
        return {v: {"version": s.version, "worker": s.worker, **s.env, **s.server_args} for v, s in played.items() if s}

    one, two = servers(a), servers(b)
    facts = [(f"{v}:", one[v], two[v]) for v in VARIANTS if v in one and v in two]
    settings = [{k: getattr(m.settings, k) for k in ("repeats", "duration_s", "warmup_s")} for m in (a, b)]
    packages = [dict(m.environment.get("packages") or {}) for m in (a, b)]
    return [*facts, ("sweep:", settings[0], settings[1]), ("package", packages[0], packages[1])]
