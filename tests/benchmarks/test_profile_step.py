"""Profiles of simulated servers: what was taken is kept when a later one fails, and a second call goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import profile_step
from benchmarks.profile_step import main
from benchmarks.stages import Event
from harness.errors import UserError
from harness.servers import Server
from tests.benchmarks.test_stages import KERNELS, STEP
from tests.harness.commands import SIM
from tests.harness.leftovers import nothing_left


def test_a_profile_that_failed_takes_no_other_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The third server state writes no trace: two are on disk, and the same command takes the third alone."""
    asked: list[str] = []

    def traced(server: Server, folder: Path, steps: int, cpu: bool) -> list[Event]:
        asked.append(folder.name)
        if len(asked) == 3:
            raise UserError("wrote no whole trace")
        return [*STEP, *KERNELS]

    monkeypatch.setattr(profile_step, "traced", traced)
    monkeypatch.setattr(profile_step, "STEADY_S", 0.1)
    config = tmp_path / "sim.toml"
    config.write_text(f'sim = "{SIM}"\n')
    words = ["--config", str(config), "--concurrency", "2", "--output-tokens", "32", "--out", str(tmp_path / "out")]
    with nothing_left(tmp_path):
        assert main(words) == 2
        assert "wrote no whole trace" in capsys.readouterr().err
        kept = json.loads((tmp_path / "out" / "profiles.json").read_text())
        assert list(kept["profiles"]) == asked[:2]
        assert main(words) == 0
    assert asked[2:] == asked[2:3] * 2
    assert set(json.loads(capsys.readouterr().out)["profiles"]) == {"baseline", "forced_off", "eagle3"}
    assert main([*words, "--attach", "http://127.0.0.1:9"]) == 2
    assert "give VARIANT=URL" in capsys.readouterr().err
    assert main([*words, "--steps", "7"]) == 2
    assert "another --concurrency or --steps" in capsys.readouterr().err
