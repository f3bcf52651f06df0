"""What is said to be validated exists, and every place says the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.doctor import diagnose
from patched_worker import compat
from patched_worker.validated import VALIDATED, by_release, markdown

PAGE = Path(__file__).parents[2] / "docs" / "patched-worker.md"


def test_every_off_step_has_a_row() -> None:
    """Each release and class that is patched was tried somewhere, and no row is about another."""
    supported = {(release, name) for name, module in compat.WORKERS.items() for release in module.VERSIONS}

    assert {(one.release, one.worker) for one in VALIDATED} == supported


def test_page_has_the_table() -> None:
    """docs/patched-worker.md quotes the rows as they are."""
    assert markdown() in PAGE.read_text()


@pytest.mark.parametrize("version", [None, "0.5.16", "0.5.9", "0.4.0"])
def test_doctor_names_what_was_tried(version: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the release that is installed, or of every one where there is none."""
    monkeypatch.setattr("harness.doctor.installed", lambda name: version)

    facts = [finding.fact for finding in diagnose({}, by_release()).findings if finding.subject == "tried"]

    assert sorted(facts) == sorted(f"{one.release} {one}" for one in VALIDATED if version in (None, one.release))
    assert (facts == []) == (version == "0.4.0")
