"""The simulated server's gate, and its step records, made as the patched worker makes them."""

from __future__ import annotations

from patched_worker.autopilot import Autopilot, Order
from patched_worker.policy import Gate, Policy
from patched_worker.steptrace import StepRecord, Trace


def gate_for(policy: Policy | None, num_steps: int, order: Order | None, seed: int = 0) -> Gate | Autopilot | None:
    """What decides on a server: nothing where there is no policy, the autopilot where there is an order."""
    if policy is None:
        return None
    return Gate(policy, num_steps) if order is None else Autopilot(num_steps, policy, order, seed)


def held(gate: Gate | Autopilot | None, policy: Policy, num_steps: int) -> Gate | Autopilot:
    """The gate after an operator has set a policy: an autopilot leaves the wheel."""
    if not isinstance(gate, Autopilot):
        return Gate(policy, num_steps)
    gate.hold(policy)
    return gate


def commanded(gate: Gate | Autopilot | None, order: Order, num_steps: int) -> Gate | Autopilot | None:
    """The gate after an order: an autopilot begins at the present threshold."""
    if gate is None or not isinstance(gate, Autopilot):
        return gate and gate_for(gate.policy, num_steps, order)
    gate.command(order)
    return gate


class Recorder:
    """Records the decode steps of one engine.

    Args:
        trace: where to; None tells the autopilot only.

    Attributes:
        prefill_s, joined: seconds of prefills since the decode step before, and requests that they finished with.
        after_idle: whether the server has been idle since then.
    """

    def __init__(self, trace: Trace | None) -> None:
        self.trace = trace
        self.prefill_s, self.joined = 0.0, 0
        self.after_idle = True

    def idle(self) -> None:
        """The server has nothing to do: a trace is brought up to here."""
        self.after_idle = True
        if self.trace is not None:
            self.trace.flush()

    def add(
        self, gate: Gate | Autopilot | None, batch: int, context: int, drafts: int, tokens: int, seconds: float
    ) -> None:
        """A decode step has run; `context` is the sum of its sequence lengths before it."""
        pilot = gate if isinstance(gate, Autopilot) else None
        if pilot is not None or self.trace is not None:
            flipped = pilot is not None and pilot.flipped
            record = StepRecord(
                batch, context, drafts, flipped, self.after_idle, tokens, seconds, self.prefill_s, self.joined
            )
            if pilot is not None:
                pilot.observe(record)
            if self.trace is not None:
                self.trace.append(record)
        self.prefill_s, self.joined, self.after_idle = 0.0, 0, False
