"""levels.csv as text: one row per point under a heading of LevelRow's fields, numbers with seven digits."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

import msgspec

from harness.errors import UserError
from harness.plausible import row_problem
from harness.records import LevelRow

COLUMNS = LevelRow.__struct_fields__


def row_of(file: Path, number: int, cells: dict[str, str]) -> LevelRow:
    """One row from its cells by column; columns that we do not know are passed over.

    Args:
        file, number: where it stands, for the message.

    Raises:
        UserError: a cell that its column cannot hold, or figures that cannot be.
    """
    try:
        if None in cells or None in cells.values():
            raise ValueError("it has not as many cells as the heading")
        row = msgspec.convert({n: text for n, text in cells.items() if n in COLUMNS and text}, LevelRow, strict=False)
        if problem := row_problem(row):
            raise ValueError(problem)
    except ValueError as error:
        remedy = "`specpivot verify --write` saves what can be and names the rest"
        raise UserError(f"{file}:{number} is damaged: {error}; {remedy}") from error
    return row


def csv_of(rows: Sequence[LevelRow]) -> bytes:
    """The whole file."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    table.writerows([_cell(value) for value in msgspec.structs.astuple(row)] for row in rows)
    return text.getvalue().encode()


def _cell(value: object) -> object:
    if value is None:
        return ""
    return f"{value:.7g}" if isinstance(value, float) else value


def as_written(value: float) -> float:
    """A number as levels.csv gives it back. Windows are cut there, so that a row and its requests count the same."""
    return float(f"{value:.7g}")
