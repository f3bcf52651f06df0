"""Files that the tuner is handed, fuzzed: traffic histograms, and the study that a crash or a person has damaged."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path

import optuna
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.errors import UserError
from tuner.study import JOURNAL, open_study, recover, storage_of, trials_of
from tuner.traffic import read_weights

FUZZED = settings(
    max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
CELLS = st.sampled_from(["", "1", "64", "0", "-3", "2.5", "nan", "inf", "1e308", "9" * 5000, "\x1b[2J", "x" * 200_000])


@FUZZED
@given(rows=st.lists(st.lists(CELLS | st.text(max_size=4), max_size=3), max_size=4))
def test_any_traffic_histogram(tmp_path: Path, rows: list[list[str]]) -> None:
    """Weights that add up to something finite, or one line."""
    text = io.StringIO()
    csv.writer(text).writerows([["concurrency", "weight"], *rows])
    (tmp_path / "w.csv").write_bytes(text.getvalue().encode(errors="surrogatepass"))
    weights, refused = {}, ""
    try:
        weights = read_weights(tmp_path / "w.csv")
    except UserError as error:
        refused = str(error)
    if refused:
        assert refused.isprintable()
        return
    assert 0 < sum(weights.values()) < math.inf
    assert all(isinstance(level, int) and level >= 0 for level in weights)


@pytest.fixture(autouse=True)
def _quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A sound study with trials of every state."""
    file = tmp_path_factory.mktemp("study") / JOURNAL
    study = open_study(storage_of(file), "specpivot", 0)
    for number in range(3):
        trial = study.ask()
        trial.set_user_attr("tuner", "me")
        trial.suggest_int("threshold", 1, 64, log=True)
        if number:
            trial.set_user_attr("gain", 0.1)
            trial.set_user_attr("se", 0.01)
            study.tell(trial, 1.0)
    return file.read_bytes()


def opened(folder: Path, body: bytes) -> optuna.Study | None:
    """The study in such a journal, used as a tuning uses it; None where it was refused in one line."""
    (folder / JOURNAL).write_bytes(body)
    try:
        study = open_study(storage_of(folder / JOURNAL), "specpivot", 0)
        recover(study, "me")
        trials_of(study)
    except UserError as error:
        assert_one_line(str(error))
        return None
    return study


def assert_one_line(words: str) -> None:
    assert words.isprintable()
    assert JOURNAL in words


def test_a_journal_cut_anywhere(tmp_path: Path, journal: bytes) -> None:
    """A crash in the middle of a write loses that write only: every cut opens, and goes on."""
    for cut in range(0, len(journal), 7):
        study = opened(tmp_path, journal[:cut])
        assert study is not None, journal[:cut]
        study.tell(study.ask(), 1.0)
        assert opened(tmp_path, (tmp_path / JOURNAL).read_bytes()) is not None


@FUZZED
@given(at=st.floats(0, 1), body=st.binary(min_size=1, max_size=30))
def test_a_damaged_journal(tmp_path: Path, journal: bytes, at: float, body: bytes) -> None:
    """Bytes in the middle that are none of Optuna's: it opens, or one line names the file and the remedy."""
    place = int(at * len(journal))
    opened(tmp_path, journal[:place] + body + journal[place + len(body) :])


def test_a_journal_that_is_no_file(tmp_path: Path) -> None:
    """A folder in its place."""
    (tmp_path / JOURNAL).mkdir()
    with pytest.raises(UserError, match="is no regular file"):
        storage_of(tmp_path / JOURNAL)
