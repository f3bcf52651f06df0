"""recommendation.json ends on a server: what no recommendation can say is refused before it gets there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.errors import UserError
from harness.runfolder import RunFolder
from tests.tuner.runs import manifest, rows, write_run
from tuner.compare import compare
from tuner.export import export, measured_server
from tuner.recommend import FILE, Recommendation, read, recommend
from tuner.tune_cli import _resumed

FUZZED = settings(
    max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
VALUES = st.sampled_from([None, -1, 0, 10**30, 1.5, 1e308, "", "\x1b[2J", [], {}, [1], [{"threshold": -3}], True])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run with its recommendation."""
    run = write_run(tmp_path_factory.mktemp("hostile") / "run", rows(levels=(1, 8, 64), repeats=1))
    recommend(run)
    return run.path


@FUZZED
@given(field=st.sampled_from(Recommendation.__struct_fields__), value=VALUES)
def test_any_field_is_sound_or_refused(folder: Path, field: str, value: Any) -> None:
    """Whatever is read gives a policy and exports, or the one line of a format that cannot say it."""
    sound = (folder / FILE).read_text()
    (folder / FILE).write_text(json.dumps(json.loads(sound) | {field: value}))
    run = RunFolder(folder)
    try:
        found = read(run)
        exports = [export(found, form, measured_server(run)).text for form in ("sglang", "vllm")]
        refused = ""
    except UserError as error:
        exports, refused = [], str(error)
    (folder / FILE).write_text(sound)
    assert refused.isprintable()
    assert not any("-1" in text or "-3" in text for text in exports)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"threshold": -1}, "threshold is -1"),
        ({"threshold": 4, "resume_at": 9}, "resume_at is 9"),
        ({"schema": 7}, "its schema is 7"),
        ({"ladder": [{"nonsense": 1}]}, "nonsense"),
        ({"ladder": [{"threshold": 4, "resume_at": 3, "num_steps": -2}]}, "draft steps"),
        ({"words": {}}, "words lacks"),
    ],
)
def test_what_cannot_be_is_named(folder: Path, tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    """-1 above all: on the wire it means never to disable."""
    run = write_run(tmp_path / "run", [])
    document = json.loads((folder / FILE).read_text()) | changes
    (run.path / FILE).write_text(json.dumps(document))
    with pytest.raises(UserError, match=words):
        read(run)


@pytest.mark.parametrize(
    "changes", [{"gpus": 5}, {"gpus": ["H200"]}, {"packages": "sglang"}], ids=["number", "names", "words"]
)
def test_a_hostile_environment_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    """compare looks into these untyped parts of the manifest."""
    with pytest.raises(UserError, match=r"manifest\.json is damaged: environment\."):
        compare(*(write_run(tmp_path / name, [], manifest(environment=changes)) for name in "ab"))


@pytest.mark.parametrize("sizes", ["many", [1, "2", None, 4], {"a": 1}, 7])
def test_a_lying_server_does_not_spoil_its_run(tmp_path: Path, sizes: Any) -> None:
    """What it reported of itself is data: an export says what it had to assume instead."""
    made = manifest()
    (name, server), *_ = made.servers.items()
    lying = {"cuda_graph_bs": sizes, "speculative_num_steps": "three", "max_running_requests": -4}
    servers = {name: type(server)(server_run=name, url=server.url, server_args=lying)}
    shown = measured_server(write_run(tmp_path / "run", [], manifest(servers=servers)))
    assert shown.graph_sizes in ((), (1, 4))
    assert (shown.num_steps, shown.max_batch) == (3, 512)
    assert "3 assumed" in shown.notes[0]


def test_damaged_options_of_a_tuning_are_named(tmp_path: Path) -> None:
    """--resume reads them from the manifest."""
    run = write_run(tmp_path / "run", [], manifest(config={"sim": "test", "tune": {"trials": "many"}}))
    with pytest.raises(UserError, match=r"config\.tune"):
        _resumed(run.path)
