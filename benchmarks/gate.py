"""What the patched worker adds to a decode step on the host: the decision, the counters, the token count.

    python -m benchmarks.gate

One step is begin, the two probes, end, and counting the output tokens of 256 requests. The forward itself, the ring and
the catch-up are not in it: they are the off step's, not the gate's. The best of some rounds counts, because whatever
else runs on the machine only adds. The last line is JSON.
"""

from __future__ import annotations

import json
import time

from patched_worker.control import Control, Identity
from patched_worker.policy import Policy
from patched_worker.probes import TokenCount

BATCH = 256
STEPS = 320
ROUNDS = 200
LIMIT_US = 20.0


class Request:
    """What the count reads of SGLang's Req."""

    def __init__(self) -> None:
        self.output_ids = [0] * 100
        self.finished_len: int | None = None


def step_us() -> float:
    """Mean microseconds of CPU time per step, over one round."""
    control = Control(Policy.from_threshold(BATCH // 2), 3, Identity("worker", "module", "0", "0"))
    count = TokenCount()
    reqs = [Request() for _ in range(BATCH)]
    started = time.process_time()
    for index in range(STEPS):
        batch = BATCH if index % 64 < 32 else 8
        step = control.begin(batch)
        if not step.off:
            control.saw_draft()
        control.saw_target(batch if step.off else 4 * batch)
        control.end(step)
        count.before(reqs)
        step.add_tokens(count.after())
    return (time.process_time() - started) / STEPS * 1e6


def main() -> None:
    """Print the best round."""
    best = min(step_us() for _ in range(ROUNDS))
    report = {"benchmark": "gate", "step_us": round(best, 2), "batch": BATCH, "limit_us": LIMIT_US}
    print(json.dumps(report | {"ok": best < LIMIT_US}))


if __name__ == "__main__":
    main()
