"""Context lengths on one simulated server: prompts of each length, and for each a run folder that verifies."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from harness.bench import Bench
from harness.config import make_config
from harness.errors import UserError
from harness.pace import Pace
from harness.runfolder import RunFolder, RunWriter
from harness.sweep import Keys, opened
from harness.variants import server_plans
from harness.verify import verify_run
from tests.harness.commands import CROWDED
from tests.tuner.lab import Quiet
from tuner.asked import TuneOptions
from tuner.budget import Budget
from tuner.contexts import Across, _bench, _length, folder_of, in_words
from tuner.curves import Pivot
from tuner.knobs import parse_lengths
from tuner.ladder import ContextPivot
from tuner.search import Found, fixed_policy
from tuner.session import let_play_dynamic, measurer
from tuner.shared import Session, shared_requests
from tuner.tune import tune_manifest, tuning_config


class Shown(Quiet):
    """A reporter that hears of progress too."""

    def point(self, key: object, left_s: float) -> None:
        """Not of interest."""


def test_each_length_is_sent_to_the_same_server(tmp_path: Path) -> None:
    """Prompts are as long as asked, points are proven, and history and logs are those of the whole."""
    settings = {"sim": "h200-llama31-8b-illustrative", "concurrency": [2], "duration": 2.5, "warmup": 0.2}
    config = tuning_config(make_config(settings | {"output_tokens": 16}))
    options = TuneOptions(context_lengths=(64, 512))
    stop = threading.Event()
    session = Session(options, Budget(600), Pace(config), Shown(), Keys(), ["test"], stop)
    plans = tuple(plan for plan in server_plans(config) if plan.name == "speculative")
    run = tmp_path / "run"
    with (
        RunWriter.create(run, tune_manifest(config, options, ["test"])) as writer,
        ExitStack() as stack,
        opened(config, plans, writer, shared_requests(config), Shown(), Keys(), stop) as bench,
    ):
        let_play_dynamic(bench, writer)
        lengths = [_length(each, writer, session, stack) for each in options.at_each_length(config)]
        rows = [
            measurer(_bench(each, bench, writer), each.session, writer)("forced_off", fixed_policy("forced_off"), 2, 1)
            for each in lengths
        ]
    assert len({row.server_run for row in rows}) == 1
    # A crowded machine may have limited client or server; what ran must be proven all the same.
    assert {row.verdict for row in rows} <= {*CROWDED, "ok"}
    for length in (64, 512):
        folder = folder_of(run, length)
        whole = {record.prompt_tokens for record in RunFolder(folder).requests() if record.index >= 2}  # users: 2
        assert whole == {length}
        assert verify_run(folder).problems == ()
        assert RunFolder(folder).manifest.workload.input_tokens == length
        assert not (folder / "search_history.jsonl").exists()
    assert (run / "search_history.jsonl").read_text().count('"kind":"point"') == 2


def test_each_length_is_as_simulated_as_the_server_that_was_attached_to(tmp_path: Path) -> None:
    """Nobody asked for a simulation, so only the whole's manifest knows."""
    config = tuning_config(make_config({"attach": dict.fromkeys(("eagle3", "forced_off"), "http://127.0.0.1:1")}))
    options = TuneOptions(context_lengths=(64, 512))
    session = Session(options, Budget(600), Pace(config), Shown(), Keys(), ["test"], threading.Event())
    asked = tune_manifest(config, options, ["test"])
    assert asked.source == "measured"
    known = msgspec.structs.replace(asked, source="simulated", simulation={"preset": "any"})
    with RunWriter.create(tmp_path / "run", known) as writer, ExitStack() as stack:
        shared = Bench(config, writer, {}, shared_requests(config), Counter(), session.stop)
        for each in options.at_each_length(config):
            length = _bench(_length(each, writer, session, stack), shared, writer)
            assert RunFolder(length.writer.path).manifest.source == "simulated"


def test_lengths_as_people_write_them() -> None:
    """Two or three different ones, shortest first; anything else is one line."""
    assert parse_lengths("2048, 128") == (128, 2048)
    for text in ("128", "128,128", "1,2,3,4", "128,long", "0,128", "128,-5", "128,99999999", "128,"):
        with pytest.raises(UserError, match="two or three different prompt lengths"):
            parse_lengths(text)


def test_what_is_kept_is_said_as_it_is() -> None:
    """Below every crossing it loses nowhere; a trial that lifted it above another length's may."""
    pivots = tuple(ContextPivot(length, length, at, (at, at), "crossover") for length, at in ((64, 40), (512, 12)))
    fit = Pivot("crossover", 12.0, 12, (12, 12), "forced_off", (), ())
    found = Across(pivots, 512, Found(12, fit, (), False, None, "sharp", None))
    assert "it loses at none of them" in in_words(found, False)
    lifted = (pivots[0], msgspec.structs.replace(pivots[1], threshold=60))
    beaten = Across(lifted, 512, Found(60, fit, (), True, None, "trials", None))
    assert "it loses at none of them" not in in_words(beaten, False)
    assert "others may lose" in in_words(beaten, False)
