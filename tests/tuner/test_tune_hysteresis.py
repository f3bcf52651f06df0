"""Resume points and dwells, ranked in a tuning on a machine of known truth."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.errors import UserError
from harness.records import LevelRow
from harness.runfolder import RunFolder, RunWriter
from patched_worker.policy import Policy
from tests.tuner.lab import FakeBench, run
from tuner import session
from tuner.asked import TuneOptions
from tuner.hysteresis import Candidate, Wave, design, point_number
from tuner.knobs import parse_search
from tuner.recommend import read


def test_hysteresis_is_ranked_where_it_is_asked(
    tmp_path: Path, lab: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rule that is 10 % better under waves ends up in the recommendation, with its words, its study and the plan."""
    favoured: list[Candidate] = []

    @contextmanager
    def wave_bench(bench: Any, waves: object, threshold: int, command: object, stop: object) -> Iterator[Any]:
        favoured.append(design(threshold, parse_search("resume_at,min_dwell"), 8)[1])
        with RunWriter.create(tmp_path / "waves", bench.writer.manifest) as writer:

            def measure(policy: Policy, wave: Wave, round_: int, candidate: int) -> LevelRow:
                row = lab["machine"].measure("dynamic", policy, 64, point_number(wave, round_, candidate))
                better = (policy.resume_at, policy.min_dwell) == (favoured[0].resume_at, favoured[0].min_dwell)
                stay = 20 * (0.9 if better else 1.0) * (1 + 0.01 * (candidate % 3 - 1))
                lab["clock"] += 1.0
                return msgspec.structs.replace(row, in_flight_mean=stay, switches=3)

            yield FakeBench(writer, lab["machine"], lambda n, level: None), measure

    monkeypatch.setattr("tuner.waves.wave_bench", wave_bench)
    monkeypatch.setattr("tuner.waves.waves_around", lambda *about: {})
    monkeypatch.setattr("tuner.waves.in_words", lambda waves: "waves")
    outcome, lines = run(tmp_path / "run", TuneOptions(budget_s=400, search=parse_search("resume_at,min_dwell")))
    made = outcome.recommendation
    assert made is not None
    assert (made.resume_at, made.min_dwell_steps) == (favoured[0].resume_at, favoured[0].min_dwell)
    assert made.words["hysteresis"].startswith(f"Resume at {made.resume_at}")
    assert made.policy == Policy.from_threshold(made.threshold, made.resume_at, made.min_dwell_steps)
    assert any("other resume points and dwells under ramps and bursts" in line for line in lines)
    assert lab["machine"].points <= 400
    assert read(RunFolder(tmp_path / "run")) == made


def test_a_server_that_dies_under_waves_is_named_with_its_logs(
    tmp_path: Path, lab: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In words, and with the folder that has them: RUN/logs, for waves have no servers of their own."""

    @contextmanager
    def wave_bench(bench: Any, waves: object, threshold: int, command: object, stop: object) -> Iterator[Any]:
        with RunWriter.create(tmp_path / "run" / "hysteresis", bench.writer.manifest) as writer:

            def measure(policy: Policy, wave: Wave, round_: int, candidate: int) -> LevelRow:
                row = lab["machine"].measure("dynamic", policy, 64, point_number(wave, round_, candidate))
                return msgspec.structs.replace(row, verdict="server_died")

            yield FakeBench(writer, lab["machine"], lambda n, level: None), measure

    monkeypatch.setattr("tuner.waves.wave_bench", wave_bench)
    monkeypatch.setattr("tuner.waves.waves_around", lambda *about: {})
    monkeypatch.setattr("tuner.waves.in_words", lambda waves: "waves")
    with pytest.raises(UserError) as raised:
        run(tmp_path / "run", TuneOptions(budget_s=400, search=parse_search("resume_at")))
    said = str(raised.value)
    assert re.match(r"(ramp|burst) of round 1, resume at \d+, 16 steps: server_died", said)
    assert f"see {tmp_path / 'run' / 'logs'}," in said


def test_waves_that_need_too_many_open_files_are_left_out(
    tmp_path: Path, lab: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The threshold is recommended all the same; why its hysteresis is not ranked is said in words."""

    def refuse(concurrency: int, workers: int) -> None:
        assert concurrency >= 256
        raise UserError("the limit on open files is 7; raise it with `ulimit -n`")

    monkeypatch.setattr(session, "require_files_for", refuse)
    outcome, lines = run(tmp_path / "run", TuneOptions(budget_s=400, search=parse_search("resume_at")))
    assert outcome.exit_code == 0
    assert outcome.recommendation is not None
    assert any(re.search(r"not ranked, the default stays: the limit .*`ulimit -n`", line) for line in lines)
    assert list((tmp_path / "run").glob("hysteresis-*")) == []
