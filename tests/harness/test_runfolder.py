"""A run folder survives crashes, refuses what it cannot read, and has one writer."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import msgspec
import pytest

from harness.errors import UserError
from harness.records import SCHEMA_VERSION, LevelRow, Manifest, RequestRecord, Settings, Workload
from harness.runfolder import RunFolder, RunWriter

MANIFEST = Manifest(
    schema=SCHEMA_VERSION,
    source="simulated",
    created_at="2026-01-01T00:00:00+00:00",
    command=("specpivot", "sweep"),
    specpivot_version="0",
    settings=Settings(("baseline",), (1,), 1, 1.0, 0.0),
    config={},
    workload=Workload("random", 8, 8, 1, "0" * 64),
    environment={},
)


def record(index: int, attempt: int = 1) -> RequestRecord:
    """A small finished request."""
    return RequestRecord("baseline", 1, 1, index, 0.5, 1.0, attempt=attempt, chunk_ticks=(100, 200), output_tokens=2)


def row(**changes: object) -> LevelRow:
    """A usable row."""
    return msgspec.structs.replace(LevelRow("baseline", 1, 1, "done", "ok", output_tok_per_s=12.5), **changes)


def test_round_trip(tmp_path: Path) -> None:
    """What was written is what is read."""
    with RunWriter.create(tmp_path / "run", MANIFEST) as writer:
        writer.add_requests([record(0), record(1)])
        writer.put_row(row())
    run = RunFolder(tmp_path / "run")
    assert (run.manifest, run.levels(), list(run.requests())) == (MANIFEST, [row()], [record(0), record(1)])
    assert run.levels_frame().loc[0, "output_tok_per_s"] == 12.5


def test_a_copied_run_is_read_and_resumed_alike(tmp_path: Path) -> None:
    """Nothing in a run folder depends on where it lies."""
    with RunWriter.create(tmp_path / "run", MANIFEST) as writer:
        writer.add_requests([record(0)])
        writer.put_row(row())
    shutil.copytree(tmp_path / "run", tmp_path / "elsewhere" / "copy")
    shutil.rmtree(tmp_path / "run")
    with RunWriter.resume(tmp_path / "elsewhere" / "copy") as writer:
        writer.add_requests([record(1)])
    run = RunFolder(tmp_path / "elsewhere" / "copy")
    assert (run.levels(), list(run.requests())) == ([row()], [record(0), record(1)])


def test_arrivals_add_up() -> None:
    """Chunk ticks count from the start and from each other; one token each where nothing else is said."""
    assert list(record(0).arrivals()) == [(0.501, 1), (0.503, 1)]


def test_a_measured_again_point_has_one_row(tmp_path: Path) -> None:
    """A later attempt replaces the row; its requests stay beside the earlier ones."""
    with RunWriter.create(tmp_path / "run", MANIFEST) as writer:
        writer.put_row(row(status="partial", verdict="interrupted"))
        writer.put_row(row(attempt=2))
    assert RunFolder(tmp_path / "run").levels() == [row(attempt=2)]


def test_a_cut_line_is_not_a_record(tmp_path: Path) -> None:
    """A crash in the middle of a line loses that line only, and the next writer goes on after the last whole one."""
    with RunWriter.create(tmp_path / "run", MANIFEST) as writer:
        writer.add_requests([record(0)])
    with (tmp_path / "run" / "requests.jsonl").open("ab") as file:
        file.write(b'{"variant": "base')
    assert list(RunFolder(tmp_path / "run").requests()) == [record(0)]
    with RunWriter.resume(tmp_path / "run") as writer:
        writer.add_requests([record(1)])
    assert list(RunFolder(tmp_path / "run").requests()) == [record(0), record(1)]


def test_packed_requests_are_read(tmp_path: Path) -> None:
    """A committed run holds requests.jsonl.gz; it is read alike and not resumed by accident."""
    with RunWriter.create(tmp_path / "run", MANIFEST) as writer:
        writer.add_requests([record(0)])
    plain = tmp_path / "run" / "requests.jsonl"
    plain.with_name("requests.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    assert list(RunFolder(tmp_path / "run").requests()) == [record(0)]
    with pytest.raises(UserError, match="packed"):
        RunWriter.resume(tmp_path / "run")


def test_two_writers_are_refused(tmp_path: Path) -> None:
    """The second process on one run folder is told so."""
    with (
        RunWriter.create(tmp_path / "run", MANIFEST),
        pytest.raises(UserError, match="another process is writing"),
    ):
        RunWriter.resume(tmp_path / "run")


def test_an_existing_run_is_not_overwritten(tmp_path: Path) -> None:
    """A new sweep into a used folder needs --resume or another --out."""
    RunWriter.create(tmp_path / "run", MANIFEST).close()
    with pytest.raises(UserError, match="already holds a run"):
        RunWriter.create(tmp_path / "run", MANIFEST)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "damaged"),
        (b"[" * 100_000, "damaged"),
        (b'{"schema": 99}', "schema 99"),
        (b'{"schema": 1}', "missing required field"),
        (b'{"schema": "\xff"}', "damaged"),
    ],
)
def test_a_bad_manifest_gets_one_line(tmp_path: Path, body: bytes, message: str) -> None:
    """Truncated, hostile or foreign manifests are named, never a traceback."""
    (tmp_path / "manifest.json").write_bytes(body)
    with pytest.raises(UserError, match=message) as caught:
        RunFolder(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("body", ["variant\nnobody\n", "variant,concurrency\nbaseline,many\n", '"'])
def test_a_bad_levels_file_gets_one_line(tmp_path: Path, body: str) -> None:
    """A damaged levels.csv names file and remedy."""
    RunWriter.create(tmp_path / "run", MANIFEST).close()
    (tmp_path / "run" / "levels.csv").write_text(body)
    with pytest.raises(UserError, match=r"levels\.csv"):
        RunFolder(tmp_path / "run").levels()


def test_a_folder_that_cannot_be_made_gets_one_line(tmp_path: Path) -> None:
    """A file in the way, as with any unwritable place, is named with a remedy."""
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="give another --out"):
        RunWriter.create(tmp_path / "file" / "run", MANIFEST)
