"""Traces replayed: the pivot that was built in comes out, and a bad file says what is wrong with it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.errors import UserError
from patched_worker.autopilot import Autopilot, Mode, Order
from patched_worker.policy import Policy
from patched_worker.steptrace import StepRecord, Trace
from specpivot import app
from tests.patched_worker.streams import DRAFTS, PIVOT, Machine, around, plain_s, speculative_s
from tuner.replay import in_words, read_trace, replay


def recorded(file: Path, pilot: Autopilot, steps: int, batch: Callable[[int], int]) -> Path:
    """A trace of synthetic traffic."""
    trace = Trace(file)
    observe = pilot.observe

    def both(record: StepRecord) -> None:
        trace.append(record)
        observe(record)

    pilot.observe = both
    Machine(pilot).run(steps, batch)
    trace.close()
    return file


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 000 steps around the pivot, recorded in dry-run under a threshold of 10."""
    pilot = Autopilot(DRAFTS, Policy.from_threshold(10), Order(Mode.DRY_RUN))
    return recorded(tmp_path_factory.mktemp("trace") / "steps", pilot, 20_000, around(PIVOT))


def test_the_pivot_comes_out(trace: Path) -> None:
    """Though the server never speculated there but in blocks; the interval holds the truth."""
    found = replay(read_trace(trace), "steps")

    assert found.threshold == pytest.approx(PIVOT, rel=0.15)
    low, high = found.interval
    assert low is not None
    assert high is not None
    assert low <= PIVOT <= high
    assert found.paired
    assert found.accept_len == pytest.approx(2.0, rel=0.02)


def test_expected_throughput_is_that_of_the_states(trace: Path) -> None:
    """Never: what plain steps bring; always: what speculative ones bring; the best is at least as good as both."""
    records = read_trace(trace)
    found = replay(records, "steps")
    by_threshold = {candidate.threshold: candidate for candidate in found.candidates}
    seconds = sum(record.seconds for record in records)
    never = sum(record.seconds * record.batch / plain_s(record.batch) for record in records) / seconds
    always = sum(record.seconds * 2 * record.batch / speculative_s(record.batch) for record in records) / seconds

    assert by_threshold[0].tok_per_s == pytest.approx(never, rel=0.02)
    assert by_threshold[None].tok_per_s == pytest.approx(always, rel=0.03)
    best = by_threshold[found.threshold]
    assert best.low <= best.tok_per_s <= best.high
    assert best.tok_per_s >= max(by_threshold[0].tok_per_s, by_threshold[None].tok_per_s)


def test_both_states_at_other_times_will_do_with_a_warning(tmp_path: Path) -> None:
    """A threshold that was set by hand: on for a while, then off, at the same batches."""
    file = tmp_path / "steps"
    out = Trace(file)
    for drafts in (DRAFTS, 0):
        for batch in [16] * 600 + [100] * 600:
            seconds = speculative_s(batch) if drafts else plain_s(batch)
            out.append(StepRecord(batch, 0, drafts, False, False, batch * (2 if drafts else 1), seconds, 0.0))
    out.close()
    found = replay(read_trace(file), "steps")

    assert not found.paired
    assert "no alternating blocks" in found.warnings[0]
    assert found.threshold is not None
    assert 16 < found.threshold < 100


def test_prefills_that_speculation_saves_count(trace: Path) -> None:
    """The same steps with prefills of one and of two requests that cost the same: the gain is higher for them."""
    bare, records = replay(read_trace(trace), "steps"), read_trace(trace)
    for index, record in enumerate(records):
        if index % 40 == 39 and not record.flipped:
            record.prefill_s, record.joined = 0.02, 1 + index // 40 % 2
    found = replay(records, "steps")
    before, after = ({gain.batch: gain.ratio for gain in one.gains} for one in (bare, found))
    common = before.keys() & after.keys()

    assert len(common) >= 3
    assert all(after[batch] > before[batch] for batch in common)
    best, was = found.candidates[-1], bare.candidates[-1]
    assert best.threshold is was.threshold is None
    assert best.tok_per_s > was.tok_per_s


