"""The runs in the results folder, read in a thread and kept until one of their files changes.

Whoever made a run (this service, or a command line on the same folder) it is found by looking; nothing is indexed.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from threading import Lock

import msgspec

from harness.errors import UserError
from harness.records import LevelRow, Manifest
from harness.runfolder import LEVELS, MANIFEST, RunFolder
from tuner.history import HISTORY
from tuner.service import run_answers
from tuner.service.names import RECOMMENDATION, holds_run, is_name, run_folder
from tuner.service.progress import Progress, command, planned, progress_of
from tuner.service.refusal import Refusal

Signature = tuple[tuple[int, int, int], ...]


class _Found(msgspec.Struct, frozen=True):
    """What the list shows of recommendation.json."""

    threshold: int | None
    shape: run_answers.Shape


class _Known(msgspec.Struct, frozen=True):
    signature: Signature
    summary: run_answers.RunSummary | None = None  # None: it cannot be read
    progress: Progress | None = None


class Runs:
    """Reads runs; every method may be called from any thread.

    Args:
        results: the results folder, resolved.
    """

    def __init__(self, results: Path) -> None:
        self.results = results
        self._lock = Lock()
        self._known: dict[str, _Known] = {}

    def names(self) -> list[str]:
        """The names of folders that hold a manifest."""
        try:
            return [f.name for f in self.results.iterdir() if is_name(f.name) and holds_run(f)]
        except OSError:
            return []

    def all(self) -> list[run_answers.RunSummary]:
        """Every run that can be read, newest first, without its job."""
        names = self.names()
        with self._lock:
            for gone in self._known.keys() - set(names):
                del self._known[gone]
        found = [summary for name in names if (summary := self.summary(name)) is not None]
        return sorted(found, key=lambda run: (run.created_s, run.name), reverse=True)

    def summary(self, name: str) -> run_answers.RunSummary | None:
        """One run; None where it is damaged, may not be read or leads out of the folder."""
        return self._now(name).summary

    def progress(self, name: str) -> Progress | None:
        """How far one run is; None as of `summary`."""
        return self._now(name).progress

    def _now(self, name: str) -> _Known:
        now = signature(self.results / name)
        with self._lock:
            kept = self._known.get(name)
        if kept is not None and kept.signature == now:
            return kept
        try:
            run = RunFolder(run_folder(self.results, name))
            manifest, rows = run.manifest, run.salvaged_levels()[0]
            made = _Known(now, _summary(name, run.path, manifest, rows), progress_of(run.path, manifest, rows))
        except (UserError, Refusal, OSError):
            made = _Known(now)
        with self._lock:
            kept = self._known.get(name)
            if kept is not None and kept.signature == now:  # another thread was quicker: one answer for all
                return kept
            self._known[name] = made
        return made

    def detail(self, name: str) -> run_answers.RunDetail:
        """What the manifest says.

        Raises:
            Refusal: there is no such run.
            UserError: it is damaged.
        """
        run = RunFolder(run_folder(self.results, name))
        manifest = run.manifest
        return run_answers.RunDetail(
            name=name,
            source=manifest.source,
            created_s=created_s(manifest),
            settings=msgspec.to_builtins(manifest.settings) | {"workload": msgspec.to_builtins(manifest.workload)},
            environment=manifest.environment,
            servers=msgspec.to_builtins(manifest.servers),
            warnings=list(manifest.warnings),
            variants={
                variant: run_answers.VariantDetail(record.not_run, record.reference)
                for variant, record in manifest.variants.items()
            },
            points_planned=planned(manifest),
            points_done=len(run.salvaged_levels()[0]),
        )

    def levels(self, name: str) -> run_answers.Levels:
        """The rows of levels.csv; errors are those of `detail`."""
        return run_answers.Levels(RunFolder(run_folder(self.results, name)).levels())


def signature(folder: Path) -> Signature:
    """Changes when a file of the run that answers depend on does."""
    found = []
    for file in (MANIFEST, LEVELS, RECOMMENDATION, HISTORY):
        try:
            stat = (folder / file).stat()
            found.append((stat.st_mtime_ns, stat.st_size, stat.st_ino))
        except OSError:
            found.append((0, 0, 0))
    return tuple(found)


def created_s(manifest: Manifest) -> float:
    """When the run began; 0 where its manifest says no time."""
    try:
        return datetime.fromisoformat(manifest.created_at).timestamp()
    except ValueError:
        return 0.0


def _summary(name: str, path: Path, manifest: Manifest, rows: Sequence[LevelRow]) -> run_answers.RunSummary:
    found = _recommended(path / RECOMMENDATION)
    return run_answers.RunSummary(
        name=name,
        source=manifest.source,
        created_s=created_s(manifest),
        command=command(manifest),
        variants=list(manifest.settings.variants),
        points_done=len(rows),
        points_planned=max(planned(manifest), len(rows)),
        usable=sum(row.usable for row in rows),
        threshold=found.threshold if found else None,
        shape=found.shape if found else None,
        has_recommendation=found is not None,
        job=None,
    )


def _recommended(file: Path) -> _Found | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=_Found)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
