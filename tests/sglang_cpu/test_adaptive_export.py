"""What we export for SGLang's own adaptive mode, read by SGLang 0.5.23's own loader and router."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import msgspec
import pytest

from tests.tuner.runs import write_run
from tuner.export import Server, export
from tuner.graphs import effective_threshold
from tuner.recommend import recommend

environments = pytest.importorskip("tests.sglang_cpu.environments", reason="needs the kit that installs SGLang")

SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 40)
THRESHOLDS = (31, 40, 50)
ROUTE = """
import json, sys
from sglang.srt.speculative.adaptive_spec_params import AdaptiveSpeculativeParams, resolve_candidate_steps_from_config
for file in sys.argv[2:]:
    params = AdaptiveSpeculativeParams(3, file)
    params.set_cuda_graph_bs(json.loads(sys.argv[1]))
    steps = [params.get_steps_for_batch(batch) for batch in range(1, 101)]
    print(json.dumps({"steps": steps, "candidates": resolve_candidate_steps_from_config(file)}))
"""


def test_sglang_switches_where_we_say(tmp_path: Path) -> None:
    """The files are accepted, and every batch is routed on or off exactly as the effective threshold says."""
    found = recommend(write_run(tmp_path / "run"))
    server = Server(num_steps=3, graph_sizes=SIZES, max_batch=256)
    files = []
    for threshold in THRESHOLDS:
        wanted = msgspec.structs.replace(found, threshold=threshold, resume_at=24)
        files.append(tmp_path / f"{threshold}.json")
        files[-1].write_text(export(wanted, "sglang-adaptive", server).text)
    environment = environments.build("0.5.23")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(str(folder) for folder in environment.path)}
    command = [str(environment.python), "-c", ROUTE, json.dumps(SIZES), *map(str, files)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()[-len(files) :]]
    for threshold, answer in zip(THRESHOLDS, answers, strict=True):
        expected = effective_threshold(threshold, SIZES) or 0
        assert answer["steps"] == [3 if batch <= expected else 0 for batch in range(1, 101)]
        assert answer["candidates"] == [0, 3]
