"""Context lengths tuned on machines of known truth, one for each length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.worlds import Machine
from harness.errors import UserError
from harness.records import LevelRow
from harness.runfolder import RunFolder
from harness.sweep import Keys
from patched_worker.policy import Gate
from tests.tuner.lab import CONFIG, Quiet, resumed, run
from tests.tuner.test_search import world
from tuner.asked import TuneOptions
from tuner.export import Server, export
from tuner.knobs import parse_search
from tuner.recommend import dumped, read
from tuner.replicas import missing
from tuner.tune import run_tune


def at_lengths(noise: float = 0.01, **gains: float) -> dict[int, Machine]:
    """A machine for each context length: the pivot is at 113 for a gain of 1, and rises with it."""
    return {int(name[1:]): Machine(world(noise=noise, gain=gain), seed=7) for name, gain in gains.items()}


def test_context_lengths_are_curves_of_their_own(tmp_path: Path, lab: dict[str, Any]) -> None:
    """One server life; the smallest pivot is kept and tried live; the ladder follows each length's own pivot."""
    lab["machines"] = at_lengths(t128=0.9, t2048=1.05)
    options = TuneOptions(budget_s=220, trials=2, context_lengths=(128, 2048))
    outcome, lines = run(tmp_path / "run", options)
    made = outcome.recommendation
    assert made is not None
    assert lab["starts"] == 1
    short, long = made.contexts
    for pivot in (short, long):
        truth = lab["machines"][pivot.input_tokens].world.pivot
        assert pivot.interval[0] <= truth <= pivot.interval[1]
    assert (short.mean_context, made.threshold) == (192, short.threshold)
    policy = made.policy
    assert Gate(policy, 3).decide(short.threshold, short.threshold * 4000)
    assert Gate(policy, 3).decide(long.threshold, long.threshold * 4000)
    assert not Gate(policy, 3).decide(long.threshold, long.threshold * 192)
    assert "128 tokens" in made.words["contexts"]
    assert "ladder banded by batch and context" in made.words["contexts"]
    assert "54 points, about 54 s" in "".join(lines)
    assert lab["clock"] <= 220
    whole, decides = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "run" / "context-128")
    assert whole.levels() == decides.levels()
    assert whole.manifest.workload == decides.manifest.workload
    assert {row.variant for row in whole.levels()} == {"baseline", "eagle3", "forced_off", "dynamic"}
    assert read(whole) == made
    assert export(made, "json", Server(3, (), 256)).text == dumped(made)
    with pytest.raises(UserError, match="context length"):
        export(made, "sglang-adaptive", Server(3, (), 256))


def test_context_lengths_that_agree_need_no_ladder(tmp_path: Path, lab: dict[str, Any]) -> None:
    """Overlapping intervals are said to be that, and one threshold stays."""
    lab["machines"] = at_lengths(t128=1.0, t2048=1.0)
    outcome, _ = run(tmp_path / "run", TuneOptions(budget_s=200, trials=0, context_lengths=(128, 2048)))
    assert outcome.recommendation is not None
    assert outcome.recommendation.ladder is None
    assert "nothing here calls for a ladder" in outcome.recommendation.words["contexts"]


def test_a_length_whose_large_levels_fail_has_no_say(tmp_path: Path, lab: dict[str, Any]) -> None:
    """It gains wherever it could be measured, which must not become "never disable" for that context."""
    lab["machines"] = at_lengths(t128=0.9, t2048=1.05)
    machine = lab["machines"][2048]

    def cut(variant: Any, policy: Any, level: int, repeat: int) -> LevelRow:
        row = machine.measure(variant, policy, level, repeat)
        return msgspec.structs.replace(row, verdict="server_busy", status="invalid") if level > 64 else row

    lab["machines"][2048] = type("Cut", (), {"points": 0, "measure": staticmethod(cut)})()
    outcome, lines = run(tmp_path / "run", TuneOptions(budget_s=300, trials=0, context_lengths=(128, 2048)))
    made = outcome.recommendation
    assert made is not None
    assert [pivot.input_tokens for pivot in made.contexts] == [128]
    assert made.ladder is None
    assert "nothing is known at 2048 tokens of context" in made.warnings
    assert "warning: context 2048: too few points are usable to judge it" in lines


def test_the_first_pass_at_every_length_comes_before_replicas_and_the_last_check(
    tmp_path: Path, lab: dict[str, Any]
) -> None:
    """A budget that hardly reaches for one pass is spent on it: a length that lacks its largest levels misjudges."""
    lab["machines"] = at_lengths(t128=0.9, t2048=1.05)
    run(tmp_path / "run", TuneOptions(budget_s=66, trials=1, context_lengths=(128, 2048)))
    for length in (128, 2048):
        rows = RunFolder(tmp_path / "run" / f"context-{length}").levels()
        assert missing(CONFIG.concurrency, "baseline", rows) == []


def test_context_lengths_go_on_where_they_stopped(tmp_path: Path, lab: dict[str, Any]) -> None:
    """Interrupted at the second length, the first is not measured again; a finished tuning can be resumed too."""
    lab["machines"] = at_lengths(t128=0.9, t2048=1.05)
    lab["machines"][128].points = 1000  # so that only the second length reaches the point that stops
    lab["stop_at"] = 12
    options = TuneOptions(budget_s=220, trials=1, context_lengths=(128, 2048))
    first, _ = run(tmp_path / "run", options)
    assert first.ended == "interrupted"
    lab["stop_at"] = None
    taken = lab["machines"][128].points
    again, _ = resumed(tmp_path / "run")
    assert again.recommendation is not None
    pairs = [row for row in RunFolder(tmp_path / "run" / "context-128").levels() if row.variant == "eagle3"]
    assert len(pairs) == len({(row.concurrency, row.repeat) for row in pairs})
    assert lab["machines"][128].points - taken < 27
    last, _ = resumed(tmp_path / "run")
    assert last.recommendation is not None
    assert [pivot.input_tokens for pivot in last.recommendation.contexts] == [128, 2048]


@pytest.mark.parametrize(
    ("config", "options", "says"),
    [
        ({"dataset": "prompts.jsonl"}, {}, "leave --dataset out"),
        ({}, {"search": parse_search("resume_at")}, "leave out --search"),
        ({}, {"objective": "throughput"}, "leave out --search and --objective"),
        ({}, {"budget_s": 50}, "at 2 context lengths takes 54 points, 54 s"),
    ],
)
def test_context_lengths_that_cannot_be_searched_are_refused(
    tmp_path: Path, lab: dict[str, Any], config: dict[str, Any], options: dict[str, Any], says: str
) -> None:
    """Before anything starts, with what to leave out."""
    asked = TuneOptions(context_lengths=(128, 2048), **options)
    with pytest.raises(UserError, match=says):
        run_tune(msgspec.structs.replace(CONFIG, **config), asked, tmp_path / "run", [], Quiet(), Keys())
    assert not (tmp_path / "run").exists()
