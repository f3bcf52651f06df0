"""What the patched worker adds to a decode step on the host: the decision, the counters, the token count.

    python -m benchmarks.gate

One step is begin, the two probes, end, and counting the output tokens of 256 requests; with the autopilot its record,
its evidence and its looks at it as well (the longest step is one in which it looks). The forward itself, the ring and
the catch-up are not in it: they are the off step's, not the gate's. The best of some rounds counts, because whatever
else runs on the machine only adds. The last line is JSON.
"""

from __future__ import annotations

import json
import time

from patched_worker.autopilot import TICK_STEPS, Order
from patched_worker.control import Control, Identity
from patched_worker.policy import Policy
from patched_worker.probes import TokenCount

BATCH = 256
STEPS = 320
PILOT_STEPS = 16 * TICK_STEPS
ROUNDS = 200
PILOT_ROUNDS = 20
LIMIT_US = 20.0


class Request:
    """What the count reads of SGLang's Req."""

    def __init__(self) -> None:
        self.output_ids = [0] * 100
        self.finished_len: int | None = None


def control_for(autopilot: bool) -> Control:
    """A worker's control, as it is after the start."""
    control = Control(Policy.from_threshold(BATCH // 2), 3, Identity("worker", "module", "0", "0"))
    if autopilot:
        control.connect(Order(), None)
    return control


def step_us(autopilot: bool, steps: int, each: bool = False) -> float:
    """Microseconds of CPU time per step over one round: the mean, or of `each` step the longest.

    Asking for the time costs more than a microsecond itself, hence not in every round.
    """
    control, count = control_for(autopilot), TokenCount()
    reqs = [Request() for _ in range(BATCH)]
    longest, started = 0, time.process_time_ns()
    before = started
    for index in range(steps):
        # batches of all sizes, so that the autopilot has a whole curve to look at
        batch = (BATCH if index % 64 < 32 else 8) if not autopilot else 1 << (index // 128 % 9)
        step = control.begin(batch, 300 * batch)
        if not step.off:
            control.saw_draft()
        control.saw_target(batch if step.off else 4 * batch)
        control.end(step)
        count.before(reqs)
        step.add_tokens(count.after() + (batch if step.off else 2 * batch))
        if each:
            now = time.process_time_ns()
            longest, before = max(longest, now - before), now
    return (longest if each else (time.process_time_ns() - started) / steps) / 1e3


def main() -> None:
    """Print the best round of each."""
    best = min(step_us(False, STEPS) for _ in range(ROUNDS))
    pilot = min(step_us(True, PILOT_STEPS) for _ in range(PILOT_ROUNDS))
    longest = min(step_us(True, PILOT_STEPS, each=True) for _ in range(PILOT_ROUNDS))
    report = {"benchmark": "gate", "step_us": round(best, 2), "autopilot_step_us": round(pilot, 2)}
    report |= {"autopilot_longest_us": round(longest), "batch": BATCH, "limit_us": LIMIT_US}
    print(json.dumps(report | {"ok": max(best, pilot) < LIMIT_US}))


if __name__ == "__main__":
    main()
