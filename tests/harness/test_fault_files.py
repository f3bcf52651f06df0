"""Every file that a person or a run hands to the harness, fuzzed: sound values or one line, never anything else.

levels.csv and requests.jsonl have their own tests in test_hostile_runs.py.
"""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness import selftest
from harness.checks import Calibration
from harness.config import SweepConfig, load_config, make_config
from harness.datasets import read_dataset, salted
from harness.errors import UserError
from harness.records import Manifest
from harness.runfolder import RunFolder, RunWriter
from harness.sim.preset import DEFAULT_PRESET, PRESETS, costs_of, load_preset
from harness.traces import read_trace, replay
from harness.workload import WorkloadPlan, encode_body
from tests.harness.test_runfolder import MANIFEST

FUZZED = settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
NUMBERS = st.integers(-5, 5) | st.integers() | st.floats() | st.sampled_from([2**31, 2**63, 10**400, 1e308, 5e-324])
JSON = st.recursive(
    NUMBERS | st.none() | st.booleans() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
HOSTILE_BYTES = st.binary(max_size=80) | st.sampled_from(
    [b"[" * 200_000, b'{"a":' * 100_000, b"\xff\xfe", b"\0" * 100, b"1" * 10_000, b'"' + b"x" * 100_000, b"[1,1e999]"]
)


def read(reader: Callable[[], Any]) -> Any:
    """What was read; None where it was refused in one printable line."""
    try:
        return reader()
    except UserError as error:
        said = str(error)
    assert said.isprintable()
    assert len(said) <= 1000
    return None


def places(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where a JSON document has values: the whole of it, and each part of it."""
    yield path
    items = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, value in items:
        yield from places(value, (*path, key))


def put(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    """The document with another value at one place."""
    if not path:
        return value
    changed = document.copy()
    changed[path[0]] = put(document[path[0]], path[1:], value)
    return changed


SOUND_MANIFEST = json.loads(msgspec.json.encode(MANIFEST))
SOUND_PRESET = json.loads((PRESETS / f"{DEFAULT_PRESET}.json").read_text())


@FUZZED
@given(path=st.sampled_from(list(places(SOUND_MANIFEST))), value=JSON)
def test_any_part_of_a_manifest(tmp_path: Path, path: tuple[Any, ...], value: Any) -> None:
    """What is read can be written again, and a sweep that would go on with it has checked settings."""
    (tmp_path / "manifest.json").write_text(json.dumps(put(SOUND_MANIFEST, path, value)))
    (tmp_path / "requests.jsonl").touch()
    run = read(lambda: RunFolder(tmp_path))
    if run is not None:
        assert isinstance(run.manifest, Manifest)
        assert msgspec.json.encode(run.manifest)
        read(lambda: make_config(run.manifest.config))
        writer = read(lambda: RunWriter.resume(tmp_path))
        if writer is not None:
            writer.close()


@FUZZED
@given(body=HOSTILE_BYTES)
def test_any_bytes_of_a_file_that_is_named(tmp_path: Path, body: bytes) -> None:
    """Garbage in place of each kind of file."""
    file = tmp_path / "file.json"
    file.write_bytes(body)
    config = read(lambda: make_config(load_config(file)))
    assert config is None or isinstance(config, SweepConfig)
    for reader in (read_trace, read_dataset, load_preset):
        read(lambda reader=reader: reader(file))
    (tmp_path / "manifest.json").write_bytes(body)
    assert read(lambda: RunFolder(tmp_path)) is None


@FUZZED
@given(values=st.dictionaries(st.sampled_from([f.encode_name for f in msgspec.structs.fields(SweepConfig)]), JSON))
def test_any_settings(values: dict[str, Any]) -> None:
    """Several hostile keys at once: a configuration within its bounds, or one line."""
    config = read(lambda: make_config(values))
    assert config is None or (config.repeats <= 1000 and 0 < config.duration_s <= 86400)


TRACE_LINE = {"timestamp": 3000, "input_length": 60, "output_length": 5, "hash_ids": [1]}


@FUZZED
@given(lines=st.lists(st.dictionaries(st.sampled_from(list(TRACE_LINE)), JSON, max_size=4), min_size=1, max_size=3))
def test_any_mooncake_trace(tmp_path: Path, lines: list[dict[str, Any]]) -> None:
    """What is read can be replayed: times in order, lengths that can be sent."""
    file = tmp_path / "trace.jsonl"
    file.write_text("".join(json.dumps(TRACE_LINE | line) + "\n" for line in lines))
    check_trace(file)


CELLS = st.sampled_from(
    ["", "5", "-1", "nan", "inf", "1e400", "9" * 5000, "0001-01-01", "9999-12-31 23:59:59", "\x1b[2J", "x"]
)
AZURE, BURST = "TIMESTAMP,ContextTokens,GeneratedTokens", "Timestamp,Request tokens,Response tokens"


@FUZZED
@given(head=st.sampled_from([AZURE, BURST]), rows=st.lists(st.lists(CELLS, max_size=4), min_size=1, max_size=3))
def test_any_csv_trace(tmp_path: Path, head: str, rows: list[list[str]]) -> None:
    """The same for the two kinds of CSV."""
    file = tmp_path / "trace.csv"
    file.write_text("\n".join([head, *(",".join(row) for row in rows)]) + "\n")
    check_trace(file)


def check_trace(file: Path) -> None:
    rows = read(lambda: read_trace(file))
    if rows is None:
        return
    assert [row.at_s for row in rows] == sorted(row.at_s for row in rows)
    assert all(math.isfinite(row.at_s) and 1 <= row.output_tokens <= 2**22 for row in rows)
    if sum(row.input_tokens for row in rows) < 100_000:
        assert len(list(replay(rows, WorkloadPlan(), 1))) == len(rows)


ENTRIES = (
    {"conversations": [{"from": "human", "value": "Why?"}]},
    {"turns": ["Why?", "Why not?"]},
    {"messages": [{"role": "user", "content": "Why?"}], "max_tokens": 5},
    {"body": {"messages": [{"role": "user", "content": "Why?"}]}},
    {"prompt": "Why?", "output_tokens": 7},
)


@FUZZED
@given(data=st.data(), value=JSON)
def test_any_part_of_a_data_set(tmp_path: Path, data: st.DataObject, value: Any) -> None:
    """What is read can be sent: in each dialect, with a length that a server takes."""
    entry = data.draw(st.sampled_from(ENTRIES))
    path = data.draw(st.sampled_from(list(places(entry))))
    file = tmp_path / "data.jsonl"
    file.write_text(json.dumps(put(entry, path, value)) + "\n")
    samples = read(lambda: read_dataset(file))
    for sample in islice(salted(samples, "salt"), 2) if samples else ():
        assert sample.output_tokens is None or 1 <= sample.output_tokens <= 2**22
        for api in ("generate", "completions", "chat"):
            prompt: Any = list(sample.messages) if api == "chat" else sample.text
            assert encode_body(WorkloadPlan(api=api), prompt, sample.output_tokens or 1)


@FUZZED
@given(path=st.sampled_from(list(places(SOUND_PRESET))), value=JSON)
def test_any_part_of_a_preset(tmp_path: Path, path: tuple[Any, ...], value: Any) -> None:
    """What is read is a machine whose steps take finite time."""
    file = tmp_path / "preset.json"
    file.write_text(json.dumps(put(SOUND_PRESET, path, value)))
    preset = read(lambda: load_preset(file))
    if preset is None:
        return
    for variant in ("baseline", "baseline_no_overlap", "eagle3"):
        costs = costs_of(preset, variant)
        assert all(0 < costs.decode_s(batch, 0) < 1e13 for batch in (1, 7, 256, 10_000))
        assert all(0 < costs.prefill.at(tokens) < 1e13 for tokens in (1, 1000, 10**6))
    for drafts in preset.patched.speculative:
        assert 0 < costs.decode_s(3, drafts) < 1e13
        assert preset.acceptance.mean_at(drafts) >= 1 - 1e-9


@FUZZED
@given(key=st.sampled_from(["host", "cores", "levels", "max_tok_per_s"]), value=JSON)
def test_any_calibration(tmp_path: Path, key: str, value: Any) -> None:
    """A damaged selftest.json is as none: it must not stop a sweep, nor spoil every point of it."""
    report = {"host": platform.node(), "cores": os.cpu_count(), "transport": "raw", "levels": [], "max_tok_per_s": 1e5}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path))
        selftest.calibration_file().parent.mkdir(parents=True, exist_ok=True)
        selftest.calibration_file().write_text(json.dumps(report | {key: value}))
        found = selftest.load_calibration()
    assert found is None or (isinstance(found, Calibration) and 0 < found.max_tok_per_s < math.inf)
