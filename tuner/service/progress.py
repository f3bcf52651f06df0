"""How far a run is: points done and planned, and the seconds left at the pace of its points.

A sweep ends with its last point, a tuning with its budget at the latest; both say so in their manifest and what they
have written since.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from harness.config import SweepConfig, make_config
from harness.errors import UserError
from harness.pace import Pace
from harness.records import LevelRow, Manifest, Variant
from tuner.history import points_before, spent_before


class Progress(msgspec.Struct, frozen=True):
    """How far a run is: `left_s` seconds from its last point on, at the pace of its points; None where unknown."""

    done: int
    planned: int
    left_s: float | None


class _Tuned(msgspec.Struct, frozen=True):
    """What a tuning's manifest says of its options, as far as it is needed here."""

    budget_s: float
    context_lengths: tuple[int, ...] = ()

    @classmethod
    def of(cls, manifest: Manifest) -> _Tuned:
        return msgspec.convert(manifest.config["tune"], cls)


def command(manifest: Manifest) -> Literal["sweep", "tune", "bench"]:
    """Which command made the run."""
    return "tune" if "tune" in manifest.config else "bench" if "bench" in manifest.config else "sweep"


def planned(manifest: Manifest) -> int:
    """How many points the run was to have; of a tuning, the most that its budget has room for."""
    kind = command(manifest)
    if kind == "bench":
        return 1
    if kind == "tune":
        return _most(manifest)
    settings = manifest.settings
    return len(_runnable(manifest)) * len(settings.concurrency) * settings.repeats


def _most(manifest: Manifest) -> int:
    try:
        options = _Tuned.of(manifest)
        return int(options.budget_s / tune_point_s(_config(manifest), options.context_lengths))
    except (UserError, TypeError, KeyError, ValueError):
        return 0


def _config(manifest: Manifest) -> SweepConfig:
    return make_config({name: value for name, value in manifest.config.items() if name != "tune"})


def tune_point_s(config: SweepConfig, context_lengths: Sequence[int]) -> float:
    """What a point takes before any is measured: the mean over levels and context lengths, () for the settings' own."""
    lengths = context_lengths or (config.input_tokens,)
    return sum(msgspec.structs.replace(config, input_tokens=length).point_s for length in lengths) / len(lengths)


def progress_of(path: Path, manifest: Manifest, rows: Sequence[LevelRow]) -> Progress:
    """Of a sweep what its missing points take, at the pace of the others; of a tuning what is left of its budget."""
    done, left_s = len(rows), None
    with suppress(UserError, TypeError, KeyError, ValueError):
        match command(manifest):
            case "sweep":
                left_s = _sweep_left_s(manifest, rows)
            case "tune":
                options = _Tuned.of(manifest)
                left_s = options.budget_s - spent_before(path)
                if options.context_lengths:  # the points of each length lie in a folder of their own
                    done = max(done, points_before(path))
    return Progress(done, max(planned(manifest), done), left_s)


def _sweep_left_s(manifest: Manifest, rows: Sequence[LevelRow]) -> float:
    """What the points of a sweep that have no row take."""
    asked, pace, runnable = manifest.settings, Pace(_config(manifest), rows), _runnable(manifest)
    there = Counter(row.concurrency for row in rows if row.variant in runnable)
    each = len(runnable) * asked.repeats
    return sum(pace.point_s(level) * max(0, each - there[level]) for level in asked.concurrency)


def _runnable(manifest: Manifest) -> set[Variant]:
    return set(manifest.settings.variants) - {name for name, record in manifest.variants.items() if record.not_run}
