"""Run folders of the benchmarks that measure servers: the same command goes on with them, several share servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from harness.errors import UserError
from harness.records import Manifest
from harness.runfolder import MANIFEST, RunFolder, RunWriter

# What another sitting may change: how long a start may take, and on which GPU.
_FREE, _FREE_ENV = "start_timeout", "CUDA_VISIBLE_DEVICES"


def begun(folder: Path, made: Manifest) -> RunWriter:
    """A run folder begun with this manifest, or gone on with where it was begun with the same settings and requests.

    Raises:
        UserError: it was begun with others; the message names what differs.
    """
    if not (folder / MANIFEST).exists():
        return RunWriter.create(folder, made)
    before = RunFolder(folder).manifest
    then, now = _settings(before), _settings(made)
    differing = sorted(name for name in then.keys() | now.keys() if then.get(name) != now.get(name))
    if not differing and before.workload.sha256 != made.workload.sha256:
        differing = ["requests"]
    if differing:
        raise UserError(f"{folder} was begun with other {', '.join(differing)}; give another --out")
    return RunWriter.resume(folder)


def _settings(manifest: Manifest) -> dict[str, Any]:
    settings: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(manifest.config))  # as read from a file
    env = {name: value for name, value in settings.get("server_env", {}).items() if name != _FREE_ENV}
    return {name: value for name, value in settings.items() if name != _FREE} | {"server_env": env}


def share_servers(first: RunWriter, other: RunWriter) -> None:
    """Write into another folder's manifest what the first one says of the servers, which measure for both."""
    manifest = first.manifest
    shared = {name: getattr(manifest, name) for name in ("variants", "source", "simulation")}
    servers = other.manifest.servers | manifest.servers
    other.set_manifest(msgspec.structs.replace(other.manifest, servers=servers, **shared))
