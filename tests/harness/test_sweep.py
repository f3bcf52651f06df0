"""The whole sweep on simulated servers: every point once, proven, interleaved, resumable, and honest about the rest."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Collection
from itertools import islice
from pathlib import Path

import pytest
from msgspec.structs import replace

from harness import sweep
from harness.bench import Bench
from harness.config import SweepConfig, make_config
from harness.errors import UserError
from harness.guard import group_alive
from harness.manifest import new_manifest, workload_of
from harness.mock import Timing, running_mock
from harness.records import LevelRow, PointKey, Variant
from harness.runfolder import RunFolder, RunWriter
from harness.sittings import settled
from harness.sweep import Keys, Outcome, _order, _phases, run_sweep
from harness.verify import verify_run
from harness.workload import _samples

ROOT = Path(__file__).parent.parent.parent
QUICK = {"sim": "h200-llama31-8b-illustrative", "time_scale": 1.0, "warmup": 0.3, "duration": 1.0, "output_tokens": 16}


class Recorder:
    """A reporter that remembers, and stops the sweep after so many points."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.lines: list[str] = []
        self.rows: list[LevelRow] = []
        self._stop_after = stop_after

    def say(self, line: str) -> None:
        self.lines.append(line)

    def plan(self, points: int, seconds: float, at_most: bool = False) -> None:
        self.lines.append(f"{points} points")

    def point(self, key: PointKey, left_s: float) -> None:
        pass

    def row(self, row: LevelRow) -> None:
        self.rows.append(row)
        if len(self.rows) == self._stop_after:
            signal.raise_signal(signal.SIGINT)


def swept(out: Path, reporter: Recorder, resume: bool = False, **values: object) -> Outcome:
    """A small sweep on simulated servers."""
    config = make_config(QUICK | values)
    return run_sweep(config, out, ["specpivot", "sweep"], reporter, Keys(), resume)


def test_a_sweep_measures_every_point_and_proves_it(tmp_path: Path) -> None:
    """All five variants: three on one patched server, whose counters agree with the policy of each."""
    reporter = Recorder()
    outcome = swept(tmp_path / "run", reporter, concurrency=[1, 6], repeats=1, threshold=3)
    run = RunFolder(tmp_path / "run")
    rows = {row.key: row for row in run.levels()}
    assert len(rows) == 10 == outcome.points
    patched = {row.server_run for row in rows.values() if row.variant in ("eagle3", "dynamic", "forced_off")}
    assert len(patched) == 1
    assert run.manifest.source == "simulated"
    dynamic = {level: rows[PointKey("dynamic", level, 1)] for level in (1, 6)}
    assert (dynamic[1].steps_off, dynamic[6].steps_off > 0) == (0, True)
    assert {row.ranks for row in dynamic.values()} == {1}
    assert all(row.threshold == 3 for row in dynamic.values())
    assert rows[PointKey("forced_off", 1, 1)].steps_on == 0
    assert not [row for row in rows.values() if row.verdict == "unproven_worker"]
    assert verify_run(tmp_path / "run").problems == ()


def test_an_interrupted_sweep_is_resumed_without_a_point_twice(tmp_path: Path) -> None:
    """Ctrl-C ends it with what there is; --resume measures the rest."""
    stopped = Recorder(2)
    first = swept(tmp_path / "run", stopped, variants=["baseline", "eagle3"], concurrency=[1, 2], repeats=2)
    assert (first.interrupted, first.exit_code) == (True, 130)
    assert stopped.lines[-1].startswith("interrupted; what was measured is kept")
    config = make_config(RunFolder(tmp_path / "run").manifest.config)
    again = Recorder()
    second = run_sweep(config, tmp_path / "run", ["x"], again, Keys(), resume=True)
    assert not second.interrupted
    keys = [row.key for row in RunFolder(tmp_path / "run").levels()]
    assert len(keys) == len(set(keys)) == 8
    records = Counter((r.key, r.attempt, r.index) for r in RunFolder(tmp_path / "run").requests())
    assert max(records.values()) == 1


def test_a_sweep_resumed_a_day_later_measures_pairs_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The point whose other half is missing is measured again beside it; whole pairs stay as they are."""
    swept(tmp_path / "run", Recorder(3), variants=["baseline", "eagle3"], concurrency=[1, 2], repeats=1)
    config = make_config(RunFolder(tmp_path / "run").manifest.config)
    tomorrow = Recorder()

    def a_day_later(rows: Collection[LevelRow], among: Collection[Variant], now_s: float) -> set[PointKey]:
        sound = [replace(row, status="done", verdict="ok") for row in rows]  # however crowded this machine was
        return settled(sound, among, now_s + 86_400)

    monkeypatch.setattr(sweep, "settled", a_day_later)
    run_sweep(config, tmp_path / "run", ["x"], tomorrow, Keys(), resume=True)
    assert sorted((row.variant, row.concurrency) for row in tomorrow.rows) == [("baseline", 2), ("eagle3", 2)]
    assert len(RunFolder(tmp_path / "run").levels()) == 4


def test_a_run_goes_on_with_the_requests_that_it_began_with(tmp_path: Path) -> None:
    """One of a version whose users all began at the beginning stays one; a new one's first user is found under way."""
    config = make_config(QUICK | {"variants": ["baseline"], "concurrency": [1], "repeats": 1})
    lengths = []
    for name, under_way in (("old", False), ("new", True)):
        RunWriter.create(tmp_path / name, new_manifest(config, ["x"], under_way)).close()
        assert run_sweep(config, tmp_path / name, ["x"], Recorder(), Keys(), resume=True).points == 1
        lengths.append([record.planned_output_tokens for record in RunFolder(tmp_path / name).requests()])
    old, new = lengths
    assert set(old) == {16}
    assert new[0] != 16
    assert set(new[1:]) == {16}


