"""Processes of this checkout, whatever lies in the working folder."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from harness.ourselves import ROOT, environment, program


def test_the_working_folder_does_not_hide_our_modules(tmp_path: Path) -> None:
    """A harness lies there; without the flag it would be run (the control), with it ours answers."""
    (tmp_path / "harness").mkdir()
    (tmp_path / "harness" / "__init__.py").write_text("raise SystemExit('another harness')")
    command = [*program("harness.sim.server"), "--help"]

    def run(words: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120, check=False
        )

    assert run([word for word in command if word != "-P"]).stderr.strip() == "another harness"
    ours = run(command)
    assert (ours.returncode, ours.stdout.startswith("usage: ")) == (0, True)


def test_a_path_that_was_there_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """This checkout comes first, then what the user has; nothing else changes."""
    monkeypatch.setenv("PYTHONPATH", "/theirs")
    assert environment() == os.environ | {"PYTHONPATH": f"{ROOT}:/theirs"}
    assert environment({"A": "1"}) == {"A": "1", "PYTHONPATH": str(ROOT)}
    assert (ROOT / "specpivot.py").is_file()
