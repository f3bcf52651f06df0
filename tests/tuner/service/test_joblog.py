"""What a job said, in a line."""

from __future__ import annotations

from pathlib import Path

from tuner.service import joblog


def test_a_message_says_something(tmp_path: Path) -> None:
    """Neither the heading of the table, nor JSON, nor colours."""
    base = tmp_path / "job"
    assert joblog.message(base) == ""
    heading = f"{'variant':<20}{'C':>5} {'rep':>3}"
    joblog.file(base).write_text(f"6 points to measure\n{heading}\n\x1b[1m\n{{}}\n")
    assert joblog.message(base) == "6 points to measure"
    joblog.file(base).write_text("x" * 5000 + "\nlast\n")
    assert joblog.message(base) == "last"
