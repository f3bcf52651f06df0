"""The commands: last line of standard output, exit codes, one line for bad input."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from harness.errors import UserError
from harness.runfolder import RunFolder
from patched_worker.control import Control, Identity
from patched_worker.policy import Policy
from tests.tuner.runs import rows, write_run
from tuner.cli import register, share
from tuner.recommend import recommend, write

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


def test_compare_prints_table_and_document(tmp_path: Path) -> None:
    """The table is for people, the document for programs."""
    a, b = write_run(tmp_path / "a"), write_run(tmp_path / "b", rows(seed=2))
    result = runner.invoke(app(), ["compare", str(a.path), str(b.path)])
    assert result.exit_code == 0, result.output
    assert len(json.loads(result.stdout)["differences"]) == 54
    assert "SIMULATED" in result.stderr


class Patched(BaseHTTPRequestHandler):
    """The two endpoints of a patched server that apply needs, in front of the worker's own control."""

    control: ClassVar[Control] = Control(Policy.from_threshold(1), 3, Identity("w", "m", "v", "h"))

    def do_POST(self) -> None:
        values = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["server_args"]
        policy = self.control.prepare(values)
        if policy is not None:
            self.control.apply(policy)
        self._answer({"updated": policy is not None})

    def do_GET(self) -> None:
        self._answer({"internal_states": [{"specpivot": self.control.snapshot()}]})

    def _answer(self, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Keep the test's output clean."""


@contextmanager
def patched_server() -> Iterator[str]:
    """Yields its URL."""
    with HTTPServer(("127.0.0.1", 0), Patched) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def with_ladder(run: RunFolder, *rungs: dict[str, int | None]) -> None:
    """Give a run's recommendation a ladder."""
    write(msgspec.structs.replace(recommend(run), ladder=rungs), run.path / "recommendation.json")


def test_apply_sets_a_ladder_and_reads_it_back(tmp_path: Path) -> None:
    """Every rung is what the server reports afterwards."""
    run = write_run(tmp_path / "run")
    rungs = ({"threshold": 2, "resume_at": 1, "num_steps": 0}, {"threshold": 8, "resume_at": 6, "num_steps": None})
    with_ladder(run, *rungs)
    with patched_server() as url:
        result = runner.invoke(app(), ["apply", str(run.path), "--url", url])
    assert result.exit_code == 0, result.output
    shown = json.loads(result.stdout.splitlines()[-1])["rungs"]
    assert shown == [{**rung, "max_mean_context": None} for rung in rungs]
    assert "a ladder of 2 rungs" in result.stderr


def test_a_ladder_that_the_server_cannot_draft_leaves_the_threshold(tmp_path: Path) -> None:
    """Steps that are not its own are refused with its reason; --one-threshold applies and exports the single one."""
    run = write_run(tmp_path / "run")
    with_ladder(
        run,
        {"threshold": 4, "resume_at": 3, "num_steps": 5},
        {"threshold": 16, "resume_at": 12, "num_steps": 1},
    )
    with patched_server() as url:
        refused = runner.invoke(app(), ["apply", str(run.path), "--url", url])
        assert "drafts 3 steps or none" in str(refused.exception)
        result = runner.invoke(app(), ["apply", str(run.path), "--url", url, "--one-threshold"])
    assert result.exit_code == 0, result.output
    assert Patched.control.snapshot()["threshold"] == recommend(run).threshold
    with_ladder(run, {"threshold": 4, "resume_at": 3, "num_steps": 5})
    exported = runner.invoke(app(), ["export", str(run.path), "--format", "sglang", "--one-threshold"])
    assert "--speculative-disable-batch-threshold" in exported.stdout


def test_apply_sets_and_reads_back(tmp_path: Path) -> None:
    """The server holds the recommended threshold afterwards, and the document is what it reports."""
    run = write_run(tmp_path / "run")
    found = json.loads(runner.invoke(app(), ["recommend", str(run.path), "--no-plot"]).stdout)
    with patched_server() as url:
        result = runner.invoke(app(), ["apply", str(run.path), "--url", url])
    assert result.exit_code == 0, result.output
    assert Patched.control.snapshot()["threshold"] == found["threshold"]
    assert json.loads(result.stdout)["resume_at"] == found["resume_at"]
    assert "simulated server" in result.stderr


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["recommend", "{run}", "--latency-slack", "much"], "much"),
        (["recommend", "{run}", "--latency-slack", "100%"], "100%"),
        (["recommend", "{run}", "--objective", "speed"], "score, throughput"),
        (["export", "{run}", "--format", "yaml"], "trtllm"),
        (["export", "{run}"], "specpivot recommend"),
        (["report", "{tmp}/none"], "not a run folder"),
        (["apply", "{run}", "--url", "http://127.0.0.1:1"], "specpivot recommend"),
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
