"""What the patched worker adds to a server's start and to its GPU memory, against SGLang's own static EAGLE-3.

Servers are started one at a time, SGLang's and the patched one in turn, each on the same settings; the first start,
which fills the caches of compiled kernels, is not counted. Start-up is from the process to a healthy server. Memory is
what the server's GPUs hold more than before it, after the largest load has run with speculation and, where it is
patched, without. The very last line on standard output is one compact JSON document.

    python -m benchmarks.startup --config results/configs/NAME.toml --model TARGET --draft DRAFT --rounds 3
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from scipy import stats

from benchmarks.asked import add_settings, settings_of
from harness.bench import Bench
from harness.config import SweepConfig, make_config
from harness.errors import UserError
from harness.gpus import machine_gpus, nvml
from harness.manifest import new_manifest, workload_of
from harness.records import Source
from harness.regular import replace_file
from harness.runfolder import RunWriter
from harness.servers import Server, running
from harness.variants import server_plans

START_BAR_S, MEMORY_BAR_GIB = 20.0, 1.0
CONFIDENCE = 0.95
Kind = Literal["static", "patched"]


class Start(msgspec.Struct, frozen=True):
    """One start.

    Attributes:
        start_s: until the server was healthy.
        memory_gib: that its GPUs hold more than before; None where there is no GPU to ask.
    """

    kind: Kind
    start_s: float
    memory_gib: float | None = None


class Extra(msgspec.Struct, frozen=True):
    """How much more the patched server takes, paired by round.

    Attributes:
        low, high: 95 % interval; None with one round.
        met: the interval does not lie wholly beyond the bar.
    """

    mean: float
    low: float | None
    high: float | None
    bar: float
    met: bool


class Found(msgspec.Struct, frozen=True):
    """The document; `starts` leaves out the first."""

    source: Source
    starts: tuple[Start, ...]
    start_extra_s: Extra
    memory_extra_gib: Extra | None


def extra(static: Sequence[float], patched: Sequence[float], bar: float) -> Extra:
    """The mean difference of paired values with its interval."""
    differences = np.subtract(patched, static)
    mean = float(differences.mean())
    if len(differences) < 2:
        return Extra(mean, None, None, bar, mean <= bar)
    reach = float(stats.t.ppf(0.5 + CONFIDENCE / 2, len(differences) - 1))
    half = reach * float(differences.std(ddof=1)) / math.sqrt(len(differences))
    return Extra(mean, mean - half, mean + half, bar, mean - half <= bar)


def judged(source: Source, starts: Sequence[Start]) -> Found:
    """What the starts say, static and patched in turn."""
    static, patched = ([start for start in starts if start.kind == kind] for kind in ("static", "patched"))
    seconds = extra([one.start_s for one in static], [one.start_s for one in patched], START_BAR_S)
    before, after = ([one.memory_gib for one in of if one.memory_gib is not None] for of in (static, patched))
    memory = extra(before, after, MEMORY_BAR_GIB) if before and after else None
    return Found(source, tuple(starts), seconds, memory)


def variants_of(kind: Kind) -> list[str]:
    """What makes a sweep start SGLang's own server, or the patched one."""
    return ["eagle3"] if kind == "static" else ["eagle3", "forced_off"]


def start(kind: Kind, config: SweepConfig, logs: Path) -> Start:
    """Start a server, load it, and look at its memory.

    Raises:
        UserError: it did not come up, or could not be loaded.
    """
    before, began = used_gib(), time.monotonic()
    with running(server_plans(config), logs, config.start_timeout_s, threading.Event(), tell) as found:
        start_s = time.monotonic() - began
        (server,) = found.values()
        if isinstance(server, UserError):
            raise server
        if problem := _load(config, server):
            raise UserError(f"the {kind} server was not loaded ({problem}), so its memory says nothing; see {logs}")
        after = used_gib()
        counted = [gpu.index for gpu in server.record.gpus.counted]
        memory = sum(after[index] - before[index] for index in counted) if counted else None
    return Start(kind, round(start_s, 2), None if memory is None else round(memory, 3))


def _load(config: SweepConfig, server: Server) -> str | None:
    """As before a sweep; why it could not be done."""
    run = tempfile.TemporaryDirectory()
    with run as folder, RunWriter.create(Path(folder, "run"), new_manifest(config, ())) as writer:
        return Bench(config, writer, {}, workload_of(config), Counter(), threading.Event()).warm_up(server)


def used_gib() -> dict[int, float]:
    """Memory in use on each GPU of this machine."""
    module = nvml()
    if module is None:
        return {}
    return {
        gpu.index: module.nvmlDeviceGetMemoryInfo(module.nvmlDeviceGetHandleByIndex(gpu.index)).used / 2**30
        for gpu in machine_gpus()
    }


def measure(settings: dict[str, Any], rounds: int, out: Path | None) -> bytes:
    """The document of so many rounds, which is in the file after each.

    Raises:
        UserError: a server did not come up; where a round was whole before that, it is only told.
    """
    kinds: tuple[Kind, Kind] = ("static", "patched")
    starts: list[Start] = []
    document = b""
    logs = Path(tempfile.mkdtemp(prefix="specpivot-startup-"))
    for number, kind in enumerate(kinds[:1] + kinds * rounds):
        config = make_config(settings | {"variants": variants_of(kind), "threshold": None})
        try:
            starts.append(start(kind, config, logs))
        except UserError as error:
            if not document:
                raise
            tell(f"warning: {error}; {number // 2} of {rounds} rounds count")
            break
        tell(f"{kind}: healthy after {starts[-1].start_s:.1f} s, {starts[-1].memory_gib} GiB")
        if number and kind == "patched":
            document = msgspec.json.encode(judged("simulated" if config.sim else "measured", starts[1:]))
            if out:
                replace_file(out, msgspec.json.format(document, indent=1) + b"\n")
    return document


def tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_settings(parser, "a sweep's settings; its variants do not count")
    parser.add_argument("--sim", help="a preset of simulated servers instead: says what the command does, nothing else")
    parser.add_argument("--rounds", type=int, choices=range(1, 21), metavar="N", default=3)
    parser.add_argument("-o", "--out", type=Path, help="also write the document to this file")
    asked = parser.parse_args(arguments)
    try:
        document = measure(settings_of(asked, "sim"), asked.rounds, asked.out)
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(document.decode())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
