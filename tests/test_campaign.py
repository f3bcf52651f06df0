"""The committed configurations are sweeps that can run, those of one campaign differ only in what it varies, and the
script that runs several starts, stops and packs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.config import load_config, make_config
from harness.manifest import new_manifest
from harness.runfolder import RunFolder, RunWriter
from pairs.prompts import KINDS
from pairs.shapes import shapes
from tests.harness.commands import PATIENCE_S, SIM, rows_of, wait_until
from tests.harness.leftovers import nothing_left

CONFIGS = sorted((Path(__file__).parent.parent / "results" / "configs").glob("*.toml"))
README = (CONFIGS[0].parents[1] / "README.md").read_text(encoding="utf-8")
CAMPAIGN = [file for file in CONFIGS if file.name.startswith(("h200-0.5.16-v2-acc", "h200-0.5.16-v2-pair-"))]
CLAIMS = [file for file in CONFIGS if "-claims-" in file.name]
MODELS = {"model": "TARGET", "draft": "DRAFT", "threshold": 24}
VARIED = {"concurrency", "warmup", "duration", "input_tokens", "random_range_ratio", "server_env", "server_args"}
GPU_KV_GIB = 100.0  # of an H200's 140 GiB, beside two sets of weights
KV_GIB_PER_TOKEN = 128 / 2**20  # Llama-3.1-8B in bfloat16
ALL_LEVELS, FEW_LEVELS = (1, 2, 4, 8, 16, 32, 64, 128, 256), (1, 32, 128)
POINTS = 1000  # of a second each: more than any test waits for


def shared_part(document: dict[str, Any]) -> dict[str, Any]:
    """What no configuration of the campaign may change; the fixed acceptance needs dummy weights, the pair its own."""
    dummy = ("--load-format", "dummy")
    arguments = [word for word in document["server_args"] if word not in dummy]
    varied = VARIED | {"dataset", "tokenizer"}
    return {key: value for key, value in document.items() if key not in varied} | {"server_args": arguments}


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.stem)
def test_a_configuration_does_what_its_name_says(file: Path) -> None:
    """It is accepted; worker and acceptance in its name are those it sets; its command writes a folder of its name."""
    config = make_config(load_config(file) | MODELS)
    fixed = re.search(r"-acc(\d\.\d)", file.stem)
    assert f"-{config.worker}-" in file.stem
    assert fixed is None or config.server_env["SGLANG_SIMULATE_ACC_LEN"] == fixed[1]
    asks = f"--threshold N --out results/{file.stem}" if "dynamic" in config.variants else f"--out results/{file.stem}"
    assert asks in file.read_text()


def test_the_campaign_is_complete_and_even() -> None:
    """Four acceptances at three contexts, five kinds of prompts; everything else is equal."""
    names = {file.stem.removeprefix("h200-0.5.16-v2-") for file in CAMPAIGN}
    fixed = {f"acc{accept}-ctx{context}" for accept in (1.6, 2.0, 2.4, 2.8) for context in ("128", "2k", "8k")}
    assert names == fixed | {f"pair-{kind}" for kind in KINDS}
    first, *others = [shared_part(load_config(file)) for file in CAMPAIGN]
    assert all(other == first for other in others)


@pytest.mark.parametrize("file", CAMPAIGN, ids=lambda file: file.stem)
def test_both_servers_fit_on_one_gpu(file: Path) -> None:
    """The KV caches of two resident servers, each for the longest requests at the largest load."""
    config = make_config(load_config(file) | MODELS)
    assert config.resident == "together"
    longest = (config.input_tokens + config.output_tokens) * (1 + config.random_range_ratio)
    assert 2 * config.max_concurrency * longest * KV_GIB_PER_TOKEN < GPU_KV_GIB


def test_what_is_claimed_is_measured_in_one_process() -> None:
    """Each has its reference, and the states of one patched server, at all levels or at three, three times."""
    assert len(CLAIMS) == 6
    for file in CLAIMS:
        config = make_config(load_config(file) | MODELS)
        reference = "baseline" if config.worker == "v2" else "baseline_no_overlap"
        assert config.variants == (reference, "eagle3", "dynamic", "forced_off")
        levels = ALL_LEVELS if "-v2-claims-acc" in file.stem else FEW_LEVELS
        assert (config.concurrency, config.repeats, config.together) == (levels, 3, True)


def test_ranks_draw_no_acceptance_of_their_own() -> None:
    """On several GPUs the accept length is a whole number: each rank draws a fractional one for itself. None of them
    asks for NVLink multicast, which can take a shared host's GPUs out of service."""
    parallel = [config for file in CONFIGS if (config := make_config(load_config(file) | MODELS)).tp > 1]
    assert len(parallel) == 7
    for config in parallel:
        assert float(config.server_env["SGLANG_SIMULATE_ACC_LEN"]).is_integer()
        assert not config.together
        assert config.server_env["TORCH_SYMM_MEM_DISABLE_MULTICAST"] == "1"


