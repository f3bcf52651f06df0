"""Random requests to the real tuning service: `make fuzz` installs schemathesis, which reads its openapi.json.

    python -m tests.fuzz_service [EXAMPLES]

The service holds a committed run and a server that is down. A crash (5xx), a status or an answer that the schema does
not name, or a service that is gone afterwards is a finding; the exit code is then not 0. Whether data that fits the
schema is accepted is not checked: some is refused for what it means, as a threshold below the one to resume at.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.tuner.service.test_serve import COMMAND, call, served

ROOT = Path(__file__).parent.parent
PROGRAM = shutil.which("schemathesis", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}") or "schemathesis"
RUN = "h200-0.5.12-v2-acc2.0"


def main(examples: str = "100") -> int:
    """Fuzz every route but the endless one; returns schemathesis's exit code."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "results" / RUN, Path(folder) / RUN)
        with served(COMMAND, Path(folder)) as (url, process):
            call(f"{url}/api/v1/servers", {"name": "down", "url": "http://127.0.0.1:9"})
            words = ["run", f"{url}/api/v1/openapi.json", "--max-examples", examples, "--no-color"]
            words += ["--exclude-path", "/api/v1/events", "--exclude-checks", "positive_data_acceptance"]
            code = subprocess.run([PROGRAM, *words], cwd=folder, check=False).returncode
            alive = process.poll() is None and "runs" in call(f"{url}/api/v1/runs")
    return code if alive else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
