"""specpivot tune on a machine of known truth: run folder, budget, interruption and resumption, words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

import harness.workload
from harness.config import SweepConfig, load_config, make_config
from harness.errors import UserError
from harness.records import LevelRow
from harness.runfolder import RunFolder
from harness.sweep import Keys
from tests.tuner.lab import CONFIG, GUESS, Quiet, run
from tuner.asked import TuneOptions
from tuner.history import spent_before
from tuner.recommend import read
from tuner.tune import run_tune
from tuner.tune_cli import seconds

ROOT = Path(__file__).parent.parent.parent


def test_a_tuning_leaves_everything_in_its_folder(tmp_path: Path, lab: dict[str, Any]) -> None:
    """One server start gives curves, study, history and a recommendation near the truth, with trials in its words."""
    outcome, lines = run(tmp_path / "run", TuneOptions(budget_s=90))
    folder = RunFolder(tmp_path / "run")
    found = read(folder)
    assert outcome.exit_code == 0
    assert outcome.recommendation == found
    assert lab["starts"] == 1
    assert found.threshold == pytest.approx(lab["machine"].world.pivot, rel=0.15)
    assert found.evidence["trials"] > 0
    assert "tried live" in found.words["rejected"]
    assert (tmp_path / "run" / "study.journal").exists()
    kinds = [json.loads(line)["kind"] for line in (tmp_path / "run" / "search_history.jsonl").read_text().splitlines()]
    assert kinds[-1] == "recommendation"
    assert "dynamic" in folder.manifest.variants
    assert lines[0].startswith("plan: 2 server starts")
    assert len(folder.levels()) == lab["machine"].points <= 90


def test_interrupted_and_resumed(tmp_path: Path, lab: dict[str, Any]) -> None:
    """Ctrl-C keeps what was measured; --resume ends where an undisturbed tuning would, in the same study."""
    lab["stop_at"] = 60
    outcome, lines = run(tmp_path / "run", TuneOptions(budget_s=90))
    assert (outcome.ended, outcome.exit_code, outcome.recommendation) == ("interrupted", 130, None)
    assert lines[-1].startswith("interrupted with 21 s of the budget left")
    again, _ = run(tmp_path / "run", TuneOptions(budget_s=90), resume=True)
    assert again.exit_code == 0
    assert again.recommendation is not None
    assert again.recommendation.threshold == pytest.approx(lab["machine"].world.pivot, rel=0.15)
    assert lab["machine"].points <= 91


def test_what_was_spent_counts_after_resumption(tmp_path: Path, lab: dict[str, Any]) -> None:
    """As the clock had it, though points took twice as long as was guessed; the time between the commands is free."""
    lab |= {"stop_at": 35, "point_s": lambda level: 2.0}
    run(tmp_path / "run", TuneOptions(budget_s=90))
    assert spent_before(tmp_path / "run") == lab["clock"] == 70.0
    lab["clock"] += 1000.0
    again, _ = run(tmp_path / "run", TuneOptions(budget_s=90), resume=True)
    assert again.recommendation is not None
    assert lab["clock"] <= 1090.0


def test_a_budget_holds_where_large_levels_take_long(tmp_path: Path, lab: dict[str, Any]) -> None:
    """Around the pivot points take longer than the mean of all: no more of them begin than there is time for."""
    lab["point_s"] = lambda level: 6.0 if level > 40 else 0.5
    outcome, _ = run(tmp_path / "run", TuneOptions(budget_s=300))
    assert outcome.recommendation is not None
    assert outcome.ended == "budget"
    assert 200 < lab["clock"] <= 300


def test_the_tuning_of_an_h200_fits_into_a_quarter_of_an_hour(
    tmp_path: Path, lab: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As committed, with starts as long as measured and points a fifth longer than planned: to the last live check."""
    monkeypatch.setattr(SweepConfig, "point_s_at", GUESS)
    config = make_config(load_config(ROOT / "results" / "configs" / "h200-0.5.16-v2-tune.toml") | {"sim": "any"})
    lab |= {"start_s": 160.0, "point_s": lambda level: 1.2 * config.point_s_at(level)}
    outcome = run_tune(config, TuneOptions(budget_s=900), tmp_path / "run", [], Quiet(), Keys())
    assert outcome.recommendation is not None
    assert outcome.recommendation.evidence["confirmed"] is not None
    assert outcome.recommendation.evidence["trials"] > 0
    assert lab["starts"] == 1
    assert lab["clock"] <= 900