def test_a_campaign_hands_thresholds_on(tmp_path: Path) -> None:
    """NAME:GPUS:THRESHOLD begins a run with that threshold on those GPUs; its servers cannot start here."""
    (tmp_path / "runs").mkdir()
    name = "h200-0.5.16-v2-claims-triton-acc2.0"
    assert campaign(tmp_path, "start", "runs", "no-target", "no-draft", f"{name}:0,1:24").returncode == 0
    ended = campaign(tmp_path, "wait", "runs", "100")
    assert ended.returncode == 0, ended.stdout
    manifest = RunFolder(tmp_path / "runs" / name).manifest
    assert manifest.settings.threshold == 24
    assert manifest.config["server_env"]["CUDA_VISIBLE_DEVICES"] == "0,1"


def test_the_readme_names_every_configuration() -> None:
    """By families written with braces."""
    patterns = [named(family) for family in re.findall(r"h200[\w.{},-]+[\w}]", README)]
    for file in CONFIGS:
        assert any(re.fullmatch(pattern, file.stem) for pattern in patterns), file.stem


def test_sittings_are_planned_at_the_pace_of_sweeps() -> None:
    """Minutes, GPUs and shapes in the table are those of its configurations; a start of servers takes 2.5 minutes."""
    rows = re.findall(r"^\| (h200\S+(?:, h200\S+)*) \| (\d) \| (\d+) \| (\S+) \|", README, re.MULTILINE)
    assert len(rows) == 8
    for families, gpus, minutes, shape in rows:
        files = [file for family in families.split(", ") for file in CONFIGS if re.fullmatch(named(family), file.stem)]
        assert files
        assert shape in shapes()
        for file in files:
            config = make_config(load_config(file) | MODELS)
            points = len(config.variants) * len(config.concurrency) * config.repeats
            starts = 1 if config.together else 3
            assert (config.tp, round(points * config.point_s / 60 + 2.5 * starts)) == (int(gpus), int(minutes))


def named(family: str) -> str:
    """A pattern of the configurations that a name with braces stands for."""
    return re.sub(r"\\{([^}]*)\\}", lambda m: f"({m[1].replace(',', '|')})", re.escape(family))


