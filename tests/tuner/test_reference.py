"""The run folder that a combination of draft settings begins with."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.records import RequestRecord, Variant
from harness.runfolder import RunFolder, RunWriter, WriteFailed
from tests.tuner.runs import LEVELS, manifest, rows, write_run
from tuner.reference import combination_folder

NAME = "steps5-topk1-tokens6"


@pytest.fixture
def whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tuning that has ended: RUN holds the reference, and the points of the combination that was kept."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    path = write_run(tmp_path / "run", rows(repeats=1)).path
    variants: tuple[Variant, ...] = ("baseline", "eagle3", "forced_off")
    with RunWriter.resume(path) as writer:
        writer.add_requests([RequestRecord(v, 1, 1, index, 0.5, 1.0) for index in range(3) for v in variants])
    return path


def test_only_the_reference_is_shared(whole: Path) -> None:
    """A combination that was not reached before does not begin with the points of the one that was kept."""
    with RunWriter.resume(whole) as writer, combination_folder(writer, NAME, manifest()) as mine:
        assert {row.variant for row in mine.rows} == {"baseline"}
    made = RunFolder(whole / NAME)
    assert [record.variant for record in made.requests()] == ["baseline"] * 3
    assert set(made.manifest.variants) == {"baseline"}
    assert len(made.levels()) == len(LEVELS)


def test_killed_while_it_was_filled(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the records and the rows: nothing has its name yet, and the next try holds each record once."""
    with monkeypatch.context() as dying, RunWriter.resume(whole) as writer:
        dying.setattr(RunWriter, "set_rows", lambda self, found: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt), combination_folder(writer, NAME, manifest()):
            pass
    assert not (whole / NAME).exists()
    for _ in range(2):  # and going on with it adds none
        with RunWriter.resume(whole) as writer, combination_folder(writer, NAME, manifest()) as mine:
            assert len(mine.rows) == len(LEVELS)
    assert [record.index for record in RunFolder(whole / NAME).requests()] == [0, 1, 2]
    assert sorted(path.name for path in whole.glob("*steps5*")) == [NAME]


def test_something_else_lies_there(whole: Path) -> None:
    """One line that names it; what lies there stays."""
    (whole / NAME).mkdir()
    (whole / NAME / "mine.txt").write_text("kept")
    with (
        RunWriter.resume(whole) as writer,
        pytest.raises(WriteFailed, match=NAME),
        combination_folder(writer, NAME, manifest()),
    ):
        pass
    assert (whole / NAME / "mine.txt").read_text() == "kept"
