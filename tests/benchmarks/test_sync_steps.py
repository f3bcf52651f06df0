"""Steps between two syncs of the draft: all of them in turn on one server, resumed, and held to the claims' bars."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import sync_steps
from benchmarks.sync_steps import judged, main, steps_of, turns
from harness.config import make_config
from harness.errors import UserError
from harness.records import LevelRow, PointKey, Settings, Variant
from harness.runfolder import RunFolder
from patched_worker.draft_sync import SYNC_KEY
from patched_worker.policy import Policy
from patched_worker.settings import DRAFT_SYNC_STEPS
from tests.tuner import runs

LEVELS, REPEATS = (1, 32), 2
SETTINGS = {"model": "m", "draft": "d", "concurrency": list(LEVELS), "repeats": REPEATS}


def test_steps_are_whole_numbers_that_a_ring_can_have() -> None:
    """In any order, once each; anything else is refused with what can be given."""
    assert steps_of("16, 1,4,4") == (1, 4, 16)
    for text in ("", "0", "65", "4,", "-1", "1.5"):
        with pytest.raises(UserError, match="give whole numbers from 1 to 64"):
            steps_of(text)


def test_all_steps_take_turns_with_the_reference() -> None:
    """Within a repeat and a load; who begins changes, and every other repeat walks the loads downwards."""
    config = make_config(SETTINGS | {"variants": ["baseline", "forced_off"]})
    found = list(turns(config, (1, 8)))

    assert [number for number, _ in found] == [None, 1, 8, 1, 8, None, 8, None, 1, None, 1, 8]
    assert [key.concurrency for _, key in found] == [1] * 3 + [32] * 6 + [1] * 3
    assert all(key.variant == ("baseline" if number is None else "forced_off") for number, key in found)


class Endpoint:
    """A patched server that counts as many catch-ups as its steps make of 480 plain ones; up to 64 it takes."""

    public_url = "http://here"

    def __init__(self) -> None:
        self.steps, self.off, self.syncs = 4, 0, 0
        self.set_to: list[int] = []

    def set_numbers(self, values: dict[str, int], kind: str) -> dict[str, Any]:
        if values[SYNC_KEY] > 64:
            return {"draft_sync_steps": self.steps, "last_error": "not from 1 to 64"}
        self.steps = values[SYNC_KEY]
        self.set_to.append(self.steps)
        return {"draft_sync_steps": self.steps}

    def server_info(self) -> dict[str, Any]:
        return {"internal_states": [{"specpivot": {"steps_off": self.off, "draft_syncs": self.syncs}}]}


class Bench:
    """Writes a row for each point, a little better the more steps its server waits."""

    def __init__(self, config: Any, writer: Any, servers: Any, workload: Any, *rest: Any) -> None:
        self.writer, self.servers, self.workload = writer, servers, workload

    def measure(self, key: PointKey, policy: Policy | None, told: Any) -> LevelRow:
        endpoint, speed = self.servers[key.variant].endpoint, 1.0
        if key.variant == "forced_off":
            assert policy == Policy.from_threshold(0)
            endpoint.off, endpoint.syncs = endpoint.off + 480, endpoint.syncs + 480 // endpoint.steps
            speed = 1 - 0.1 / endpoint.steps
        row = row_of(key.variant, key.concurrency, key.repeat, speed)
        self.writer.put_row(row)
        return row


def row_of(variant: Variant, level: int, repeat: int, speed: float) -> LevelRow:
    return LevelRow(
        variant, level, repeat, "done", "ok", output_tok_per_s=1000 * level * speed, tpot_p50_s=0.001 / speed
    )


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Endpoint:
    """What plays the patched server; measuring with it starts nothing."""
    endpoint = Endpoint()

    @contextmanager
    def opened(config: Any, plans: Any, writer: Any, workload: Any, *rest: Any) -> Iterator[Bench]:
        assert config.server_env[DRAFT_SYNC_STEPS] == "64"
        server = SimpleNamespace(simulation=None, endpoint=endpoint)
        yield Bench(config, writer, dict.fromkeys(("baseline", "forced_off"), server), workload)

    monkeypatch.setattr(sync_steps, "opened", opened)
    monkeypatch.setattr(sync_steps, "Bench", Bench)
    return endpoint


def command(tmp_path: Path, *more: str) -> list[str]:
    config = tmp_path / "config.toml"
    config.write_text(f"concurrency = {list(LEVELS)}\nrepeats = {REPEATS}\n")
    return ["--config", str(config), "--model", "m", "--draft", "d", "--out", str(tmp_path / "out"), *more]


def test_each_number_is_set_before_its_points_and_kept_apart(
    tmp_path: Path, endpoint: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder each; what was measured before is not measured again when more steps are asked for."""
    assert main(command(tmp_path, "--steps", "4,16")) == 0
    assert endpoint.set_to == [4, 16, 4, 16, 16, 4, 4, 16]
    told = capsys.readouterr().err
    assert "sync every 4: 4.0 plain steps for each of 120 catch-ups" in told
    assert "sync every 16: 16.0 plain steps for each of 30 catch-ups" in told
    for name, variant in (("reference", "baseline"), ("steps-4", "forced_off"), ("steps-16", "forced_off")):
        rows = RunFolder(tmp_path / "out" / name).levels()
        assert {(row.variant, row.concurrency, row.repeat) for row in rows} == {
            (variant, level, repeat) for level in LEVELS for repeat in (1, 2)
        }

    assert main(command(tmp_path, "--steps", "1,4,16,64")) == 0
    assert sorted(endpoint.set_to[8:]) == [1] * 4 + [64] * 4


def test_a_server_whose_ring_is_shorter_is_told_apart(
    tmp_path: Path, endpoint: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its own reason is in the line."""
    endpoint.set_numbers = lambda values, kind: {"draft_sync_steps": 4, "last_error": "not from 1 to 4"}  # type: ignore[method-assign]  # a stand-in
    assert main(command(tmp_path, "--steps", "16")) == 2
    assert "does not sync its draft every 16 plain steps: not from 1 to 4" in capsys.readouterr().err


def test_what_was_measured_is_held_to_the_bars_of_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By number of steps, as numbers: 90 % after every step fails, 99 % after eight is enough."""
    settings = Settings(("baseline", "forced_off"), LEVELS, REPEATS, 5.0, 3.0)
    speeds: dict[str, tuple[Variant, float]] = {
        "reference": ("baseline", 1.0),
        "steps-16": ("forced_off", 0.99),
        "steps-8": ("forced_off", 0.90),
    }
    for name, (variant, speed) in speeds.items():
        points = [row_of(variant, level, repeat, speed) for level in LEVELS for repeat in (1, 2)]
        runs.write_run(tmp_path / "out" / name, points, runs.manifest("measured", settings=settings))

    assert main(["--judge", str(tmp_path / "out")]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [(claim["run"], claim["met"]) for claim in document["claims"]] == [
        *[("out/steps-8", False)] * 2,
        *[("out/steps-16", True)] * 2,
    ]
    assert (document["source"], document["missing"]) == ("measured", 0)

    with pytest.raises(UserError, match="has no reference; measure it with"):
        judged(tmp_path)
    assert main([]) == 2
