"""Many streams for minutes against the mock: `python -m tests.soak_streams [MINUTES] [STREAMS]`, `make soak-streams`.

Memory and open files of every process of the load are sampled; the second half must not need more than the second
quarter, but for MEMORY_SLACK. Lengths are spread: streams of one length fall into step and end at the same moment, and
then what waits to be parsed, most of what a client process holds, swings with the step. One point of the real load
generator, because what grows, grows in one. Speed is not judged: the delays of sending are told for both halves. The
last line is one JSON document; exit code 1 where something grew or failed.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from array import array
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise

import psutil

from harness.load import require_open_files, run_closed_loop
from harness.load_plan import LoadPlan
from harness.mock import running_mock
from harness.mock_streams import Timing
from harness.records import PointKey, RequestRecord
from harness.workload import WorkloadPlan

EVERY_S = 2.0
WARM_UP_S = 15.0
MEMORY_SLACK = 0.05  # of the second quarter's peak: allocators do not give back to the byte
TOKENS = 64  # on average
SPREAD = 0.5
TIMING = Timing(ttft_s=0.2, gap_s=0.1)


class Watch:
    """Samples of this process and its client processes: resident bytes of either, open files of all.

    The mock is left out: it keeps the time of every chunk that it wrote.
    """

    def __init__(self) -> None:
        self.samples: list[tuple[int, int, int]] = []
        self._next_s = 0.0

    def look(self, now_s: float) -> None:
        if now_s < self._next_s:
            return
        self._next_s = now_s + EVERY_S
        me = psutil.Process()
        clients = files = 0
        for process in me.children():
            with suppress(psutil.Error):
                if "harness.load_worker" in process.cmdline():
                    clients += process.memory_info().rss
                    files += process.num_fds()
        self.samples.append((me.memory_info().rss, clients, files + me.num_fds()))

    def peaks(self, column: int, parts: int) -> list[int]:
        """The peak of each part of the time."""
        values = [sample[column] for sample in self.samples]
        cuts = [len(values) * n // parts for n in range(parts + 1)]
        return [max(values[begin:end]) for begin, end in pairwise(cuts)]


def main(words: Sequence[str]) -> int:
    minutes = float(words[0]) if words else 10.0
    streams = int(words[1]) if len(words) > 1 else 1024
    require_open_files(streams)
    errors: Counter[str] = Counter()
    delays = (array("d"), array("d"))  # of sending, in each half
    tokens = requests = 0

    def keep(records: Sequence[RequestRecord]) -> None:
        nonlocal tokens, requests
        requests += len(records)
        tokens += sum(record.output_tokens for record in records)
        errors.update(record.error for record in records if record.error not in (None, "cancelled"))
        for record in records:
            delays[record.start_s >= middle_s].append(record.send_delay_s)

    watch, middle_s = Watch(), WARM_UP_S + 30 * minutes
    with running_mock(TIMING) as url:
        plan = LoadPlan(url=url, concurrency=streams, warmup_s=WARM_UP_S, duration_s=60 * minutes)
        work = WorkloadPlan(input_tokens=16, output_tokens=TOKENS, range_ratio=SPREAD)
        began_s = time.monotonic()
        key = PointKey("baseline", streams, 1)
        result = run_closed_loop(plan, work.requests(streams, 1), key, 1, keep, watch.look)
    own, clients, files = (watch.peaks(column, 4) for column in range(3))
    grew = max(files[2:]) > files[1] or any(
        max(memory[2:]) > memory[1] * (1 + MEMORY_SLACK) for memory in (own, clients)
    )
    ok = not grew and not errors and not result.server_died
    document = {
        "streams": streams,
        "minutes": round((time.monotonic() - began_s) / 60, 2),
        "requests": requests,
        "tokens": tokens,
        "errors": dict(errors),
        "own_bytes_by_quarter": own,
        "client_bytes_by_quarter": clients,
        "open_files_by_quarter": files,
        "own_bytes_by_minute": watch.peaks(0, max(4, round(minutes))),
        "client_bytes_by_minute": watch.peaks(1, max(4, round(minutes))),
        "send_delay_p99_s_by_half": [statistics.quantiles(half, n=100)[98] for half in delays],
        "lag_p99_s": result.client.lag_p99_s,
        "ok": ok,
    }
    print(json.dumps(document))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
