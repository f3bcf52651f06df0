"""specpivot tune on a machine of known truth: run folder, budget, interruption and resumption, words."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import optuna
import pytest

import harness.workload
from benchmarks.worlds import Machine
from harness import pace
from harness.config import SweepConfig, load_config, make_config
from harness.errors import UserError
from harness.records import LevelRow, PointKey, ServerRecord, VariantRecord
from harness.runfolder import RunFolder, RunWriter
from harness.sweep import Keys
from patched_worker.policy import Gate, Policy
from tests.tuner.test_search import world
from tuner import budget, contexts, restarts, session
from tuner.asked import TuneOptions, TuneOutcome
from tuner.export import Server, export
from tuner.history import spent_before
from tuner.hysteresis import Candidate, Wave, design, point_number
from tuner.knobs import parse_search
from tuner.recommend import dumped, read
from tuner.replicas import missing
from tuner.study import storage_of
from tuner.tune import run_tune
from tuner.tune_cli import _resumed, seconds

GUESS = SweepConfig.point_s_at
ROOT = Path(__file__).parent.parent.parent
CONFIG = make_config({"sim": "any", "concurrency": [1, 2, 4, 8, 16, 32, 64, 128, 256], "duration": 0.5, "warmup": 0.0})


class Quiet:
    """A reporter that remembers what was said."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)

    def plan(self, points: int, seconds: float, at_most: bool = False) -> None:
        self.lines.append(f"{points} points")

    def point(self, key: PointKey, left_s: float) -> None:
        raise AssertionError("this bench reports no progress")

    def row(self, row: LevelRow) -> None:
        self.lines.append(str(row.key))


class FakeBench:
    """Stands in for servers: measures a world, writes rows like the real bench."""

    def __init__(self, writer: RunWriter, machine: Machine, on_point: Callable[[int, int], None]) -> None:
        self.config = CONFIG
        self.writer = writer
        self.servers: dict[str, Any] = {"baseline": None, "eagle3": None, "forced_off": None}
        self.machine = machine
        self.on_point = on_point
        self.stop = threading.Event()

    def measure(self, key: PointKey, policy: Policy | None, on_progress: object) -> LevelRow:
        row = self.machine.measure(key.variant, policy, key.concurrency, key.repeat)
        self.writer.put_row(row)
        self.on_point(self.machine.points, key.concurrency)
        return row


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A world in the place of servers, and a clock that points advance; `stop_at` interrupts after so many points."""
    state: dict[str, Any] = {"machine": Machine(world(noise=0.02), seed=3), "stop_at": None, "starts": 0, "clock": 0.0}
    state |= {"started": [], "machines": {}, "point_s": lambda level: 1.0, "start_s": 0.0}

    @contextmanager
    def opened(
        config: SweepConfig,
        plans: object,
        writer: RunWriter,
        workload: Any,
        reporter: object,
        keys: object,
        stop: threading.Event,
    ) -> Iterator[FakeBench]:
        state["starts"] += 1
        state["clock"] += state["start_s"]
        state["workload"] = workload
        played = {v: VariantRecord("7@1") for v in ("baseline", "eagle3", "forced_off")}
        servers = {"7@1": ServerRecord("7@1", "http://127.0.0.1:1", server_args={"speculative_num_steps": 3})}
        writer.set_manifest(msgspec.structs.replace(writer.manifest, variants=played, servers=servers))
        state["started"].append((config.draft_steps, config.variants))
        machine = state["machines"].get(config.draft_steps, state["machine"])
        bench = FakeBench(writer, machine, lambda n, level: on_point(n, level, stop))
        bench.stop = stop
        yield bench

    def on_point(points: int, level: int, stop: threading.Event) -> None:
        state["clock"] += state["point_s"](level)
        if points == state["stop_at"]:
            stop.set()

    def at_a_length(
        config: SweepConfig, writer: RunWriter, servers: object, requests: object, attempts: object, stop: Any
    ) -> FakeBench:
        return FakeBench(writer, state["machines"][config.input_tokens], lambda n, level: on_point(n, level, stop))

    for module in (session, restarts, contexts):
        monkeypatch.setattr(module, "opened", opened)
    monkeypatch.setattr(contexts, "Bench", at_a_length)
    for module in (budget, pace):
        monkeypatch.setattr(module, "now_s", lambda: state["clock"])
    monkeypatch.setattr(SweepConfig, "point_s_at", lambda config, level: 1.0)
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    return state


def run(path: Path, options: TuneOptions, resume: bool = False) -> tuple[TuneOutcome, list[str]]:
    reporter = Quiet()
    return run_tune(CONFIG, options, path, ["specpivot", "tune"], reporter, Keys(), resume), reporter.lines


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


def test_hysteresis_is_ranked_where_it_is_asked(
    tmp_path: Path, lab: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rule that is 10 % better under waves ends up in the recommendation, with its words, its study and the plan."""
    favoured: list[Candidate] = []

    @contextmanager
    def wave_bench(bench: Any, waves: object, threshold: int, command: object, stop: object) -> Iterator[Any]:
        favoured.append(design(threshold, parse_search("resume_at,min_dwell"), 8)[1])
        with RunWriter.create(tmp_path / "waves", bench.writer.manifest) as writer:

            def measure(policy: Policy, wave: Wave, round_: int, candidate: int) -> LevelRow:
                row = lab["machine"].measure("dynamic", policy, 64, point_number(wave, round_, candidate))
                better = (policy.resume_at, policy.min_dwell) == (favoured[0].resume_at, favoured[0].min_dwell)
                stay = 20 * (0.9 if better else 1.0) * (1 + 0.01 * (candidate % 3 - 1))
                lab["clock"] += 1.0
                return msgspec.structs.replace(row, in_flight_mean=stay, switches=3)

            yield FakeBench(writer, lab["machine"], lambda n, level: None), measure

    monkeypatch.setattr("tuner.waves.wave_bench", wave_bench)
    monkeypatch.setattr("tuner.waves.waves_around", lambda *about: {})
    monkeypatch.setattr("tuner.waves.in_words", lambda waves: "waves")
    outcome, lines = run(tmp_path / "run", TuneOptions(budget_s=400, search=parse_search("resume_at,min_dwell")))
    made = outcome.recommendation
    assert made is not None
    assert (made.resume_at, made.min_dwell_steps) == (favoured[0].resume_at, favoured[0].min_dwell)
    assert made.words["hysteresis"].startswith(f"Resume at {made.resume_at}")
    assert made.policy == Policy.from_threshold(made.threshold, made.resume_at, made.min_dwell_steps)
    assert any("other resume points and dwells under ramps and bursts" in line for line in lines)
    assert lab["machine"].points <= 400
    assert read(RunFolder(tmp_path / "run")) == made


