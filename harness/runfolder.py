"""A run folder on disk: one writer at a time, appended line by line, never half a file.

manifest.json and levels.csv are replaced atomically; requests.jsonl is only ever appended to, and a line cut off by a
crash is ignored by readers and closed off by the next writer. A folder that is to be committed may hold
requests.jsonl.gz instead.
"""

from __future__ import annotations

import contextlib
import csv
import fcntl
import gzip
import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING

import msgspec

from harness.errors import UserError
from harness.levelsfile import COLUMNS, csv_of, row_of
from harness.plausible import manifest_problem, record_problem, repeated_point
from harness.records import SCHEMA_VERSION, LevelRow, Manifest, RequestRecord, json_file
from harness.regular import replace_file, require_regular

if TYPE_CHECKING:
    import pandas as pd

MANIFEST, REQUESTS, LEVELS = "manifest.json", "requests.jsonl", "levels.csv"
PACKED_REQUESTS = REQUESTS + ".gz"
_encoder = msgspec.json.Encoder()


class RunFolder:
    """Reads a run folder.

    Args:
        path: the folder.

    Raises:
        UserError: it is no run folder, or one of another schema.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest = _read_manifest(path)

    def levels(self) -> list[LevelRow]:
        """The rows of levels.csv, oldest first; [] before the first point."""
        file = require_regular(self.path / LEVELS)
        if not file.exists():
            return []
        with _reading(file), file.open(newline="", encoding="utf-8") as lines:
            table = csv.DictReader(lines, strict=True)
            rows = [row_of(file, number, cells) for number, cells in enumerate(table, start=2)]
        twice = repeated_point(rows)
        if twice is not None:
            raise UserError(f"{file} is damaged: it has two rows of {twice}; leave the one that counts")
        return rows

    def salvaged_levels(self) -> tuple[list[LevelRow], list[str]]:
        """The rows of levels.csv that can be read, and a line about each that cannot."""
        file = require_regular(self.path / LEVELS)
        if not file.exists():
            return [], []
        rows, complaints = [], []
        with _reading(file), file.open(newline="", encoding="utf-8", errors="replace") as lines:
            for number, cells in enumerate(csv.DictReader(line.replace("\0", "") for line in lines), start=2):
                try:
                    rows.append(row_of(file, number, cells))
                except UserError as error:
                    complaints.append(str(error))
        return list({row.key: row for row in rows}.values()), complaints

    def levels_frame(self) -> pd.DataFrame:
        """`levels` as a table, one column per field of LevelRow."""
        import pandas as pd  # 50 MB that the service, which reads runs all day, can do without

        return pd.DataFrame([msgspec.structs.asdict(row) for row in self.levels()], columns=list(COLUMNS))

    def requests(self) -> Iterator[RequestRecord]:
        """Every record of requests.jsonl (or its .gz), in the order they finished; a cut last line is left out."""
        decoder = msgspec.json.Decoder(RequestRecord)
        file = self._requests_file()
        with _reading(file), _open_lines(file) as lines:
            for number, line in enumerate(lines, start=1):
                if not line.endswith(b"\n"):
                    return
                if line.strip():
                    yield _decoded(decoder, line, f"{file}:{number}")

    def _requests_file(self) -> Path:
        packed = self.path / PACKED_REQUESTS
        return require_regular(packed if packed.exists() else self.path / REQUESTS)


class WriteFailed(UserError):
    """The run folder took no more, as a full disk does; what it holds is whole, and the run can be resumed."""


class RunWriter:
    """Writes a run folder; holds its lock while open, so two processes never write one run.

    Use `create` for a new run, `resume` for one that exists.
    """

    def __init__(self, path: Path, manifest: Manifest, lock: IO[str], salvage: bool = False) -> None:
        self.path = path
        self.manifest = manifest
        self._lock = lock
        self._rows = RunFolder(path).salvaged_levels()[0] if salvage else RunFolder(path).levels()
        self._requests = _open_for_append(path / REQUESTS)

    @classmethod
    def create(cls, path: Path, manifest: Manifest) -> RunWriter:
        """Make the folder and write its manifest.

        Raises:
            UserError: the folder already holds a run, or cannot be written.
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
            with ExitStack() as failing:
                lock = failing.enter_context(_locked(path))
                if (path / MANIFEST).exists():
                    raise UserError(f"{path} already holds a run; add --resume to go on with it, or give another --out")
                replace_file(path / MANIFEST, json_file(manifest))
                writer = cls(path, manifest, lock)
                failing.pop_all()
        except OSError as error:
            raise UserError(f"cannot write the run folder {path}: {error.strerror}; give another --out") from error
        return writer

    @classmethod
    def resume(cls, path: Path, salvage: bool = False) -> RunWriter:
        """Open a run to go on with it.

        Args:
            path: the run folder.
            salvage: leave rows of levels.csv out that cannot be read, instead of refusing the run.

        Raises:
            UserError: no run there, another schema, or another process is writing it.
        """
        manifest = _read_manifest(path)
        if (path / PACKED_REQUESTS).exists():
            raise UserError(f"{path} is packed ({PACKED_REQUESTS}); gunzip it first to resume the run")
        try:
            with ExitStack() as failing:
                writer = cls(path, manifest, failing.enter_context(_locked(path)), salvage)
                failing.pop_all()
            return writer
        except OSError as error:
            raise UserError(f"cannot write the run folder {path}: {error.strerror}; mend its permissions") from error

    @property
    def rows(self) -> tuple[LevelRow, ...]:
        return tuple(self._rows)

    def set_manifest(self, manifest: Manifest) -> None:
        """Replace the manifest.

        Raises:
            WriteFailed: it could not be written.
        """
        with _writing(self.path):
            replace_file(self.path / MANIFEST, json_file(manifest))
        self.manifest = manifest

    def add_requests(self, records: Iterable[RequestRecord]) -> None:
        """Append records; they are in the operating system's hands when this returns.

        Raises:
            WriteFailed: not all of them could be written; a line cut off is ignored by readers.
        """
        with _writing(self.path):
            self._requests.write(b"".join(_encoder.encode(record) + b"\n" for record in records))
            self._requests.flush()

    def put_row(self, row: LevelRow) -> None:
        """Add the row of a point, in place of an earlier attempt's.

        Raises:
            WriteFailed: it could not be written; the rows are as they were.
        """
        self.set_rows([old for old in self._rows if old.key != row.key] + [row])

    def set_rows(self, rows: list[LevelRow]) -> None:
        """Replace all rows; errors are those of `put_row`."""
        with _writing(self.path):
            os.fsync(self._requests.fileno())
            replace_file(self.path / LEVELS, csv_of(rows))
        self._rows = rows

    def close(self) -> None:
        with contextlib.suppress(OSError):  # of records that a full disk did not take, which was told when it happened
            self._requests.close()
        self._lock.close()

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turns what a full or failing disk raises into one line."""
    try:
        yield
    except OSError as error:
        raise WriteFailed(f"cannot write to {path}: {error.strerror}; what was measured is kept; make room") from error


def _read_manifest(path: Path) -> Manifest:
    file = require_regular(path / MANIFEST)
    try:
        body = file.read_bytes()
    except OSError as error:
        raise UserError(f"{path} is not a run folder: {file}: {error.strerror}; name one made by sweep") from error
    try:
        schema = msgspec.json.decode(body, type=_Schema).schema
        if schema != SCHEMA_VERSION:
            raise UserError(
                f"{file} has schema {schema}, this SpecPivot reads {SCHEMA_VERSION}; use the version that wrote it"
            )
        manifest = msgspec.json.decode(body, type=Manifest)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise UserError(f"{file} is damaged: {error}; restore it from a copy") from error
    problem = manifest_problem(manifest)
    if problem is not None:
        raise UserError(f"{file} is damaged: {problem}; restore it from a copy")
    return manifest


class _Schema(msgspec.Struct):
    schema: int


class _reading:
    """Turns what a damaged file raises into one line."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if isinstance(error, FileNotFoundError):
            raise UserError(f"{self.file} is missing; the run folder is incomplete") from error
        if isinstance(error, (OSError, EOFError, zlib.error, csv.Error, UnicodeDecodeError)):
            raise UserError(f"{self.file} cannot be read: {error}; restore it from a copy") from error


def _decoded(decoder: msgspec.json.Decoder[RequestRecord], line: bytes, place: str) -> RequestRecord:
    try:
        record = decoder.decode(line)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise UserError(f"{place} is damaged: {error}; restore the file from a copy") from error
    problem = record_problem(record)
    if problem is not None:
        raise UserError(f"{place} is damaged: {problem}; restore the file from a copy")
    return record


def _locked(path: Path) -> IO[str]:
    lock = require_regular(path / ".lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise UserError(f"another process is writing {path}; wait for it, or give another --out") from None
    return lock


def _open_for_append(file: Path) -> IO[bytes]:
    """Open requests.jsonl for appending; a line cut off by a crash is cut away first."""
    with require_regular(file).open("a+b") as end:
        end.seek(0)
        whole = 0
        for line in end:
            if line.endswith(b"\n"):
                whole += len(line)
        end.truncate(whole)
    return file.open("ab")


def _open_lines(file: Path) -> IO[bytes]:
    return gzip.open(file, "rb") if file.suffix == ".gz" else file.open("rb")  # type: ignore[return-value]  # gzip's stubs: no BinaryIO
