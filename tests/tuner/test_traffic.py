"""Weights of the score: from a file, or watched on a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.endpoint import Endpoint
from harness.errors import UserError
from tuner.traffic import RUNNING, read_weights, watch, weights_from


class Busy(Endpoint):
    """An endpoint whose metrics are given, one reading after the other."""

    def metrics(self) -> dict[str, float] | None:
        return READINGS.pop(0)


READINGS: list[dict[str, float] | None] = []


def test_watching_counts_seconds_at_each_load() -> None:
    """Readings become weights; idle ones count nothing; time passes between readings only."""
    READINGS[:] = [{RUNNING: n} for n in (3.0, 0.0, 3.0, 40.0)]
    slept: list[float] = []
    assert watch(Busy("http://127.0.0.1:1"), 4, slept.append) == {3: 2.0, 40: 1.0}
    assert slept == [1.0, 1.0, 1.0]


def test_a_server_that_says_nothing_is_named() -> None:
    """Without the metric, and without traffic, one line says what to do."""
    READINGS[:] = [None]
    with pytest.raises(UserError, match="--enable-metrics"):
        watch(Busy("http://127.0.0.1:1"), 1)
    READINGS[:] = [{RUNNING: 0.0}]
    with pytest.raises(UserError, match="while it has traffic"):
        watch(Busy("http://127.0.0.1:1"), 1)


def test_a_source_is_a_file_or_a_url(tmp_path: Path) -> None:
    """A path is read; a URL that nothing answers at is an error about that server."""
    file = tmp_path / "w.csv"
    file.write_text("concurrency,weight\n1,2\n")
    assert weights_from(str(file), 1) == {1: 2.0}
    with pytest.raises(UserError, match=r"127\.0\.0\.1:1"):
        weights_from("http://127.0.0.1:1", 1)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "concurrency\n1\n",
        "concurrency,weight\n1,-1\n",
        "concurrency,weight\nx,1\n",
        "concurrency,weight\n1,0\n",
        "concurrency,weight\n1,nan\n",
    ],
)
def test_bad_weights_are_refused_by_name(tmp_path: Path, text: str) -> None:
    """Each damaged histogram is one line that names the file."""
    file = tmp_path / "w.csv"
    file.write_text(text)
    with pytest.raises(UserError, match=r"w\.csv"):
        read_weights(file)


def test_weights_are_read(tmp_path: Path) -> None:
    """Two columns become a mapping; a missing file is named."""
    file = tmp_path / "w.csv"
    file.write_text("concurrency,weight\n1,2.5\n8,1\n")
    assert read_weights(file) == {1: 2.5, 8: 1.0}
    with pytest.raises(UserError, match=r"none\.csv"):
        read_weights(tmp_path / "none.csv")
