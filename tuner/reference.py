"""The run folder of a combination of draft settings, which begins with what the tuning's reference measured.

Only the reference is shared: what a tuning that has ended holds beside it is of the combination that was kept. The
folder is filled under another name first, so that one that has its name is whole.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import msgspec

from harness.records import SPECULATIVE_VARIANTS, Manifest
from harness.runfolder import MANIFEST, RunFolder, RunWriter, WriteFailed

BATCH = 1000  # records that are copied at once


@contextmanager
def combination_folder(whole: RunWriter, name: str, manifest: Manifest) -> Iterator[RunWriter]:
    """The run folder of a combination, with the reference's points in it.

    Args:
        whole: the tuning's own run folder, which holds those points.
        name: of the combination.
        manifest: of its run, where it begins now.

    Raises:
        WriteFailed: the folder could not be filled.
    """
    path = whole.path / name
    if not (path / MANIFEST).exists():
        _begin(whole, path, manifest)
    with RunWriter.resume(path) as writer:
        yield writer


def _begin(whole: RunWriter, path: Path, manifest: Manifest) -> None:
    reference = RunFolder(whole.path)
    played = {v: record for v, record in whole.manifest.variants.items() if v not in SPECULATIVE_VARIANTS}
    filled = path.with_name(f".{path.name}.new")
    try:
        if filled.exists():  # of a tuning that was killed while it filled it
            shutil.rmtree(filled)
        made = msgspec.structs.replace(manifest, servers=whole.manifest.servers, variants=played)
        with RunWriter.create(filled, made) as writer:
            records = (record for record in reference.requests() if record.variant not in SPECULATIVE_VARIANTS)
            while batch := list(islice(records, BATCH)):
                writer.add_requests(batch)
            writer.set_rows([row for row in reference.levels() if row.variant not in SPECULATIVE_VARIANTS])
        filled.rename(path)
    except OSError as error:
        raise WriteFailed(f"cannot make the run folder {path}: {error.strerror}; move what lies there away") from error