def test_a_server_that_could_not_be_warmed_up_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first points pay for what the warm-up would have loaded: nobody may learn that from the figures alone."""
    monkeypatch.setattr(Bench, "_prepare", lambda self, server, policy: "server_busy")
    reporter = Recorder()
    with running_mock(Timing(0.01, 0.002)) as url:
        config = make_config({"attach": {"baseline": url}, "variants": ["baseline"], "concurrency": [1], "repeats": 1})
        outcome = run_sweep(config, tmp_path / "run", ["x"], reporter, Keys())
    assert (outcome.points, outcome.usable) == (1, 0)
    assert any("baseline was not warmed up (server_busy)" in line for line in reporter.lines), reporter.lines


def test_killed_at_any_moment_loses_no_point(tmp_path: Path) -> None:
    """SIGKILL in the middle: what was measured stays, no server does, the run resumes, every point is there once."""
    out = tmp_path / "run"
    flags = ["--sim", str(QUICK["sim"]), "--variants", "baseline", "--concurrency", "1,2,3", "--repeats", "1"]
    flags += ["--warmup", "0.3", "--duration", "1", "--output-tokens", "16"]
    command = [sys.executable, "-m", "specpivot", "sweep", "--out", str(out)]
    process = subprocess.Popen([*command, *flags], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (out / "levels.csv").exists():
        assert process.poll() is None
        time.sleep(0.1)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 200
    for server in RunFolder(out).manifest.servers.values():
        while group_alive(int(server.pid or 0)) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not group_alive(int(server.pid or 0))
    done = subprocess.run([*command, "--resume"], cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode in (0, 3), done.stderr
    assert sorted(row.concurrency for row in RunFolder(out).levels()) == [1, 2, 3]
    assert json.loads(done.stdout.splitlines()[-1])["points"] == 3


class DiskFills(Recorder):
    """Lets no file grow by more than a little once a point is done, as a full disk does."""

    def row(self, row: LevelRow) -> None:
        super().row(row)
        requests = self.run / "requests.jsonl"
        resource.setrlimit(resource.RLIMIT_FSIZE, (requests.stat().st_size + 500, resource.RLIM_INFINITY))

    def __init__(self, run: Path) -> None:
        super().__init__()
        self.run = run


def test_a_full_disk_ends_the_sweep_and_keeps_what_was_measured(tmp_path: Path) -> None:
    """One line, exit code 3, everything written is readable, and resume measures the rest."""
    run = tmp_path / "run"
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    reporter = DiskFills(run)
    try:
        outcome = swept(run, reporter, variants=["baseline"], concurrency=[1, 2], repeats=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert (outcome.exit_code, outcome.interrupted) == (3 if outcome.usable else 4, False)
    (line,) = [line for line in reporter.lines if "cannot write" in line]
    assert line == f"warning: {outcome.failed}, then go on with --resume"
    assert "File too large" in line
    assert [row.concurrency for row in RunFolder(run).levels()] == [1]
    assert {record.concurrency for record in RunFolder(run).requests()} >= {1}
    config = make_config(RunFolder(run).manifest.config)
    again = run_sweep(config, run, ["x"], Recorder(), Keys(), resume=True)
    assert (again.failed, again.usable + again.invalid) == ("", 2)
    assert verify_run(run).problems == ()


def test_too_few_files_are_refused_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest C decides; no folder is made, so the same command works once the limit is raised."""
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (256, 256))
    with pytest.raises(UserError, match=r"limit on open files is 256, this load needs 364; .*ulimit -n"):
        swept(tmp_path / "run", Recorder(), concurrency=[1, 300], client_workers=1)
    assert not (tmp_path / "run").exists()


def test_a_data_set_goes_end_to_end(tmp_path: Path) -> None:
    """Its prompts are sent, the manifest names it, and a run does not go on with another file's requests."""
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "Why is the sky blue?"}\n{"prompt": "Name a river."}\n')
    values = {"dataset": str(file), "variants": ["baseline"], "concurrency": [2], "repeats": 1}
    swept(tmp_path / "run", Recorder(), **values)
    run = RunFolder(tmp_path / "run")
    assert any(record.ok and record.planned_prompt_tokens is None for record in run.requests())  # text, not ids
    assert (run.manifest.workload.dataset, run.manifest.workload.input_tokens) == (str(file), None)
    file.write_text('{"prompt": "Another."}\n')
    _samples.cache_clear()  # as another process would see it
    with pytest.raises(UserError, match="begun with other requests"):
        run_sweep(make_config(run.manifest.config), run.path, ["x"], Recorder(), Keys(), resume=True)


