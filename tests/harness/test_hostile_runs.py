"""Files of a run folder may be damaged or hostile: a reader returns sound figures or one line, never anything else."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.errors import UserError
from harness.records import LevelRow, RequestRecord
from harness.runfolder import LEVELS, PACKED_REQUESTS, REQUESTS, RunFolder, RunWriter
from harness.verify import verify_run
from tests.harness.test_runfolder import MANIFEST, record, row

POINT = row(window_end_s=2.0)
SOUND = {name: "" if value is None else str(value) for name, value in msgspec.structs.asdict(POINT).items()}

FUZZED = settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
NUMBERS = st.integers() | st.floats() | st.sampled_from([2**31, 2**63, 10**30, -1, 0, 1e308, 1e-320])
VALUES = NUMBERS | st.none() | st.booleans() | st.text(max_size=5) | st.lists(st.integers(), max_size=3)
TEXTS = NUMBERS.map(str) | st.text(max_size=8) | st.sampled_from(["nan", "-inf", "1e999", "\0", "x" * 200_000])


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A sound run of one point."""
    with RunWriter.create(tmp_path / "run", MANIFEST) as writer:
        writer.add_requests([record(0), record(1)])
        writer.put_row(POINT)
    return tmp_path / "run"


def complaint(read: Callable[[], object]) -> str | None:
    """The one line that a reader ends with; None where it read."""
    try:
        read()
    except UserError as error:
        return str(error)
    return None


def outcome(path: Path) -> None:
    """Let verify read all three files: figures, or one line."""
    assert "\n" not in (complaint(lambda: verify_run(path)) or "")


def write_levels(path: Path, *rows: dict[str, str]) -> None:
    text = io.StringIO()
    table = csv.DictWriter(text, list(LevelRow.__struct_fields__))
    table.writeheader()
    table.writerows(rows)
    (path / LEVELS).write_bytes(text.getvalue().encode(errors="surrogatepass"))


@FUZZED
@given(column=st.sampled_from(LevelRow.__struct_fields__), text=TEXTS)
def test_any_cell_of_levels_is_sound_or_refused(run: Path, column: str, text: str) -> None:
    """What is read has finite figures and a real concurrency: NaN, 1e308 or -1 would poison curves in silence."""
    write_levels(run, SOUND | {column: text})
    refused = complaint(RunFolder(run).levels)
    if refused is not None:
        assert LEVELS in refused
        return
    (read,) = RunFolder(run).levels()
    figures = [value for value in msgspec.structs.astuple(read) if isinstance(value, float)]
    assert all(math.isfinite(value) and abs(value) <= 1e12 for value in figures)
    assert read.concurrency >= 1
    outcome(run)


@FUZZED
@given(field=st.sampled_from(RequestRecord.__struct_fields__), value=VALUES)
def test_any_field_of_a_request_is_sound_or_refused(run: Path, field: str, value: Any) -> None:
    """verify ends with figures or one line whatever a single field holds."""
    line = json.dumps(json.loads(msgspec.json.encode(record(0))) | {field: value})
    (run / REQUESTS).write_text(line + "\n")
    outcome(run)


@FUZZED
@given(name=st.sampled_from([LEVELS, REQUESTS, "manifest.json", PACKED_REQUESTS]), body=st.binary(max_size=60))
def test_any_bytes_get_at_most_one_line(run: Path, name: str, body: bytes) -> None:
    """Garbage in place of any of the files."""
    sound = (run / name).read_bytes() if (run / name).exists() else None
    (run / name).write_bytes(body)
    outcome(run)
    (run / name).unlink() if sound is None else (run / name).write_bytes(sound)


@pytest.mark.parametrize(
    ("column", "text"),
    [
        *(("output_tok_per_s", text) for text in ("nan", "-1", "inf", "1e308", "1e-320")),
        *(("decode_batch_mean", "nan"), ("concurrency", "0"), ("threshold", "-2"), ("repeat", "-1")),
        *(("window_end_s", "1e-320"), ("window_end_s", "-1")),
    ],
)
def test_an_impossible_figure_names_line_and_column(run: Path, column: str, text: str) -> None:
    """The reader finds it, not a logarithm three modules later."""
    write_levels(run, SOUND | {column: text})
    with pytest.raises(UserError, match=rf"levels\.csv:2 is damaged: .*{column} is"):
        RunFolder(run).levels()


def test_a_point_with_two_rows_is_refused(run: Path) -> None:
    """Counted twice it would narrow every interval."""
    write_levels(run, SOUND, SOUND)
    with pytest.raises(UserError, match="two rows of baseline C=1 repeat 1"):
        RunFolder(run).levels()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"chunk_tokens": [1]}, "it has 2 chunk_ticks and 1 chunk_tokens"),
        ({"chunk_ticks": [2**31, 0]}, "chunk_ticks holds"),
        ({"chunk_ticks": [-5, 3]}, "chunk_ticks holds"),
        ({"output_tokens": -1}, "output_tokens is -1"),
        ({"end_s": 1e300}, "end_s is"),
    ],
)
def test_an_impossible_request_names_its_line(run: Path, changes: dict[str, Any], words: str) -> None:
    """As in levels.csv."""
    line = json.dumps(json.loads(msgspec.json.encode(record(0))) | changes)
    (run / REQUESTS).write_text(line + "\n")
    with pytest.raises(UserError, match=rf"requests\.jsonl:1 is damaged: {words}"):
        list(RunFolder(run).requests())


def test_damaged_compression_gets_one_line(run: Path) -> None:
    """Neither a cut nor a corrupt .gz is a traceback."""
    whole = gzip.compress((run / REQUESTS).read_bytes())
    (run / REQUESTS).unlink()
    for body in (whole[:-9], whole[:10] + b"\xff" * 40, b"no gzip"):
        (run / PACKED_REQUESTS).write_bytes(body)
        with pytest.raises(UserError, match="cannot be read"):
            list(RunFolder(run).requests())


def test_a_writer_that_cannot_begin_lets_go_of_the_folder(run: Path) -> None:
    """A damaged or unwritable file is one line, and the lock is not kept."""
    (run / LEVELS).write_text("variant\nnobody\n")
    with pytest.raises(UserError, match="damaged"):
        RunWriter.resume(run)
    write_levels(run, SOUND)
    (run / REQUESTS).unlink()
    (run / REQUESTS).mkdir()
    with pytest.raises(UserError, match="is no regular file"):
        RunWriter.resume(run)
    (run / REQUESTS).rmdir()
    RunWriter.resume(run).close()
