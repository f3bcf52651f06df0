"""Draft settings that take a server start each, tuned on machines of known truth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest

from benchmarks.worlds import Machine
from harness.config import make_config
from harness.errors import UserError
from harness.records import LevelRow
from harness.runfolder import RunFolder
from harness.sweep import Keys
from tests.tuner.lab import CONFIG, Quiet, run
from tests.tuner.test_search import world
from tuner import budget
from tuner.asked import TuneOptions
from tuner.history import spent_before
from tuner.knobs import parse_search
from tuner.study import storage_of
from tuner.tune import run_tune


def test_combinations_are_started_once_each(tmp_path: Path, lab: dict[str, Any]) -> None:
    """Five draft steps gain more and are kept; one is clearly behind and left early; RUN holds the winner's points."""
    lab["machines"] = {n: Machine(world(noise=0.01, gain=gain), seed=n) for n, gain in ((1, 0.8), (3, 1.0), (5, 1.08))}
    options = TuneOptions(budget_s=400, trials=2, search=parse_search("num_steps=1,3,5"))
    outcome, lines = run(tmp_path / "run", options)
    made = outcome.recommendation
    assert made is not None
    speculative = ("eagle3", "forced_off")
    assert lab["started"] == [(3, ("baseline",)), *((n, speculative) for n in (3, 1, 5))]
    rows = {c["num_steps"]: c for c in made.evidence["combinations"]}
    assert [n for n, c in rows.items() if c["kept"]] == [5]
    assert rows[1]["ended"] == "behind"
    assert "num_steps 5, topk 1, draft tokens 6" in made.words["combination"]
    assert made.threshold == pytest.approx(lab["machines"][5].world.pivot, rel=0.2)
    whole, winner = (RunFolder(tmp_path / "run" / name) for name in ("", "steps5-topk1-tokens6"))
    assert whole.levels() == winner.levels()
    assert {row.variant for row in whole.levels()} == {"baseline", "eagle3", "forced_off", "dynamic"}
    assert any("steps3-topk1-tokens4, steps1-topk1-tokens2, steps5-topk1-tokens6" in line for line in lines)
    assert spent_before(tmp_path / "run") == lab["clock"] <= 400  # the points that RUN took over count once
    assert {
        t.params["num_steps"]
        for t in optuna.load_study(
            study_name="specpivot", storage=storage_of(tmp_path / "run" / "combinations.journal")
        ).trials
    } == {1, 3, 5}


def test_combinations_go_on_where_they_stopped(tmp_path: Path, lab: dict[str, Any]) -> None:
    """Interrupted in the second one, it starts neither the reference nor the first again."""
    lab["machines"] = {n: Machine(world(noise=0.01, gain=gain), seed=n) for n, gain in ((3, 1.0), (5, 1.3))}
    options = TuneOptions(budget_s=300, trials=1, search=parse_search("num_steps=3,5"))
    lab["stop_at"] = 9 + 20  # of the first machine: its 18 points and two more; the second stops there as well
    first, _ = run(tmp_path / "run", options)
    assert first.ended == "interrupted"
    lab["stop_at"] = None
    lab["started"].clear()
    again, _ = run(tmp_path / "run", options, resume=True)
    assert again.recommendation is not None
    assert [n for n, _ in lab["started"]] in ([3, 5], [5])


def test_a_combination_that_does_not_start_is_named(tmp_path: Path, lab: dict[str, Any]) -> None:
    """The others are compared all the same."""

    def broken(*point: Any) -> LevelRow:
        raise UserError("server speculative ended with code 1: out of memory")

    lab["machines"] = {5: type("Broken", (), {"points": 0, "measure": lambda self, *point: broken(*point)})()}
    outcome, _ = run(tmp_path / "run", TuneOptions(budget_s=300, trials=1, search=parse_search("num_steps=3,5")))
    assert outcome.recommendation is not None
    assert "steps5-topk1-tokens6 (server speculative ended" in outcome.recommendation.words["combination"]


def test_combinations_need_servers_that_tune_can_start(tmp_path: Path) -> None:
    """What is attached to cannot be restarted."""
    urls = dict.fromkeys(("eagle3", "forced_off"), "http://127.0.0.1:1")
    with pytest.raises(UserError, match="starts servers"):
        run_tune(make_config({"attach": urls}), TuneOptions(search=parse_search("topk")), tmp_path, [], Quiet(), Keys())


@pytest.mark.parametrize("words", ["topk", "num_steps=1,3,topk=1,4"])
def test_simulated_servers_are_not_started_with_trees(tmp_path: Path, lab: dict[str, Any], words: str) -> None:
    """They draft chains, so each would fail; chains alone are searched."""
    with pytest.raises(UserError, match=r"simulated servers draft chains.*give topk=1"):
        run(tmp_path / "run", TuneOptions(budget_s=400, search=parse_search(words)))
    assert lab["starts"] == 0
    assert not (tmp_path / "run").exists()
    budget.check_budget(CONFIG, TuneOptions(budget_s=400, search=parse_search("num_steps=1,3,topk=1")))
