"""sweep, tune and apply in a loop: `python -m tests.soak_commands [MINUTES]`, or `make soak-hour MINUTES=60`.

Each round is a sweep on simulated servers, a tuning on two that stay up, and an apply to the patched one; after each,
nothing of it may be left: processes, groups, ports. Memory and open files of the servers that stay up are watched.
The last line is one JSON document; exit code 1 where a round failed or something grew.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from harness.servers import reserved_ports
from tests.harness.commands import QUICK, SIM, run
from tests.harness.leftovers import nothing_left
from tests.harness.test_sweep_faults import simulated

GOOD = (0, 3, 4)  # a busy machine may spoil points; that is told, and no failure of a soak
MEMORY_SLACK = 0.10


def one_round(folder: Path, baseline: str, patched: str) -> list[int]:
    """The exit codes of a round."""
    sweep = (
        "sweep",
        "--sim",
        SIM,
        "--variants",
        "baseline,eagle3,forced_off",
        "--concurrency",
        "1,8",
        "--repeats",
        "1",
    )
    attached = [f"--attach=baseline={baseline}", f"--attach=eagle3={patched}", f"--attach=forced_off={patched}"]
    tune = ("tune", *attached, *QUICK, "--concurrency", "1,4,16", "--budget", "40s", "--trials", "1")
    done = [
        run(folder, *sweep, *QUICK, "--out", str(folder / "swept")),
        run(folder, *tune, "--out", str(folder / "tuned")),
    ]
    if (folder / "tuned" / "recommendation.json").exists():
        done.append(run(folder, "apply", str(folder / "tuned"), "--url", patched))
    return [command.process.returncode for command in done]


def size(process: psutil.Process) -> tuple[int, int]:
    return process.memory_info().rss, process.num_fds()


def main(words: Sequence[str]) -> int:
    minutes = float(words[0]) if words else 60.0
    ends_s = time.monotonic() + 60 * minutes
    codes: list[list[int]] = []
    sizes: list[list[tuple[int, int]]] = []
    with (
        reserved_ports(2) as ports,
        simulated(ports[0], 1) as one,
        simulated(ports[1], 1, "--variant", "dynamic") as other,
    ):
        while not codes or time.monotonic() < ends_s:
            with tempfile.TemporaryDirectory() as name, nothing_left(Path(name)):
                codes.append(one_round(Path(name), *(f"http://127.0.0.1:{port}" for port in ports)))
            sizes.append([size(psutil.Process(process.pid)) for process in (one, other)])
            print(f"round {len(codes)}: exit codes {codes[-1]}, servers {sizes[-1]}", file=sys.stderr)
    early, late = sizes[min(2, len(sizes) - 1)], sizes[-1]  # the first rounds fill caches
    grew = any(b[0] > a[0] * (1 + MEMORY_SLACK) or b[1] > a[1] + 2 for a, b in zip(early, late, strict=True))
    ok = not grew and all(code in GOOD for round_codes in codes for code in round_codes)
    document = {
        "minutes": minutes,
        "rounds": len(codes),
        "exit_codes": sorted({code for round_codes in codes for code in round_codes}),
        "applied": sum(len(round_codes) == 3 for round_codes in codes),
        "servers_early": early,
        "servers_late": late,
        "ok": ok,
    }
    print(json.dumps(document))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