def test_a_server_that_dies_under_waves_is_named_with_its_logs(
    tmp_path: Path, lab: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In words, and with the folder that has them: RUN/logs, for waves have no servers of their own."""

    @contextmanager
    def wave_bench(bench: Any, waves: object, threshold: int, command: object, stop: object) -> Iterator[Any]:
        with RunWriter.create(tmp_path / "run" / "hysteresis", bench.writer.manifest) as writer:

            def measure(policy: Policy, wave: Wave, round_: int, candidate: int) -> LevelRow:
                row = lab["machine"].measure("dynamic", policy, 64, point_number(wave, round_, candidate))
                return msgspec.structs.replace(row, verdict="server_died")

            yield FakeBench(writer, lab["machine"], lambda n, level: None), measure

    monkeypatch.setattr("tuner.waves.wave_bench", wave_bench)
    monkeypatch.setattr("tuner.waves.waves_around", lambda *about: {})
    monkeypatch.setattr("tuner.waves.in_words", lambda waves: "waves")
    with pytest.raises(UserError) as raised:
        run(tmp_path / "run", TuneOptions(budget_s=400, search=parse_search("resume_at")))
    said = str(raised.value)
    assert re.match(r"(ramp|burst) of round 1, resume at \d+, 16 steps: server_died", said)
    assert f"see {tmp_path / 'run' / 'logs'}," in said


def test_waves_that_need_too_many_open_files_are_left_out(
    tmp_path: Path, lab: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The threshold is recommended all the same; why its hysteresis is not ranked is said in words."""

    def refuse(concurrency: int, workers: int) -> None:
        assert concurrency >= 256
        raise UserError("the limit on open files is 7; raise it with `ulimit -n`")

    monkeypatch.setattr(session, "require_files_for", refuse)
    outcome, lines = run(tmp_path / "run", TuneOptions(budget_s=400, search=parse_search("resume_at")))
    assert outcome.exit_code == 0
    assert outcome.recommendation is not None
    assert any(re.search(r"not ranked, the default stays: the limit .*`ulimit -n`", line) for line in lines)
    assert list((tmp_path / "run").glob("hysteresis-*")) == []


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


def resumed(path: Path) -> tuple[TuneOutcome, list[str]]:
    """As the command resumes: settings and options are those of the manifest."""
    config, options, _ = _resumed(path)
    reporter = Quiet()
    return run_tune(config, options, path, ["specpivot", "tune"], reporter, Keys(), resume=True), reporter.lines


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
