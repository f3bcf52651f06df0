"""Step records survive the file, and a full disk harms nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from patched_worker import steptrace
from patched_worker.steptrace import RECORD, StepRecord, Trace, packed, unpacked

STEP = StepRecord(
    batch=64, context=20000, drafts=3, flipped=True, after_idle=False, tokens=150, seconds=0.5, prefill_s=0.25, joined=2
)


def test_a_record_is_22_bytes_and_comes_back() -> None:
    """Every field, both flags."""
    other = replace(STEP, flipped=False, after_idle=True, drafts=0, prefill_s=0.0, joined=0)

    assert RECORD.size == 22
    assert unpacked(packed(STEP) + packed(other)) == [STEP, other]


def test_counts_too_large_for_their_field_are_cut() -> None:
    """A record must never end a server."""
    (found,) = unpacked(packed(replace(STEP, batch=10**6, joined=10**6, context=10**12)))

    assert (found.batch, found.joined, found.context) == (0xFFFF, 0xFFFF, 0xFFFFFFFF)


def test_a_server_that_is_killed_loses_few_steps(tmp_path: Path) -> None:
    """Nobody flushes or closes: all but the last few are in the file, after every step."""
    file = tmp_path / "steps.trace"
    trace = Trace(file)
    for steps in range(1, 201):
        trace.append(STEP)
        assert steps - len(unpacked(file.read_bytes().partition(b"\n")[2])) < 32
    trace.close()


def test_the_file_holds_a_header_and_the_records(tmp_path: Path) -> None:
    """What was appended, after what made it."""
    file = tmp_path / "steps.trace"
    trace = Trace(file, {"num_steps": 3})
    for _ in range(3):
        trace.append(STEP)
    trace.close()
    header, _, body = file.read_bytes().partition(b"\n")

    assert json.loads(header) == {"kind": "specpivot-steps", "schema": 2, "num_steps": 3}
    assert unpacked(body) == [STEP] * 3


def test_a_write_that_fails_ends_the_file_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Steps go on, and it is said once."""
    trace = Trace(tmp_path / "steps.trace")
    assert trace._out is not None
    trace._out.close()
    with Path("/dev/full").open("wb", buffering=0) as full:
        trace._out = full
        for _ in range(2 * steptrace.FLUSH_STEPS):
            trace.append(STEP)

    trace.close()
    assert caplog.text.count("no more is recorded") == 1


def test_the_file_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that runs for months must not fill the disk."""
    monkeypatch.setattr(steptrace, "MAX_FILE_BYTES", 10 * RECORD.size)
    file = tmp_path / "steps.trace"
    trace = Trace(file)

    for _ in range(5 * steptrace.FLUSH_STEPS):
        trace.append(STEP)
    trace.close()

    assert file.stat().st_size < (steptrace.FLUSH_STEPS + 10) * RECORD.size
