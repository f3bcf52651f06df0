"""The commands: last line of standard output, exit codes, one line for bad input."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from harness.errors import UserError
from tests.tuner.runs import rows, write_run
from tuner.cli import register, share

runner = CliRunner()


def app() -> typer.Typer:
    made = typer.Typer()
    register(made)
    return made


def test_recommend_prints_one_document_and_writes_plots(tmp_path: Path) -> None:
    """Standard output is the JSON alone; people read standard error, which names the simulation."""
    run = write_run(tmp_path / "run")
    result = runner.invoke(app(), ["recommend", str(run.path)])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout.splitlines()[-1]) == json.loads((run.path / "recommendation.json").read_text())
    assert "SIMULATED" in result.stderr
    assert "90 % interval" in result.stderr
    assert (run.path / "plots" / "throughput.png").exists()


def test_recommend_exits_with_3_where_points_are_left_out(tmp_path: Path) -> None:
    """The document is there all the same."""
    points = rows()
    points[0] = msgspec.structs.replace(points[0], status="partial")
    run = write_run(tmp_path / "run", points)
    result = runner.invoke(app(), ["recommend", str(run.path), "--no-plot"])
    assert result.exit_code == 3
    assert json.loads(result.stdout)["evidence"]["points"] == 80


def test_weights_and_objective_are_passed_on(tmp_path: Path) -> None:
    """A histogram of small batches only makes static EAGLE-3 as good as anything."""
    run = write_run(tmp_path / "run")
    (tmp_path / "w.csv").write_text("concurrency,weight\n1,1\n2,1\n")
    args = ["recommend", str(run.path), "--no-plot", "--weights", str(tmp_path / "w.csv"), "--objective", "throughput"]
    document = json.loads(runner.invoke(app(), args).stdout)
    assert document["objective"] == "throughput"
    assert document["threshold"] == document["best_by_throughput"]["threshold"]


def test_export_prints_only_the_text(tmp_path: Path) -> None:
    """Notes go to standard error, so that the output can be used in a shell."""
    run = write_run(tmp_path / "run")
    runner.invoke(app(), ["recommend", str(run.path), "--no-plot"])
    result = runner.invoke(app(), ["export", str(run.path), "--format", "sglang"])
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("--speculative-disable-batch-threshold ")
    assert result.stdout.count("\n") == 1
    file = tmp_path / "x.json"
    runner.invoke(app(), ["export", str(run.path), "--format", "sglang-adaptive", "-o", str(file)])
    assert json.loads(file.read_text())["1"] == {"candidate_steps": [3]}


def test_report_writes_the_page(tmp_path: Path) -> None:
    """The command names the file on standard error."""
    run = write_run(tmp_path / "run")
    result = runner.invoke(app(), ["report", str(run.path)])
    assert result.exit_code == 0, result.output
    assert (run.path / "report.html").exists()
    assert "report.html" in result.stderr


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["recommend", "{run}", "--latency-slack", "much"], "much"),
        (["recommend", "{run}", "--latency-slack", "100%"], "100%"),
        (["recommend", "{run}", "--objective", "speed"], "score, throughput"),
        (["export", "{run}", "--format", "yaml"], "trtllm"),
        (["export", "{run}"], "specpivot recommend"),
        (["report", "{tmp}/none"], "not a run folder"),
    ],
)
def test_bad_input_is_a_user_error_that_names_it(tmp_path: Path, args: list[str], says: str) -> None:
    """The command line turns these into one line and exit code 2."""
    run = write_run(tmp_path / "run")
    filled = [arg.format(run=run.path, tmp=tmp_path) for arg in args]
    result = runner.invoke(app(), filled)
    assert isinstance(result.exception, UserError)
    assert says in str(result.exception)


def test_shares() -> None:
    """Both ways of writing five per cent are the same."""
    assert share("5%") == share("0.05") == pytest.approx(0.05)
