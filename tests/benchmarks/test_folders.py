"""Run folders that a benchmark goes on with: of the same settings and requests, and no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.folders import begun
from harness.config import make_config
from harness.errors import UserError
from harness.manifest import new_manifest
from harness.records import Manifest
from harness.runfolder import RunWriter


def made(**changed: Any) -> Manifest:
    settings = {
        "model": "M",
        "draft": "D",
        "concurrency": [1, 4],
        "server_env": {"CUDA_VISIBLE_DEVICES": "0", "A": "1"},
    }
    return new_manifest(make_config(settings | changed), ("benchmark",))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    RunWriter.create(tmp_path / "run", made()).close()
    return tmp_path / "run"


def test_a_folder_is_begun_or_gone_on_with(tmp_path: Path, folder: Path) -> None:
    """Another GPU and more patience at the start are the same measurement."""
    begun(tmp_path / "new", made()).close()
    for manifest in (made(), made(start_timeout=5.0, server_env={"CUDA_VISIBLE_DEVICES": "1", "A": "1"})):
        begun(folder, manifest).close()
    with RunWriter.resume(folder) as writer:
        assert writer.manifest.command == ("benchmark",)


@pytest.mark.parametrize(
    ("manifest", "named"),
    [
        (made(server_args=["--enable-metrics"]), "server_args"),
        (made(server_env={"CUDA_VISIBLE_DEVICES": "0", "A": "2"}), "server_env"),
        (made(model="N", draft="E"), "draft, model"),
        (made(repeats=7), "repeats"),
        (msgspec.structs.replace(made(), config=made().config | {"wave": "ramp"}), "wave"),
    ],
)
def test_other_settings_are_named(folder: Path, manifest: Manifest, named: str) -> None:
    """One line says what differs."""
    with pytest.raises(UserError, match=f"was begun with other {named}; give another --out"):
        begun(folder, manifest)


def test_other_requests_are_refused(folder: Path) -> None:
    """A dataset's file may have changed under the same name."""
    manifest = made()
    other = msgspec.structs.replace(manifest, workload=msgspec.structs.replace(manifest.workload, sha256="0" * 64))
    with pytest.raises(UserError, match="other requests"):
        begun(folder, other)