def test_a_tokenizer_reaches_the_requests_and_the_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its template makes the ids; that they begin alike is then no fault."""

    class Tokenizer:
        chat_template = "yes"

        def apply_chat_template(self, messages: list[dict[str, str]], **how: bool) -> str:
            return f"<u> {messages[0]['content']} <a>"

        def encode(self, text: str, add_special_tokens: bool) -> list[int]:
            return [len(word) for word in text.split()]

    monkeypatch.setattr("harness.workload.tokenizer_of", lambda path: Tokenizer())
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "Name a river."}\n')
    config = make_config({"dataset": str(file), "tokenizer": "here", "sim": "x", "concurrency": [1], "repeats": 1})
    assert new_manifest(config, ["specpivot"]).workload.tokenizer == "here"
    (planned,) = islice(workload_of(config).requests(1, 1), 1)
    assert (planned.prompt_tokens, workload_of(config).shares_prefix) == (6, True)


def test_a_server_that_cannot_play_is_reported(tmp_path: Path) -> None:
    """A variant whose server fails to start is not skipped in silence: the reason is kept and the exit code says so."""
    outcome = swept(tmp_path / "run", Recorder(), sim="no-such", variants=["baseline"], concurrency=[1], repeats=1)
    assert "no preset" in outcome.not_run["baseline"]
    assert outcome.exit_code == 4
    assert "no preset" in str(RunFolder(tmp_path / "run").manifest.variants["baseline"].not_run)


def test_order_is_interleaved_and_balanced() -> None:
    """Variants take turns being first; every other repeat walks the levels downwards."""
    order = list(_order(("baseline", "eagle3"), (1, 2), (1, 2)))
    assert [(k.variant[0], k.concurrency) for k in order] == [
        *(("b", 1), ("e", 1), ("e", 2), ("b", 2)),
        *(("b", 2), ("e", 2), ("e", 1), ("b", 1)),
    ]  # fmt: skip
    assert len(set(order)) == 8


def test_servers_that_do_not_fit_take_turns() -> None:
    """The reference is measured before and after, so that drift between its blocks shows."""
    config = SweepConfig(model="m", draft="d", tp=8, repeats=3, variants=("baseline", "eagle3"))
    names = [([plan.name for plan in plans], repeats) for plans, repeats in _phases(config)]
    assert names == [(["baseline"], (1, 2)), (["speculative"], (1, 2, 3)), (["baseline"], (3,))]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--variants", "eagel3"], "did you mean 'eagle3'"),
        (["--concurrency", "0"], "each from 1"),
        (["--attach", "baseline=http://127.0.0.1:9"], "no server answers"),
        (["--config", "none.toml"], "cannot read"),
        (["--resume"], "--resume needs --out"),
        (["--resume", "--out", "any", "--server-env", "SGLANG_X=1"], "except for --server-env CUDA_VISIBLE_DEVICES"),
        (["--out", "/proc/nothing/here", "--variants", "baseline"], "give another --out"),
    ],
)
def test_bad_input_gets_one_line_and_exit_code_2(tmp_path: Path, flags: list[str], message: str) -> None:
    """On the real command: no traceback, nothing on standard output."""
    command = [sys.executable, "-m", "specpivot", "sweep", *flags]
    if "--out" not in flags and "--resume" not in flags:
        command += ["--out", str(tmp_path / "run")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert (done.returncode, done.stdout) == (2, "")
    assert message in last
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_secrets_are_not_written(tmp_path: Path) -> None:
    """Neither the manifest nor the records hold an API key."""
    config = make_config(QUICK | {"variants": ["baseline"], "concurrency": [1], "repeats": 1})
    run_sweep(config, tmp_path / "run", ["specpivot"], Recorder(), Keys("hush-hush", "hush-admin"))
    text = b"".join(file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file())
    assert b"hush" not in text


@pytest.mark.parametrize(
    ("usable", "not_run", "interrupted", "code"),
    [(4, {}, False, 0), (3, {}, False, 3), (4, {"dynamic": "why"}, False, 3), (0, {}, False, 4), (2, {}, True, 130)],
)
def test_exit_codes(usable: int, not_run: dict[str, str], interrupted: bool, code: int) -> None:
    """All valid, some missing, a variant not run, nothing usable, interrupted."""
    assert Outcome("run", "simulated", 4, usable, 4 - usable, not_run, interrupted).exit_code == code


@pytest.mark.parametrize(("usable", "code"), [(4, 3), (1, 3), (0, 4)])
def test_exit_codes_of_a_full_disk(usable: int, code: int) -> None:
    """Even with every point valid, something could not be written."""
    assert Outcome("run", "simulated", 4, usable, 0, {}, False, "cannot write").exit_code == code