def test_one_state_only_is_not_enough(tmp_path: Path) -> None:
    """What the other would have brought, nobody knows; the line says how to record it."""
    file = recorded(
        tmp_path / "steps", Autopilot(DRAFTS, Policy.from_threshold(0), Order(Mode.HELD)), 2000, around(PIVOT)
    )
    with pytest.raises(UserError, match="auto"):
        replay(read_trace(file), "steps")


def test_gain_at_every_batch_means_never_disable_as_far_as_is_known(tmp_path: Path) -> None:
    """And the warning says how far that is."""
    pilot = Autopilot(DRAFTS, Policy.from_threshold(10), Order(Mode.DRY_RUN))
    found = replay(read_trace(recorded(tmp_path / "steps", pilot, 8000, around(8))), "steps")

    assert found.threshold is None
    assert "beyond, nothing is known" in found.warnings[0]


@pytest.mark.parametrize(
    ("body", "match"),
    [
        (b"", "no step trace"),
        (b"\x00\x01" * 50, "no step trace"),
        (b"[1]\n", "no step trace"),
        (b'{"kind": "specpivot-steps", "schema": 1}\n', "schema 1"),
        (b'{"kind": "specpivot-steps", "schema": 2}\n', "holds no step"),
        (b'{"kind": "specpivot-steps", "schema": 2}\n' + b"\xff" * 22, "damaged at step 0"),
        (b'{"kind": "specpivot-steps", "schema": 2}\n' + bytes(22), "damaged at step 0"),
    ],
)
def test_bad_files_are_refused_in_words(tmp_path: Path, body: bytes, match: str) -> None:
    """Whatever they hold."""
    file = tmp_path / "t"
    file.write_bytes(body)
    with pytest.raises(UserError, match=match):
        read_trace(file)


def test_a_missing_file_is_said_so(tmp_path: Path) -> None:
    """Not a traceback."""
    with pytest.raises(UserError, match="cannot read"):
        read_trace(tmp_path / "none")


def test_a_fifo_is_refused(tmp_path: Path) -> None:
    """Nobody writes to it: reading would never end."""
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(UserError, match="no regular file"):
        read_trace(tmp_path / "fifo")


def test_a_step_that_was_cut_short_is_left_out(trace: Path, tmp_path: Path) -> None:
    """A server that was killed while it wrote."""
    file = tmp_path / "cut"
    file.write_bytes(trace.read_bytes()[:-7])

    assert len(read_trace(file)) == len(read_trace(trace)) - 1


def test_the_command_tells_it_in_words_and_json(trace: Path) -> None:
    """People on standard error, one document on standard output."""
    result = CliRunner().invoke(app, ["recommend", "--trace", str(trace)])

    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout.splitlines()[-1])
    assert document["threshold"] == replay(read_trace(trace), "steps").threshold
    assert {"tok_per_s", "low", "high", "threshold"} == set(document["candidates"][0])
    assert "best on this traffic" in result.stderr
    assert all(math.isfinite(c["tok_per_s"]) for c in document["candidates"])


def test_a_run_or_a_trace_not_both_not_none(trace: Path, tmp_path: Path) -> None:
    """Which of the two is meant is not for us to guess."""
    for arguments in ([], [str(tmp_path), "--trace", str(trace)]):
        result = CliRunner().invoke(app, ["recommend", *arguments])
        assert result.exit_code != 0


@pytest.mark.parametrize(
    "flags",
    [
        ["--weights", "w.csv"],
        ["--objective", "score"],
        ["--latency-slack", "5%"],
        ["--watch", "60"],
        ["--plot"],
        ["--no-plot"],
    ],
)
def test_a_trace_takes_no_flags_of_a_run(trace: Path, flags: list[str]) -> None:
    """They would do nothing; also where they say what is the default."""
    result = CliRunner().invoke(app, ["recommend", "--trace", str(trace), *flags])

    assert isinstance(result.exception, UserError)
    assert f"takes no {flags[0].replace('no-', '')}; leave out" in str(result.exception)


def test_words_name_the_threshold(trace: Path) -> None:
    """And what always and never would bring."""
    found = replay(read_trace(trace), "steps")

    assert f"a threshold of {found.threshold}" in in_words(found)[1]
    assert "always speculating" in in_words(found)[2]
