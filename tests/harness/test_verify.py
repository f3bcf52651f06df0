"""verify finds a row that its requests do not support, and token counts that disagree."""

from pathlib import Path

import msgspec
import pytest

from harness.errors import UserError
from harness.metrics import level_metrics
from harness.records import LevelRow, Manifest, RequestRecord, Settings
from harness.runfolder import RunFolder, RunWriter
from harness.verify import ADDED_INTERVALS, verify_run
from tests.harness.test_runfolder import MANIFEST as EMPTY

MANIFEST = msgspec.structs.replace(EMPTY, settings=Settings(("forced_off",), (2,), 1, 1.0, 0.0), latency_intervals=True)
OLD = msgspec.structs.replace(MANIFEST, latency_intervals=False)
# Two slots, each busy for the whole of a second: ten requests of eight tokens, 24 ms apart.
RECORDS = [
    RequestRecord(
        "forced_off", 2, 1, index, start_s=index // 2 * 0.2, end_s=index // 2 * 0.2 + 0.2, attempt=2,
        chunk_ticks=(3200, *(2400,) * 7), output_tokens=8,
    )
    for index in range(10)
]  # fmt: skip


# Enough of them, at enough moments, for most intervals.
MANY = [msgspec.structs.replace(RECORDS[0], index=i, start_s=i * 0.02, end_s=i * 0.02 + 0.2) for i in range(40)]
UNUSED: dict[str, object] = {"status": "partial", "verdict": "interrupted"}


def write(path: Path, records: list[RequestRecord] = RECORDS, manifest: Manifest = MANIFEST, **changes: object) -> None:
    """A run with one point, whose row is right but for `changes`."""
    figures = level_metrics(records, 0.0, 1.0).row_fields()
    row = LevelRow("forced_off", 2, 1, "done", "ok", attempt=2, client_lag_p99_s=0.001, client_cpu=0.1, **figures)
    with RunWriter.create(path, manifest) as writer:
        writer.add_requests([msgspec.structs.replace(record, attempt=1, output_tokens=1) for record in records[:3]])
        writer.add_requests(records)
        writer.put_row(msgspec.structs.replace(row, **changes))


def test_a_sound_run(tmp_path: Path) -> None:
    """Earlier attempts do not count; client, server and worker agree, the worker without each request's first token."""
    write(tmp_path / "run", server_tokens=80, worker_tokens=70)
    report = verify_run(tmp_path / "run")
    assert (report.problems, report.points, report.token_checks, report.ok) == ((), 1, 2, True)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"output_tok_per_s": 90.0}, "output_tok_per_s is 90.0"),
        ({"ttft_p50_s": None}, "ttft_p50_s is None"),
        ({"requests": 9}, "requests is 9, the requests give 10"),
        ({"server_tokens": 81}, "the client counted 80 tokens, the server's /metrics 81"),
        ({"worker_tokens": 80}, "the client counted 70 decoded tokens, the worker 80"),
        ({"client_cpu": 0.99}, "its figures say client_limited"),
    ],
)
def test_what_does_not_hold_is_named(tmp_path: Path, changes: dict[str, object], words: str) -> None:
    """Each disagreement is one line that names the point and both values."""
    write(tmp_path / "run", **changes)
    (problem,) = verify_run(tmp_path / "run").problems
    assert words in problem
    assert problem.startswith("forced_off C=2 repeat 1: ")


def test_rows_from_before_the_intervals_stay_as_they_are(tmp_path: Path) -> None:
    """A row without any of the columns that came later verifies; a row that has some must have all, and right. In a run
    begun since, none may lack."""
    none: dict[str, object] = dict.fromkeys(ADDED_INTERVALS)
    write(tmp_path / "old", MANY, OLD, **UNUSED | none)
    assert verify_run(tmp_path / "old").ok
    (row,) = RunFolder(tmp_path / "old").levels()
    assert row.ttft_p50_s_low is None
    figures = level_metrics(MANY, 0.0, 1.0).row_fields()
    write(tmp_path / "new", MANY, **UNUSED | none)
    blanked = {problem.split()[4] for problem in verify_run(tmp_path / "new").problems}
    assert blanked == {name for name, figure in figures.items() if name in ADDED_INTERVALS and figure is not None}
    for name in ("ttft_p50_s_low", "gap_p99_s_low", "user_tok_per_s_high"):
        for value in (None, 7.5):
            write(tmp_path / f"{name}{value}", MANY, OLD, **UNUSED | {name: value})
            (problem,) = verify_run(tmp_path / f"{name}{value}").problems
            assert f"{name} is {value}" in problem


