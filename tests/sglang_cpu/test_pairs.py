"""`pairs` where PyTorch is: its checks run inside the environment of a release; a trained pair in its server.

PyTorch and gguf are no dependencies of the main install, and these tests must not be skipped for that.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.sglang_cpu import environments, servers
from tests.sglang_cpu.slot import Slot

ROOT = Path(__file__).parents[2]
RELEASE = "0.5.16"
CHECKS = (
    "llama_is_transformers_llama",
    "captured_layers_are_sglangs",
    "dequantised_values_are_the_files",
    "rotation_survives_the_new_row_order",
    "an_unknown_model_is_refused",
    "a_damaged_model_is_refused",
    "acceptance_is_that_of_a_server",
    "training_goes_on_and_exports",
    "other_settings_are_refused",
    "another_target_is_refused",
    "padding_computes_the_same",
    "impossible_sizes_are_refused",
    "the_named_size_holds_smollm2",
)


def run_checks(folder: Path, *names: str) -> dict[str, str | None]:
    """The outcome of functions of pair_checks, in one process of the environment; see there."""
    release, extra = environments.build(RELEASE), environments.build("pairs")
    path = os.pathsep.join(map(str, (release.path[-1], extra.path[-1], ROOT)))
    alone = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": path}
    finished = subprocess.run(
        [str(release.python), "-m", "tests.sglang_cpu.pair_checks", str(folder), *names],
        cwd=ROOT,
        env={**os.environ, **alone},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    outcome: dict[str, str | None] = json.loads((folder / "outcome.json").read_text())
    assert list(outcome) == list(names)
    return outcome


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    """What became of every check, and of one that fails."""
    return run_checks(tmp_path_factory.mktemp("pairs"), *CHECKS, "fails")


@pytest.mark.parametrize("name", CHECKS)
def test_pairs(name: str, outcome: dict[str, str | None]) -> None:
    """What the check's own docstring says."""
    assert outcome[name] is None, outcome[name]


def test_a_failed_check_is_seen(outcome: dict[str, str | None]) -> None:
    """A check that raises is a traceback in the outcome."""
    assert "this check always fails" in (outcome["fails"] or "")


@pytest.mark.only_full
def test_server_accepts_what_the_simulation_says(slot: Slot, logs: Path, tmp_path: Path) -> None:
    """A trained pair loads, answers as the plain target does, and takes the simulated number of verify steps."""
    assert run_checks(tmp_path, "make_pair") == {"make_pair": None}
    made = tmp_path / "make_pair"
    expected = json.loads((made / "expected.json").read_text())
    slot.empty()
    pair = servers.Wanted("pair", RELEASE, tuple(servers.eagle_arguments(made / "pair")))
    server = servers.start(slot.machine, pair, made / "pair", logs / "pair.log")
    try:
        wanted = {"temperature": 0, "ignore_eos": True}
        got = server.generate_all(
            [
                {"input_ids": row["prompt"], "sampling_params": {**wanted, "max_new_tokens": len(row["answer"])}}
                for row in expected
            ]
        )
        server.assert_healthy()
    finally:
        servers.stop(server)
    assert [one["output_ids"] for one in got] == [row["answer"] for row in expected]
    assert [one["meta_info"]["spec_verify_ct"] for one in got] == [row["steps"] for row in expected]
    assert sum(row["steps"] for row in expected) < 0.95 * sum(len(row["answer"]) - 1 for row in expected)
