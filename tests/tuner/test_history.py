"""What search_history.jsonl says that a tuning has spent."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import UserError
from tuner.history import HISTORY, note_history, spent_before


def test_the_last_life_counts_wherever_it_was(tmp_path: Path) -> None:
    """Below the run as well; lines without a time, and one that a crash cut off, say nothing."""
    assert spent_before(tmp_path) == 0.0
    note_history(tmp_path, "note", line="began", spent_s=12.5)
    note_history(tmp_path, "note", line="of an older version")
    (tmp_path / "steps5-topk1-tokens6").mkdir()
    note_history(tmp_path / "steps5-topk1-tokens6", "point", point="p", spent_s=80.0)
    with (tmp_path / HISTORY).open("ab") as history:
        history.write(b'{"kind":"note","spent_s":-4}\n\xff\n{"kind":"note","spent_s":90')
    assert spent_before(tmp_path) == 80.0


def test_a_history_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    """As with every file of a run folder."""
    (tmp_path / HISTORY).mkdir()
    with pytest.raises(UserError, match=HISTORY):
        note_history(tmp_path, "note")
    with pytest.raises(UserError, match="no regular file"):
        spent_before(tmp_path)
