"""Runs over HTTP: every answer is as openapi.json says, and says what the run folder says."""

from __future__ import annotations

import asyncio
import csv
import errno
import os
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.records import LevelRow
from tests.tuner.runs import LEVELS, manifest, rows, write_run
from tests.tuner.service.services import OPENAPI, call, serving
from tuner.plots import view
from tuner.recommend import Recommendation, recommend
from tuner.service import run_answers
from tuner.service import runs as service_runs
from tuner.service.api import ROUTES
from tuner.service.app import make_app


def test_openapi_names_every_route_and_no_other(tmp_path: Path) -> None:
    """What is served under /api/v1 is what openapi.json describes; each operation has a name of its own."""

    async def served() -> set[tuple[str, str]]:
        async with serving(tmp_path) as (service, _):
            routes = make_app(service).router.routes()
            found = {(r.method, r.resource.canonical) for r in routes if r.resource and r.method != "HEAD"}
            return {(method, path) for method, path in found if path.startswith("/api/")}

    described = {(method.upper(), path) for path, found in OPENAPI["paths"].items() for method in found}
    assert asyncio.run(served()) == described
    names = [operation["operationId"] for path in OPENAPI["paths"].values() for operation in path.values()]
    assert len(names) == len(set(names)) == len(ROUTES)


def test_openapi_is_what_the_service_serves_and_its_requests_are_closed(tmp_path: Path) -> None:
    """Every reference leads somewhere, and no request may hold what is not described."""

    async def served() -> object:
        async with serving(tmp_path) as (_, client):
            return (await call(client, "GET", "/api/v1/openapi.json"))[1]

    assert asyncio.run(served()) == OPENAPI
    components = OPENAPI["components"]["schemas"]
    assert set(re.findall(r"#/components/schemas/(\w+)", str(OPENAPI))) <= components.keys()
    for route in ROUTES:
        for kind in route.body:
            for struct in getattr(kind, "__args__", (kind,)):
                assert components[struct.__name__]["additionalProperties"] is False, struct


def test_a_run_is_listed_with_its_answer_newest_first(tmp_path: Path) -> None:
    """The list says how far a run is and what it recommends; what is no run, or damaged, is not in it."""
    made = recommend(write_run(tmp_path / "old", made=manifest(created_at="2026-01-01T00:00:00+00:00")))
    write_run(tmp_path / "new", rows(repeats=1)[:3])
    (tmp_path / "configs").mkdir()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "manifest.json").write_text("{")

    async def listed() -> list[dict[str, object]]:
        async with serving(tmp_path) as (_, client):
            return (await call(client, "GET", "/api/v1/runs"))[1]["runs"]

    new, old = asyncio.run(listed())
    assert (new["name"], new["points_done"], new["points_planned"], new["has_recommendation"]) == ("new", 3, 81, False)
    assert (old["name"], old["usable"], old["shape"], old["created_s"]) == ("old", 81, "crossover", 1767225600.0)
    assert old["threshold"] == made.threshold