def campaign(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """results/campaign.sh from this folder, with this Python where the repository has none of its own."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    return subprocess.run(
        [str(CONFIGS[0].parents[1] / "campaign.sh"), *words],
        cwd=folder,
        env={**os.environ, "PATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
        check=False,
    )


def planned(run: Path, repeats: int) -> Path:
    """A run folder on a simulated server, begun on another GPU, in which nothing has been measured."""
    config = make_config(
        {"sim": SIM, "variants": ["baseline"], "concurrency": [1], "repeats": repeats, "warmup": 0.2, "duration": 0.6}
        | {"input_tokens": 8, "output_tokens": 8, "server_env": {"CUDA_VISIBLE_DEVICES": "7"}}
    )
    RunWriter.create(run, new_manifest(config, ["specpivot"])).close()
    return run


def test_a_campaign_starts_stops_and_packs(tmp_path: Path) -> None:
    """Into a relative folder from anywhere; two sweeps are resumed one after the other, on the GPU that is named now;
    that of hours ends when told to and keeps what it has, and what was packed is resumed as well."""
    short, run = planned(tmp_path / "runs" / "short", 1), planned(tmp_path / "runs" / "one", POINTS)
    with nothing_left(tmp_path / "runs"):
        assert campaign(tmp_path, "start", "runs", "TARGET", "DRAFT", "short:0", "one:0").returncode == 0
        with rows_grow(run):
            assert campaign(tmp_path, "wait", "runs", "0").returncode == 1
        assert len(rows_of(short)) == 1
        assert campaign(tmp_path, "stop", "runs").returncode == 0
        stopped = campaign(tmp_path, "wait", "runs", "100")
        assert stopped.returncode == 0, stopped.stdout
    assert 0 < len(RunFolder(run).levels()) < POINTS
    assert {server.env["CUDA_VISIBLE_DEVICES"] for server in RunFolder(run).manifest.servers.values()} == {"0"}
    assert f"== one: {len(RunFolder(run).levels())} points" in stopped.stdout

    (tmp_path / "out").mkdir()
    assert campaign(tmp_path, "pack", "runs", "out").returncode == 0
    with tarfile.open(tmp_path / "out" / "one.tar") as packed:
        assert packed.getnames() == ["one/manifest.json", "one/levels.csv", "one/requests.jsonl.gz"]
        packed.extractall(tmp_path / "unpacked", filter="data")
    unpacked = RunFolder(tmp_path / "unpacked" / "one")
    assert [row.key for row in unpacked.levels()] == [row.key for row in RunFolder(run).levels()]
    assert sum(1 for _ in unpacked.requests()) == sum(1 for _ in RunFolder(run).requests())

    with nothing_left(tmp_path / "unpacked"):
        assert campaign(tmp_path, "start", "unpacked", "TARGET", "DRAFT", "one:0").returncode == 0
        with rows_grow(tmp_path / "unpacked" / "one"):
            pass
        assert campaign(tmp_path, "stop", "unpacked").returncode == 0
        assert campaign(tmp_path, "wait", "unpacked", "100").returncode == 0


def test_what_has_no_point_yet_is_left_out_of_a_pack(tmp_path: Path) -> None:
    """A run that has just begun keeps nobody from packing the others."""
    planned(tmp_path / "runs" / "begun", 1)
    whole = planned(tmp_path / "runs" / "whole", 1)
    (whole / "levels.csv").write_text("")
    (tmp_path / "out").mkdir()
    packed = campaign(tmp_path, "pack", "runs", "out")
    assert packed.returncode == 0, packed.stderr
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["whole.tar"]


def test_a_campaign_that_runs_is_not_started_again(tmp_path: Path) -> None:
    """Its queues would be forgotten: neither wait nor stop would find them."""
    (tmp_path / "gpu0.pid").write_text(f"{os.getpid()}\n")
    again = campaign(tmp_path, "start", ".", "TARGET", "DRAFT")
    assert again.returncode == 1
    assert "still measures" in again.stderr
    assert (tmp_path / "gpu0.pid").exists()


@contextmanager
def rows_grow(run: Path) -> Iterator[None]:
    """The campaign measures a point more of it after this than before; whatever fails, its queue is ended."""
    before, log = len(rows_of(run)), run.with_name(f"{run.name}.log")
    queue = psutil.Process(int((run.parent / "gpu0.pid").read_text()))
    try:
        yield
        wait_until(lambda: len(rows_of(run)) > before, lambda: alive(queue) or log.read_text())
    except BaseException:
        with suppress(psutil.NoSuchProcess):
            queue.terminate()
        raise


def alive(process: psutil.Process) -> bool:
    """Whether it has not ended yet."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
