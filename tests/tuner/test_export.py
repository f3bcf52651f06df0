"""Exports: each format says what is recommended in its reader's schema, or refuses."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path

import msgspec
import pytest

from harness.errors import UserError
from patched_worker.policy import Policy, Rung
from tests.tuner.runs import manifest, write_run
from tuner.export import Format, Server, export, measured_server, policy_bands
from tuner.graphs import captured_sizes, effective_threshold
from tuner.recommend import Recommendation, recommend

SIZES = (1, 2, 4, 8, 16, 24, 32, 40)
SERVER = Server(num_steps=3, graph_sizes=SIZES, max_batch=256)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Recommendation:
    """A recommendation with threshold 31, to be changed by the tests."""
    made = recommend(write_run(tmp_path_factory.mktemp("export") / "run"))
    return msgspec.structs.replace(made, threshold=31, resume_at=24, interval=(28, 35))


def with_threshold(found: Recommendation, threshold: int | None) -> Recommendation:
    return msgspec.structs.replace(found, threshold=threshold, resume_at=threshold)


LADDER = ({"threshold": 8, "resume_at": 6, "num_steps": 5}, {"threshold": 64, "resume_at": 48, "num_steps": 1})


def test_json_is_the_recommendation_itself(found: Recommendation) -> None:
    """What the patched worker reads with --speculative-policy-file is the file of the run."""
    assert msgspec.json.decode(export(found, "json", SERVER).text, type=Recommendation) == found


@pytest.mark.parametrize(("threshold", "word"), [(31, "31"), (0, "0"), (None, "never")])
def test_sglang_flags(found: Recommendation, threshold: int | None, word: str) -> None:
    """The flags survive a shell and carry threshold, resume point and dwell where there is something to resume."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--speculative-disable-batch-threshold")
    parser.add_argument("--speculative-resume-batch-threshold", type=int)
    parser.add_argument("--speculative-min-dwell-steps", type=int)
    made = export(with_threshold(found, threshold), "sglang", SERVER)
    flags = parser.parse_args(shlex.split(made.text))
    assert flags.speculative_disable_batch_threshold == word
    assert flags.speculative_resume_batch_threshold == (31 if threshold else None)


def test_sglang_ladder_points_to_the_file(found: Recommendation) -> None:
    """A ladder does not fit into flags."""
    made = export(msgspec.structs.replace(found, ladder=LADDER), "sglang", SERVER)
    assert made.text == "--speculative-policy-file recommendation.json\n"


def test_adaptive_config_and_its_effective_threshold(found: Recommendation) -> None:
    """Slot N+1 is off, and the padding that makes it off earlier is said with its number."""
    made = export(found, "sglang-adaptive", SERVER)
    assert json.loads(made.text) == {"1": {"candidate_steps": [3]}, "32": {"candidate_steps": [0]}}
    assert any("effective threshold 24, not 31" in note for note in made.notes)
    exact = export(with_threshold(found, 32), "sglang-adaptive", SERVER)
    assert not any("effective" in note for note in exact.notes)
    unknown = export(found, "sglang-adaptive", msgspec.structs.replace(SERVER, graph_sizes=()))
    assert any("unknown" in note for note in unknown.notes)


def route(batch: int, slots: dict[str, dict[str, list[int]]], sizes: tuple[int, ...]) -> int:
    """How SGLang 0.5.23 picks draft steps: pad to the next captured size, then the closest slot key below."""
    padded = next((size for size in sizes if size >= batch), batch)
    key = max(int(key) for key in slots if int(key) <= padded)
    return slots[str(key)]["candidate_steps"][0]


@pytest.mark.parametrize("threshold", [1, 3, 24, 31, 32, 39, 40, 41, 100])
def test_effective_threshold_is_what_the_router_does(found: Recommendation, threshold: int) -> None:
    """Routing every batch through the exported slots switches exactly at the effective threshold."""
    slots = json.loads(export(with_threshold(found, threshold), "sglang-adaptive", SERVER).text)
    on = [batch for batch in range(1, 200) if route(batch, slots, SIZES)]
    assert max(on) == effective_threshold(threshold, SIZES)
    assert on == list(range(1, max(on) + 1))


def test_effective_threshold_at_the_ends() -> None:
    """Never and always are not rounded; a threshold below the first captured size is off everywhere."""
    assert effective_threshold(None, SIZES) is None
    assert effective_threshold(0, SIZES) == 0
    assert effective_threshold(3, (4, 8)) == 0
    assert effective_threshold(3, ()) == 3
    assert captured_sizes({"cuda_graph_bs": [8, 1], "disable_cuda_graph": False}) == (1, 8)
    assert captured_sizes({"cuda_graph_bs": [8, 1], "disable_cuda_graph": True}) == ()


@pytest.mark.parametrize(
    ("threshold", "rows"), [(31, [[1, 31, 3], [32, 256, 0]]), (0, [[1, 256, 0]]), (None, [[1, 256, 3]])]
)
def test_vllm_table_has_no_gap(found: Recommendation, threshold: int | None, rows: list[list[int]]) -> None:
    """Bands follow one another from 1 to the largest batch, and no K exceeds num_speculative_tokens."""
    config = json.loads(export(with_threshold(found, threshold), "vllm", SERVER).text)
    assert config["num_speculative_tokens_per_batch_size"] == rows
    assert config["num_speculative_tokens"] == 3


def test_trtllm_schedule(found: Recommendation) -> None:
    """Keys are the largest batch of each length; above the last one TensorRT-LLM is off by itself."""
    config = json.loads(export(found, "trtllm", SERVER).text)
    assert (config["draft_len_schedule"], config["max_draft_len"]) == ({"31": 3}, 3)
    ladder = json.loads(export(msgspec.structs.replace(found, ladder=LADDER), "trtllm", SERVER).text)
    assert (ladder["draft_len_schedule"], ladder["max_draft_len"]) == ({"8": 5, "64": 1}, 5)
    assert "draft_len_schedule" not in json.loads(export(with_threshold(found, None), "trtllm", SERVER).text)


@pytest.mark.parametrize("form", ["sglang-adaptive", "trtllm"])
def test_never_speculating_is_refused_with_the_remedy(found: Recommendation, form: Format) -> None:
    """A format that cannot say "never" tells what to do instead."""
    with pytest.raises(UserError, match="without"):
        export(with_threshold(found, 0), form, SERVER)


def test_bands_of_a_policy() -> None:
    """Rungs become bands; a context limit cannot be put into a table by batch."""
    assert policy_bands(Policy((Rung(8, 6, 5), Rung(None, None))), 3) == ((1, 8, 5), (9, None, 3))
    with pytest.raises(UserError, match="context"):
        policy_bands(Policy((Rung(8, 6, 5, max_mean_context=4096),)), 3)


def test_measured_server_is_read_from_the_manifest(tmp_path: Path) -> None:
    """Steps and graph sizes come from the server itself; what is assumed is said."""
    known = measured_server(write_run(tmp_path / "known"))
    assert (known.num_steps, known.graph_sizes, known.notes) == (3, SIZES, ())
    unknown = measured_server(write_run(tmp_path / "unknown", made=manifest(servers={})))
    assert unknown.num_steps == 3
    assert "assumed" in unknown.notes[0]
    assert measured_server(write_run(tmp_path / "told", made=manifest(servers={})), num_steps=5).num_steps == 5
