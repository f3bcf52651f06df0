"""report.html: complete, self-contained, honest about what was simulated or left out."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec

from tests.tuner.runs import manifest, rows, write_run
from tuner.recommend import FILE, recommend, write
from tuner.report import plain, save_report

VOID = {"meta", "br", "link", "use", "path"}


class Page(HTMLParser):
    """Collects text and ids, and fails on tags that do not nest."""

    def __init__(self, body: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.ids: list[str] = []
        self.outside: list[str] = []
        self.feed(body)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta",):
            self.open.append(tag)
        self._note(tag, attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def _note(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("src", "href", "xlink:href") and not (value or "").startswith("#"):
                self.outside.append(f"{tag} {value}")
        if tag in ("script", "link", "img", "iframe"):
            self.outside.append(tag)


def test_page_is_whole_and_needs_nothing_else(tmp_path: Path) -> None:
    """Tags nest, ids are unique across the inlined figures, and nothing is loaded from elsewhere."""
    run = write_run(tmp_path / "run")
    recommend(run)
    page = Page(save_report(run).read_text())
    assert page.open == []
    assert len(page.ids) == len(set(page.ids)) > 0
    assert page.outside == []


def test_answer_evidence_and_commands_are_in_it(tmp_path: Path) -> None:
    """The recommendation comes before the curves; flags, command, workload hash, environment and confounders follow."""
    run = write_run(tmp_path / "run")
    found = recommend(run)
    body = save_report(run).read_text()
    assert body.index(found.words["recommended"].replace(" %", "\u00a0%")) < body.index("<svg")
    for part in (
        "--speculative-disable-batch-threshold " + str(found.threshold),
        "specpivot sweep --sim test",
        "a" * 64,
        "NVIDIA H200",
        "256 for every variant",
        "python -m patched_worker --model-path m",
        "EAGLEWorkerV2",
    ):
        assert part in body


def test_simulated_is_said_and_measured_is_not_called_simulated(tmp_path: Path) -> None:
    """The banner stands on simulated pages only."""
    simulated = save_report(write_run(tmp_path / "s")).read_text()
    measured = save_report(write_run(tmp_path / "m", made=manifest("measured"))).read_text()
    assert "SIMULATED: every number" in simulated
    assert "SIMULATED" not in measured


def test_points_left_out_are_listed_with_the_reason(tmp_path: Path) -> None:
    """Every point is in the table; the one left out carries its verdict and is counted."""
    points = rows()
    points[4] = msgspec.structs.replace(points[4], verdict="client_limited", flags="degenerate_output")
    body = save_report(write_run(tmp_path / "run", points)).read_text()
    assert "81 points, 80 valid" in body
    assert len(re.findall("client_limited", body)) == 1
    assert "degenerate_output" in body
    assert body.count('<tr class="bad">') == 1


def test_text_from_a_run_cannot_become_markup(tmp_path: Path) -> None:
    """A command or variant remark that looks like HTML is escaped."""
    made = manifest(command=("specpivot", "<script>alert(1)</script>"), environment={"cpu": "<b>fast</b>"})
    page = Page(save_report(write_run(tmp_path / "run", made=made)).read_text())
    assert page.outside == []
    assert "<script>alert(1)</script>" in "".join(page.text)


def test_a_run_without_an_answer_still_reports(tmp_path: Path) -> None:
    """Baseline alone gives a page that says why there is no recommendation."""
    run = write_run(tmp_path / "run", [row for row in rows() if row.variant == "baseline"])
    body = save_report(run).read_text()
    assert "No recommendation." in body
    assert "no usable point of eagle3" in body


def test_plain_values() -> None:
    """Mappings, lists and what is not known read as text."""
    assert plain({"a": [1, 2], "b": None}) == "a: 1, 2; b: not known"


def test_what_a_tuning_found_beside_the_threshold_is_told(tmp_path: Path) -> None:
    """Its sentences on contexts and hysteresis stand on the page; a run without them has none."""
    run = write_run(tmp_path / "run")
    made = recommend(run)
    assert "By length of the prompt" not in save_report(run).read_text()
    beside = {"contexts": "By length of the prompt: two.", "hysteresis": "Resume at 9."}
    write(msgspec.structs.replace(made, words=made.words | beside), run.path / FILE)
    page = save_report(run).read_text()
    assert all(sentence in page for sentence in beside.values())
