"""The parts of the SGLang kit that need no SGLang: a kit that compares nothing would pass every test."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.sglang_cpu import machines, models, report, servers
from tests.sglang_cpu.environments import Environment
from tests.sglang_cpu.machines import Machine
from tests.sglang_cpu.servers import Wanted
from tests.sglang_cpu.slot import Slot
from tests.sglang_cpu.traffic import Answer, differences

ROOT = Path(__file__).parents[1]
ANSWER = Answer(tokens=(7, 8), finish="length", logprobs=(-0.5, -1.5), top=(((-0.5, 7),), ((-1.5, 8),)))


def _digest(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_models_are_the_same_bytes_on_every_run(tmp_path: Path) -> None:
    """Constructed from fixed seeds: two runs agree, the target and its two drafts differ."""
    models.make(tmp_path / "a")
    models.make(tmp_path / "b")

    first = _digest(tmp_path / "a")
    assert first == _digest(tmp_path / "b")
    weights = [digest for name, digest in first.items() if name.endswith(".safetensors")]
    assert len(set(weights)) == len(weights) == 3


def test_safetensors_header_covers_the_file(tmp_path: Path) -> None:
    """Offsets are contiguous and end where the file ends."""
    models.make(tmp_path)
    data = (tmp_path / "draft" / "model.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])

    spans = sorted(entry["data_offsets"] for name, entry in header.items() if name != "__metadata__")
    assert [start for start, _ in spans] == [0, *(end for _, end in spans[:-1])]
    assert spans[-1][1] == len(data) - 8 - length


def test_text_is_encoded_one_token_per_byte(tmp_path: Path) -> None:
    """The encoder agrees with the vocabulary that is written for the server."""
    models.make(tmp_path)
    vocabulary = json.loads((tmp_path / "target" / "tokenizer.json").read_text())["model"]["vocab"]

    assert models.encode("a b!") == [vocabulary[character] for character in ("a", "\u0120", "b", "!")]


@pytest.mark.parametrize(
    "other",
    [
        replace(ANSWER, tokens=(7, 9)),
        replace(ANSWER, finish="stop"),
        replace(ANSWER, logprobs=(-0.5, -1.51)),
        replace(ANSWER, logprobs=(-0.5,)),
        replace(ANSWER, top=(((-0.5, 7),), ((-1.6, 8),))),
    ],
    ids=["token", "finish", "logprob", "missing", "top"],
)
def test_differences_are_seen(other: Answer) -> None:
    """Every field of an answer counts; a rounding error does not."""
    assert differences([ANSWER], [replace(ANSWER, logprobs=(-0.5001, -1.5))]) == []
    assert len(differences([other], [ANSWER])) == 1


@pytest.mark.parametrize(("selection", "status"), [([], 0), (["-k", "refused_policy"], 1)], ids=["all", "some"])
def test_deselected_sglang_test_turns_a_run_red(selection: list[str], status: int) -> None:
    """A run of the SGLang tests that leaves one out does not pass."""
    command = [sys.executable, "-m", "pytest", "tests/sglang_cpu", "-m", "sglang", "--collect-only", *selection]

    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250, check=False)

    assert finished.returncode == status, finished.stdout


@pytest.mark.skipif(machines.gpu().releases != (), reason="this machine has both")
def test_gpu_suite_needs_a_gpu() -> None:
    """Without one, or without SGLang beside this Python, there is nothing to run and nothing has failed."""
    command = [sys.executable, "-m", "pytest", "tests/sglang_cpu", "-m", "sglang_gpu", "--collect-only"]

    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250, check=False)

    assert finished.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, finished.stdout


def test_machines_differ_in_what_a_server_is_given(tmp_path: Path) -> None:
    """A GPU's servers get graphs and exact float32, a CPU's get neither; models, limits and seed are the same."""
    on_cpu, on_gpu = replace(machines.CPU, environment=_no_environment), machines.gpu()

    cpu = servers.command(on_cpu, "0.5.16", tmp_path, 1, "patched_worker")
    gpu = servers.command(on_gpu, "0.5.16", tmp_path, 1, "patched_worker")

    assert "--disable-cuda-graph" in set(cpu) - set(gpu)
    assert "--cuda-graph-bs" in set(gpu) - set(cpu)
    common = ("--model-path", "--dtype", "--random-seed", "--max-total-tokens", "--max-running-requests")
    assert [cpu[cpu.index(name) + 1] for name in common] == [gpu[gpu.index(name) + 1] for name in common]
    assert servers.variables(on_gpu, "0.5.16")["TRITON_F32_DEFAULT"] == "ieee"
    assert "SGLANG_USE_CPU_ENGINE" in servers.variables(on_cpu, "0.5.16")


def _no_environment(release: str) -> Environment:
    return Environment(release, Path(sys.executable), ())


@pytest.fixture
def hopeless() -> Machine:
    """A machine on which every server ends at once."""
    return replace(machines.CPU, environment=_no_environment)


def test_start_that_fails_is_not_tried_again(hopeless: Machine, tmp_path: Path) -> None:
    """The second test that wants the server hears why the first one did not get it, at once."""
    slot = Slot(hopeless, tmp_path, tmp_path)
    wanted = Wanted("hopeless", "0.5.16", (), module="no_such_module")

    with pytest.raises(AssertionError, match="No module named no_such_module"):
        slot.use(wanted)
    with pytest.raises(AssertionError, match="did not come up before"):
        slot.use(wanted)
    slot.start_all([replace(wanted, name="another")])

    assert len(list(tmp_path.glob("*.log"))) == 2


def test_servers_of_a_group_are_started_together(hopeless: Machine, tmp_path: Path) -> None:
    """When one of them is asked for, and once: afterwards each is started for itself."""
    one, other, third = (Wanted(name, "0.5.16", (), module="no_such_module") for name in ("one", "other", "third"))
    slot = Slot(replace(hopeless, resident=3), tmp_path, tmp_path, [[other, one], [third]])

    with pytest.raises(AssertionError, match="No module named no_such_module"):
        slot.use(one)
    assert {log.stem[3:] for log in tmp_path.glob("*.log")} == {"one", "other"}
    with pytest.raises(AssertionError, match="did not come up before"):
        slot.use(other)
    with pytest.raises(AssertionError, match="No module named no_such_module"):
        slot.use(third)


def test_ports_of_servers_that_start_together_are_far_apart() -> None:
    """Further than those that SGLang looks for above its own."""
    first, second, third = sorted(servers.free_port() for _ in range(3))
    assert min(second - first, third - second) > 1000


def test_report_outlasts_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each result is on disk when it comes, with the text of a failure and without this machine's folders."""
    monkeypatch.setenv("SPECPIVOT_TEST_REPORT", str(tmp_path / "report.txt"))
    for outcome, when, text in (("passed", "setup", ""), ("passed", "call", ""), ("failed", "call", f"in {ROOT}/x")):
        result = pytest.TestReport(f"tests/a.py::b[{when}]", ("", 0, ""), {}, outcome, text, when, duration=1.5)
        report.add(result)

    lines = (tmp_path / "report.txt").read_text().splitlines()
    assert lines == ["PASSED      1.5 s  a.py::b[call]", "FAILED      1.5 s  a.py::b[call]", "    in ~/x"]