def test_a_patched_workers_accept_length_is_not_recomputed(tmp_path: Path) -> None:
    """It is the worker's own, without an interval; where no worker tells, the requests' own is checked."""
    told = [msgspec.structs.replace(record, verify_steps=4) for record in MANY]
    own = UNUSED | {"accept_len": 3.0, "accept_len_low": None, "accept_len_high": None}
    write(tmp_path / "patched", told, steps_on=20, **own)
    assert verify_run(tmp_path / "patched").ok
    write(tmp_path / "stock", told, **own)
    problems = verify_run(tmp_path / "stock").problems
    assert [problem.split()[4] for problem in problems] == ["accept_len", "accept_len_low", "accept_len_high"]


def test_failed_requests_leave_tokens_unattributed(tmp_path: Path) -> None:
    """No token comparison is claimed where a request failed."""
    broken = [*RECORDS[:-1], msgspec.structs.replace(RECORDS[-1], error="cancelled")]
    write(tmp_path / "run", broken, status="partial", verdict="interrupted", server_tokens=81)
    report = verify_run(tmp_path / "run")
    assert (report.token_checks, report.problems) == (0, ())


def test_write_puts_the_recomputed_figures_in_place(tmp_path: Path) -> None:
    """After --write the run verifies, and the rest of the row is as it was."""
    write(tmp_path / "run", output_tok_per_s=90.0, worker="W")
    assert verify_run(tmp_path / "run", write=True).written == 1
    assert verify_run(tmp_path / "run").ok
    # Two of the eighty tokens arrive at the window's very end, which is no longer in it.
    (row,) = RunFolder(tmp_path / "run").levels()
    assert (row.output_tok_per_s, row.worker) == (78.0, "W")


def test_a_lost_table_is_made_again_and_says_what_to_measure_again(tmp_path: Path) -> None:
    """Figures come back for the planned window; the proof does not, so the row is not usable and resume measures it."""
    run = tmp_path / "run"
    write(run, threshold=0)
    before = RunFolder(run).levels()[0]
    (run / "levels.csv").unlink()
    report = verify_run(run, write=True)
    assert report.problems == (
        "forced_off C=2 repeat 1: its row is lost, with the proof of what ran; measure it again (--resume)",
    )
    (row,) = RunFolder(run).levels()
    assert (row.status, row.verdict, row.attempt, row.threshold) == ("invalid", "row_lost", 2, None)
    assert (row.output_tok_per_s, row.ttft_p99_s) == (before.output_tok_per_s, before.ttft_p99_s)
    assert verify_run(run).ok


@pytest.mark.parametrize(
    "damage", ["forced_off,2,1,do\n", "\0\udcff,,,\n", "forced_off,2,1,done,ok," + "," * 90 + "\n"]
)
def test_a_damaged_row_is_named_and_left_out(tmp_path: Path, damage: str) -> None:
    """A reader refuses the table and points at verify --write, after which it can be read; sound rows stay."""
    run = tmp_path / "run"
    write(run)
    other = msgspec.structs.replace(RunFolder(run).levels()[0], concurrency=3)
    with RunWriter.resume(run) as writer:
        writer.put_row(other)
    heading, _, sound = (run / "levels.csv").read_text().splitlines(keepends=True)
    (run / "levels.csv").write_text(heading + damage + sound, errors="surrogateescape")
    with pytest.raises(UserError, match=r"specpivot verify --write|cannot be read"):
        RunFolder(run).levels()
    problems = verify_run(run, write=True).problems
    assert any("levels.csv:2 is damaged" in problem for problem in problems)
    assert any("forced_off C=2 repeat 1: its row is lost" in problem for problem in problems)
    rows = {row.concurrency: row for row in RunFolder(run).levels()}
    assert (rows[2].verdict, rows[3].verdict) == ("row_lost", "ok")