def test_a_budget_that_cannot_do_is_refused_before_anything_starts(tmp_path: Path, lab: dict[str, Any]) -> None:
    """The message names the time that one pass takes."""
    with pytest.raises(UserError, match="27 points, 27 s"):
        run(tmp_path / "run", TuneOptions(budget_s=20))
    assert lab["starts"] == 0
    assert not (tmp_path / "run").exists()


def test_a_dead_server_is_one_line(tmp_path: Path, lab: dict[str, Any]) -> None:
    """The point and its verdict are named, with the way on."""
    machine = lab["machine"]
    lab["machine"] = type(
        "Dead",
        (),
        {"points": 0, "measure": lambda self, *a: msgspec.structs.replace(machine.measure(*a), verdict="server_died")},
    )()
    with pytest.raises(UserError, match=r"server_died.*--resume"):
        run(tmp_path / "run", TuneOptions(budget_s=90))


def test_nothing_usable_says_why(tmp_path: Path, lab: dict[str, Any]) -> None:
    """Points that are all spoilt end with exit code 4 and their verdict."""
    machine = lab["machine"]

    def spoilt(*point: Any) -> LevelRow:
        return msgspec.structs.replace(machine.measure(*point), verdict="client_limited")

    lab["machine"] = type("Spoilt", (), {"points": 0, "measure": lambda self, *point: spoilt(*point)})()
    outcome, lines = run(tmp_path / "run", TuneOptions(budget_s=90))
    assert (outcome.exit_code, outcome.ended) == (4, "nothing usable")
    assert "client_limited" in lines[-1]


def test_trials_see_the_same_requests(tmp_path: Path, lab: dict[str, Any]) -> None:
    """Common random numbers: the first repeat of every trial sends what the first pass sent."""
    run(tmp_path / "run", TuneOptions(budget_s=60))
    first, trial = (next(iter(lab["workload"].requests(4, repeat))) for repeat in (1, 3001))
    other = next(iter(lab["workload"].requests(4, 2)))
    assert first == trial != other


def test_resumed_with_other_requests_or_settings_is_refused(tmp_path: Path, lab: dict[str, Any]) -> None:
    """What changed under a tuning would be mixed with what was measured before."""
    data = tmp_path / "data.jsonl"
    data.write_text('{"prompt": "one two three"}\n')
    config = msgspec.structs.replace(CONFIG, dataset=str(data))
    lab["stop_at"] = 5
    run_tune(config, TuneOptions(budget_s=90), tmp_path / "run", [], Quiet(), Keys())
    before = RunFolder(tmp_path / "run").levels()

    changed = msgspec.structs.replace(config, duration_s=2.0)
    with pytest.raises(UserError, match=r"other settings .*duration_s"):
        run_tune(changed, TuneOptions(budget_s=90), tmp_path / "run", [], Quiet(), Keys(), resume=True)
    harness.workload._samples.cache_clear()
    data.write_text('{"prompt": "four five six"}\n')
    with pytest.raises(UserError, match=r"other requests than .*data\.jsonl holds now"):
        run_tune(config, TuneOptions(budget_s=90), tmp_path / "run", [], Quiet(), Keys(), resume=True)
    assert RunFolder(tmp_path / "run").levels() == before


def test_options_survive_in_the_manifest(tmp_path: Path, lab: dict[str, Any]) -> None:
    """--resume takes slack, weights and trials from the run folder."""
    options = TuneOptions(budget_s=60, trials=2, slack=0.1, weights={1: 1.0, 64: 2.0})
    run(tmp_path / "run", options)
    stored = RunFolder(tmp_path / "run").manifest.config["tune"]
    assert msgspec.convert(stored, TuneOptions, str_keys=True) == options


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"attach": {"baseline": "http://127.0.0.1:1"}}, "patched server"),
        ({"model": "/m"}, "--draft"),
    ],
)
def test_what_cannot_be_tuned_is_refused(tmp_path: Path, values: dict[str, Any], says: str) -> None:
    """A reference alone, or a model without a draft, has nothing to switch."""
    with pytest.raises(UserError, match=says):
        run_tune(make_config(values), TuneOptions(), tmp_path / "run", [], Quiet(), Keys())


def test_budget_units() -> None:
    """Minutes, seconds, hours, or plain seconds."""
    assert [seconds(text) for text in ("20m", "900s", "1h", "90")] == [1200, 900, 3600, 90]
    for text in ("soon", "-5m", "0", "", "infs"):
        with pytest.raises(UserError, match="no time"):
            seconds(text)