def test_detail_and_levels_are_the_run_folders(tmp_path: Path) -> None:
    """Numbers come as numbers under the CSV's own names; an empty cell is null."""
    write_run(tmp_path / "run", rows(repeats=1))

    async def read() -> tuple[dict[str, object], list[dict[str, object]]]:
        async with serving(tmp_path) as (_, client):
            detail = (await call(client, "GET", "/api/v1/runs/run"))[1]
            return detail, (await call(client, "GET", "/api/v1/runs/run/levels"))[1]["levels"]

    detail, levels = asyncio.run(read())
    assert detail["variants"] == {
        "baseline": {"not_run": None, "reference": None},
        "eagle3": {"not_run": None, "reference": "baseline"},
        "forced_off": {"not_run": None, "reference": "baseline"},
    }
    with (tmp_path / "run" / "levels.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [list(level) for level in levels] == [list(row) for row in table] == [[*LevelRow.__struct_fields__]] * 27
    assert [level["output_tok_per_s"] for level in levels] == [float(row["output_tok_per_s"]) for row in table]
    assert (levels[0]["ttft_p99_s"], table[0]["ttft_p99_s"]) == (None, "")


def test_what_needs_numpy_says_what_the_command_line_says(tmp_path: Path) -> None:
    """Curves are those of the plots; recommendation, export, comparison and report those of their commands."""
    folder = write_run(tmp_path / "run")
    write_run(tmp_path / "again", rows(seed=2))
    write_run(tmp_path / "other", made=manifest("measured"))
    write_run(tmp_path / "empty", [])

    async def read() -> dict[str, tuple[int, object]]:
        async with serving(tmp_path) as (_, client):
            asked = {
                "curves": ("GET", "/api/v1/runs/run/curves"),
                "no curves": ("GET", "/api/v1/runs/empty/curves"),
                "none yet": ("GET", "/api/v1/runs/run/recommendation"),
                "nothing to export": ("GET", "/api/v1/runs/run/export"),
                "made": ("POST", "/api/v1/runs/run/recommendation"),
                "read": ("GET", "/api/v1/runs/run/recommendation"),
                "not made": ("POST", "/api/v1/runs/empty/recommendation"),
                "vllm": ("GET", "/api/v1/runs/run/export?format=vllm"),
                "unknown": ("GET", "/api/v1/runs/run/export?format=word"),
                "report": ("GET", "/api/v1/runs/run/report"),
                "compared": ("GET", "/api/v1/compare?a=run&b=again"),
                "refused": ("GET", "/api/v1/compare?a=run&b=other"),
                "half": ("GET", "/api/v1/compare?a=run"),
            }
            return {name: await call(client, *words) for name, words in asked.items()}

    found = asyncio.run(read())
    statuses = {name: status for name, (status, _) in found.items() if status != 200}
    assert statuses == {
        "none yet": 404,
        "nothing to export": 404,
        "not made": 409,
        "unknown": 400,
        "refused": 409,
        "half": 400,
    }
    shown = view(folder)
    assert shown.fit is not None
    curves = found["curves"][1]
    assert isinstance(curves, dict)
    drawn = {name: [(p["concurrency"], p["tok_per_s"]) for p in points] for name, points in curves["variants"].items()}
    assert drawn == {name: [(lv.concurrency, lv.tok_per_s) for lv in curve] for name, curve in shown.curves.items()}
    low, high = shown.fit.interval
    assert curves["pivot"] == {"threshold": shown.fit.threshold, "low": low, "high": high, "shape": shown.fit.shape}
    assert found["no curves"][1] == {"run": "empty", "source": "simulated", "variants": {}, "pivot": None}
    made = found["made"][1]
    assert isinstance(made, dict)
    assert made == found["read"][1]
    stored = msgspec.json.decode((folder.path / "recommendation.json").read_bytes())
    assert made == stored | {"words": list(stored["words"].values())}
    assert '"eagle3"' in str(found["vllm"][1])
    assert "SpecPivot: run" in str(found["report"][1])
    assert "one is simulated, the other measured" in str(found["refused"][1])
    assert str(tmp_path) not in str([found[name][1] for name in statuses])


def test_a_recommendation_answer_has_every_field_that_a_recommendation_has() -> None:
    """The service describes recommendation.json without loading what makes it: the two must not part."""
    assert run_answers.RecommendationAnswer.__struct_fields__ == Recommendation.__struct_fields__


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    """Answers are kept for as long as the files are the same, and no longer."""
    write_run(tmp_path / "run", rows(repeats=1)[:4])

    async def before_and_after() -> tuple[int, int]:
        async with serving(tmp_path) as (service, _):
            first = service.runs.summary("run")
            assert first is service.runs.summary("run")
            write_more = (tmp_path / "run" / "levels.csv").read_text().splitlines()[:3]
            (tmp_path / "run" / "levels.csv").write_text("\n".join(write_more) + "\n")
            second = service.runs.summary("run")
            assert first is not None
            assert second is not None
            return first.points_done, second.points_done

    assert asyncio.run(before_and_after()) == (4, 2)


def test_threads_that_read_at_once_get_one_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second reader that ends first is not overtaken: the slower one takes its answer."""
    write_run(tmp_path / "run", rows(repeats=1)[:4])
    runs = service_runs.Runs(tmp_path)
    quicker: list[object] = []

    def slow(*of: Any) -> Any:
        monkeypatch.undo()
        quicker.append(runs.summary("run"))
        return service_runs.progress_of(*of)

    monkeypatch.setattr(service_runs, "progress_of", slow)
    assert runs.summary("run") is quicker[0] is runs.summary("run")
    assert quicker[0] is not None


@pytest.mark.parametrize("name", ["..", "%2e%2e", "..%2frun", "run%2f..", "%00", "a b", ".service", "-x", "x" * 101])
def test_no_name_leads_out_of_the_results_folder(tmp_path: Path, name: str) -> None:
    """Neither dots nor encoded slashes nor a name that is none: a line, and nothing is read."""
    results = tmp_path / "results"
    write_run(results / "run")
    write_run(tmp_path / "secret")

    async def statuses() -> set[int]:
        async with serving(results) as (_, client):
            found = set()
            for path in ("", "/levels", "/curves", "/report", "/recommendation"):
                async with client.get(f"/api/v1/runs/{name}{path}") as response:
                    found.add(response.status)
            async with client.get("/api/v1/compare", params={"a": name, "b": "run"}) as response:
                found.add(response.status)
            return found

    assert asyncio.run(statuses()) <= {400, 404}


def test_links_do_not_lead_out_either(tmp_path: Path) -> None:
    """A run that is a link to elsewhere, or whose files are, is not there."""
    results = tmp_path / "results"
    write_run(results / "run", rows(repeats=1))
    write_run(tmp_path / "elsewhere", rows(repeats=1))
    (results / "link").symlink_to(tmp_path / "elsewhere")
    os.replace(results / "run" / "levels.csv", tmp_path / "levels.csv")  # noqa: PTH105 - as a person moves it
    (results / "run" / "levels.csv").symlink_to(tmp_path / "levels.csv")
    (results / "loop").symlink_to(results / "loop")

    async def read() -> tuple[list[object], list[int]]:
        async with serving(results) as (_, client):
            listed = (await call(client, "GET", "/api/v1/runs"))[1]["runs"]
            return listed, [(await call(client, "GET", f"/api/v1/runs/{n}/levels"))[0] for n in ("link", "run", "loop")]

    assert asyncio.run(read()) == ([], [404, 404, 404])


def test_a_folder_that_may_not_be_looked_into_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user's folder of mode 0700: it is no run, and the others are listed."""
    write_run(tmp_path / "run", rows(repeats=1)[:3])
    write_run(tmp_path / "closed", rows(repeats=1)[:3])
    real = Path.stat

    def stat(self: Path, *, follow_symlinks: bool = True) -> os.stat_result:  # the tests may run as root, who may all
        if self.parent.name == "closed":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))
        return real(self, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(Path, "stat", stat)

    async def read() -> tuple[list[str], int]:
        async with serving(tmp_path) as (service, client):
            assert service.runs.summary("closed") is None
            listed = (await call(client, "GET", "/api/v1/runs"))[1]["runs"]
            return [run["name"] for run in listed], (await call(client, "GET", "/api/v1/runs/closed"))[0]

    assert asyncio.run(read()) == (["run"], 404)


def test_levels_of_a_run_that_was_only_begun(tmp_path: Path) -> None:
    """No point yet is an empty list, and a plan."""
    write_run(tmp_path / "run", [])

    async def read() -> tuple[object, int]:
        async with serving(tmp_path) as (_, client):
            levels = (await call(client, "GET", "/api/v1/runs/run/levels"))[1]["levels"]
            return levels, (await call(client, "GET", "/api/v1/runs/run"))[1]["points_planned"]

    assert asyncio.run(read()) == ([], 3 * len(LEVELS) * 3)
