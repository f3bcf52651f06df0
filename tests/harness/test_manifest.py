"""What the manifest says when a run goes on elsewhere than it was begun."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from harness.cli import sweep_settings
from harness.config import make_config
from harness.errors import UserError
from harness.manifest import new_manifest, record_servers
from harness.records import Gpu, ServerGpus, ServerRecord, Variant
from harness.runfolder import RunFolder, RunWriter
from harness.servers import Server
from harness.variants import ServerPlan

CONFIG = make_config(
    {
        "model": "m",
        "draft": "d",
        "variants": ["baseline", "eagle3"],
        "server_env": {"CUDA_VISIBLE_DEVICES": "1", "A": "b"},
    }
)


def up(name: str, variant: Variant, start: int, *gpus: int) -> Server:
    """A server that was started as the so-manyth, on these GPUs."""
    counted = ServerGpus(tuple(Gpu(index, f"GPU-{index}") for index in gpus))
    record = ServerRecord(f"7@{start}", "http://127.0.0.1:1", 7, float(start), gpus=counted)
    return Server(ServerPlan(name, (variant,)), None, record, "")  # type: ignore[arg-type]  # nothing is asked of it


def test_a_run_that_goes_on_on_another_gpu_says_so(tmp_path: Path) -> None:
    """Once per variant that moved, with both GPUs; where they are not known, nothing is claimed."""
    told: list[str] = []
    with RunWriter.create(tmp_path / "run", new_manifest(CONFIG, ["x"])) as writer:
        for start, (baseline, speculative) in enumerate([((1,), (1,)), ((1,), (0,)), ((), (0,))]):
            found: dict[str, Server | UserError] = {
                "baseline": up("baseline", "baseline", 2 * start, *baseline),
                "speculative": up("speculative", "eagle3", 2 * start + 1, *speculative),
            }
            record_servers(CONFIG, writer, found, told.append)
    moved = "eagle3 is measured on GPU GPU-0 now, and was on GPU-1 before"
    assert [line for line in RunFolder(tmp_path / "run").manifest.warnings if "now, and was" in line] == [moved]
    assert told.count(f"warning: {moved}") == 1


def test_a_run_that_begins_now_says_that_its_rows_have_all_intervals() -> None:
    """Without that, verify would take blanked ones for those of an old run."""
    assert new_manifest(CONFIG, ["x"]).latency_intervals


def test_only_the_gpus_of_a_resumed_run_may_be_said_anew(tmp_path: Path) -> None:
    """All else is as it was begun."""
    RunWriter.create(tmp_path / "run", new_manifest(CONFIG, ["x"])).close()
    again, folder = sweep_settings(None, tmp_path / "run", True, {"server_env": {"CUDA_VISIBLE_DEVICES": "3"}})
    assert folder == tmp_path / "run"
    assert again == msgspec.structs.replace(CONFIG, server_env={"CUDA_VISIBLE_DEVICES": "3", "A": "b"})
    assert sweep_settings(None, tmp_path / "run", True, {})[0] == CONFIG
    for given in ({"server_env": {"A": "c"}}, {"tp": 2}, {"tp": 2, "server_env": {"CUDA_VISIBLE_DEVICES": "3"}}):
        with pytest.raises(UserError, match="leave out --config"):
            sweep_settings(None, tmp_path / "run", True, given)
