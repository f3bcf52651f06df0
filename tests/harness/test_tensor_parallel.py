"""A server for eight GPUs is asked for eight ranks: what is started, told by launchers that only write it down."""

from __future__ import annotations

import json
import threading
from pathlib import Path

from harness.config import make_config
from harness.servers import ServerDied, running
from harness.variants import server_plans
from patched_worker.launch import parse

RECORDER = """
import json, os, pathlib, sys
seen = {"module": __spec__.name, "arguments": sys.argv[1:], "environment": dict(os.environ)}
(pathlib.Path(os.environ["RECORDED"]) / f"{os.getpid()}.json").write_text(json.dumps(seen))
sys.exit("recorded")
"""


def test_eight_ranks_reach_both_launchers(tmp_path: Path) -> None:
    """Baseline and patched server get `--tp 8` and the variables of the sweep; ours passes it on to SGLang."""
    for package, module in (("sglang", "launch_server"), ("patched_worker", "__main__")):
        (tmp_path / "fake" / package).mkdir(parents=True)
        (tmp_path / "fake" / package / "__init__.py").touch()
        (tmp_path / "fake" / package / f"{module}.py").write_text(RECORDER)
    recorded = tmp_path / "recorded"
    recorded.mkdir()
    config = make_config(
        {
            "variants": ["baseline", "eagle3", "dynamic"],
            "model": "TARGET",
            "draft": "DRAFT",
            "tp": 8,
            "threshold": 24,
            "server_env": {
                "PYTHONSAFEPATH": "1",  # the working directory holds the real patched_worker
                "PYTHONPATH": str(tmp_path / "fake"),
                "RECORDED": str(recorded),
                "NCCL_NVLS_ENABLE": "0",
            },
        }
    )

    with running(server_plans(config), tmp_path, 200.0, threading.Event(), lambda line: None) as found:
        assert all(isinstance(one, ServerDied) for one in found.values())

    seen = {one["module"]: one for one in (json.loads(file.read_text()) for file in recorded.iterdir())}
    assert set(seen) == {"sglang.launch_server", "patched_worker.__main__"}
    for one in seen.values():
        at = one["arguments"].index("--tp")
        assert one["arguments"][at : at + 2] == ["--tp", "8"]
        assert one["environment"]["NCCL_NVLS_ENABLE"] == "0"
    ours, passed_on = parse(seen["patched_worker.__main__"]["arguments"])
    assert ours == {"SPECPIVOT_DISABLE_BATCH_THRESHOLD": "-1"}
    assert passed_on[passed_on.index("--tp") + 1] == "8"
