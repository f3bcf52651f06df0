"""What the patched worker adds to a decode step on the host: the decision, the counters, the token count.

    python -m benchmarks.gate

One step is begin, the two probes, end, and counting the output tokens of 256 requests before and after. The forward
itself, the ring and the catch-up are not in it: they are the off step's, not the gate's. The last line is JSON.
"""

from __future__ import annotations

import json
import statistics
import time
from types import SimpleNamespace

from patched_worker.control import Control, Identity
from patched_worker.policy import Policy
from patched_worker.probes import output_tokens

BATCH = 256
STEPS = 20_000
ROUNDS = 7
LIMIT_US = 20.0


def step_us(steps: int) -> tuple[float, float]:
    """Mean microseconds per step: the gate with its counters, and counting tokens."""
    control = Control(Policy.from_threshold(BATCH // 2), 3, Identity("worker", "module", "0", "0"))
    reqs = [SimpleNamespace(output_ids=[0] * 100, finished_len=None) for _ in range(BATCH)]
    started = time.perf_counter()
    for index in range(steps):
        batch = BATCH if index % 64 < 32 else 8
        step = control.begin(batch)
        if not step.off:
            control.saw_draft()
        control.saw_target(batch if step.off else 4 * batch)
        control.end(step)
        step.add_tokens(batch)
    gate = time.perf_counter() - started
    started = time.perf_counter()
    for _ in range(steps // 100):
        output_tokens(reqs)
        output_tokens(reqs)
    counting = (time.perf_counter() - started) * 100
    return gate / steps * 1e6, counting / steps * 1e6


def main() -> None:
    """Print the medians over some rounds."""
    rounds = [step_us(STEPS) for _ in range(ROUNDS)]
    gate = statistics.median(gate for gate, _ in rounds)
    counting = statistics.median(counting for _, counting in rounds)
    report = {
        "benchmark": "gate",
        "gate_us": round(gate, 2),
        "count_tokens_us": round(counting, 2),
        "batch": BATCH,
        "limit_us": LIMIT_US,
        "ok": gate < LIMIT_US,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
