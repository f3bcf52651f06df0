"""The live policy and the counters of one scheduler process.

A worker brackets each decode step with `begin` and `end`; between them the probes report which forwards really ran.
A step counts as on or off by what was seen (target tokens per request, draft calls), not by what the gate wanted, so
a patch that does not take shows as `ungated` and not as a healthy number.

SGLang's scheduler runs batches and answers control requests in one thread, between two steps: no locks here. Every
tensor-parallel rank gets the same requests at the same place in that loop, so policies change on all ranks at once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from patched_worker import autopilot
from patched_worker.autopilot import Autopilot, Exchange, Order, ordered, without_order
from patched_worker.draft_sync import SYNC_KEY, DraftSync
from patched_worker.policy import WIRE_KEYS, Gate, Policy, unservable, updated
from patched_worker.settings import Refusal
from patched_worker.stepcount import Step, Tally
from patched_worker.stepfeed import StepFeed
from patched_worker.steptrace import Trace

logger = logging.getLogger(__name__)

KEYS = WIRE_KEYS | autopilot.KEYS | {SYNC_KEY}

ON, OFF = "on", "off"
MAX_ECHO = 400  # characters of what somebody sent, in answers and in the log


@dataclass(frozen=True, slots=True)
class Identity:
    """Which worker runs, from which source.

    Attributes:
        worker: qualified name of the SGLang class that was subclassed.
        module: the module of ours that holds its off step.
        version: SGLang's version.
        source_hash: digest of the SGLang functions that are called or wrapped, as they are on this machine.
        modified_source: whether that digest is not a validated one and the operator allowed it.
    """

    worker: str
    module: str
    version: str
    source_hash: str
    modified_source: bool = False


class Control:
    """See the module.

    Args:
        policy: the rule at start.
        num_steps: the server's `--speculative-num-steps`.
        identity: which worker this is.

    Raises:
        Refusal: the rule asks for other draft steps than the server's.
    """

    def __init__(self, policy: Policy, num_steps: int, identity: Identity) -> None:
        if problem := unservable(policy, num_steps):
            raise Refusal(f"speculative-policy-file: {problem}; give a ladder of its own steps, or one threshold")
        self.identity = identity
        self.num_steps = num_steps
        self.sync: DraftSync | None = None  # of a worker that defers the draft's KV
        self.gate: Gate | Autopilot = Gate(policy, num_steps)
        self.last_error: str | None = None
        self.switches = 0
        self.ungated = 0
        self.off_graph_steps = 0
        self._tallies: dict[tuple[int, str], Tally] = {}
        self._step: Step | None = None
        self._last_state: str | None = None
        self._timed: Step | None = None
        self._exchange: Exchange | None = None
        self._leading = True
        self._trace: Trace | None = None
        self._feed: StepFeed | None = None
        self._pilot: Autopilot | None = None

    def connect(
        self, order: Order | None, trace: Trace | None, exchange: Exchange | None = None, leading: bool = True
    ) -> None:
        """Take up the autopilot and the trace; call it once, before the first step.

        Args:
            order: what the autopilot is to do; None: nothing until it is told.
            trace: where the leading rank records steps; None: nowhere.
            exchange: see `Autopilot`.
            leading: whether this rank decides.
        """
        self._exchange, self._leading, self._trace = exchange, leading, trace
        if order is not None:
            self._command(order)
        self._feed_steps()

    def _command(self, order: Order) -> None:
        if isinstance(self.gate, Autopilot):
            self.gate.command(order)
            return
        policy = self.gate.policy
        self.gate = Autopilot(self.num_steps, policy, order, exchange=self._exchange, leading=self._leading)
        self._feed_steps()

    def _feed_steps(self) -> None:
        self._pilot = self.gate if isinstance(self.gate, Autopilot) else None
        sinks = [self._pilot.observe] if self._pilot is not None else []
        sinks += [self._trace.append] if self._trace is not None else []
        self._feed = StepFeed(sinks) if sinks and self._leading else None

    # ---- one decode step

    def begin(self, batch: int, seq_lens_sum: int = 0) -> Step:
        """Decide the next decode step.

        Args:
            batch: running requests in the decode batch.
            seq_lens_sum: sum of their lengths in tokens; for policies with a context axis, autopilot and trace.
        """
        now = self._stop_clock()
        self._step = step = Step(batch, self.gate.decide(batch, seq_lens_sum), started_s=now)
        if self._feed is not None:
            flipped = self._pilot is not None and self._pilot.flipped
            step.record = self._feed.begin(batch, seq_lens_sum, flipped, now)
        return step

    def saw_target(self, tokens: int) -> None:
        """A target forward of a decode step ran over `tokens` tokens, padding not counted."""
        if self._step is not None:
            self._step.target_tokens += tokens
        else:
            self._count_ungated(f"a decode forward of {tokens} tokens ran outside of the patched worker's step")

    def saw_draft(self) -> None:
        """The draft model proposed tokens."""
        if self._step is not None:
            self._step.draft_calls += 1

    def end(self, step: Step, graph: bool = False) -> None:
        """Count the step as what it was. Its time runs from `begin` to the next worker call, or to idleness.

        Args:
            graph: whether the target's forward replayed a captured graph.
        """
        self._step = None
        state = OFF if step.draft_calls == 0 and step.target_tokens == step.batch else ON
        self.off_graph_steps += graph and state == OFF
        if step.off and state == ON:
            self._count_ungated(
                f"gated step of {step.batch} requests ran {step.target_tokens} target tokens, {step.draft_calls} drafts"
            )
        elif not step.off and state == OFF:
            self._fail(f"a step of {step.batch} requests that should have speculated ran as a plain one")
        if self._last_state not in (None, state):
            self.switches += 1
        self._last_state = state
        tally = self._tallies.get((step.batch, state))
        if tally is None:
            tally = self._tallies[(step.batch, state)] = Tally()
        tally.steps += 1
        step.tally = tally
        if step.record is not None and state == ON:
            step.record.drafts = self.num_steps
        self._timed = step

    def interrupt(self, requests: int = 0) -> None:
        """A prefill of so many requests is about to run: what follows is not the last decode step's time."""
        now = self._stop_clock()
        if self._feed is not None:
            self._feed.prefill(now, requests)

    def idle(self) -> None:
        """The server has nothing to run: stop the clock and forget the gate's history."""
        self._stop_clock()
        self._last_state = None
        if self._feed is not None:
            self._feed.idle()
        if self._trace is not None:
            self._trace.flush()
        self.gate.reset()

    def _stop_clock(self) -> float:
        now = time.perf_counter()
        step = self._timed
        if step is not None and step.tally is not None:
            seconds = now - step.started_s
            step.tally.seconds += seconds
            if step.record is not None:
                step.record.seconds = seconds
        self._timed = None
        return now

    def _count_ungated(self, message: str) -> None:
        self.ungated += 1
        self._fail(message)

    def _fail(self, message: str) -> None:
        if message != self.last_error:  # a fault of every step must not flood the log
            logger.error("specpivot: %s", message)
        self.last_error = message

    # ---- read and set

    def prepare(self, update: Mapping[str, object]) -> Policy | None:
        """The policy that an update of KEYS would make; None if it is refused, with the reason in `last_error`."""
        try:
            ordered(self.gate, update)
            self._check_sync(update)
            policy = updated(self.gate.policy, without_order(_without_sync(update)))
            if problem := unservable(policy, self.num_steps):
                raise ValueError(problem)
            return policy
        except (ValueError, OverflowError) as error:
            self.last_error = f"refused {dict(update)}"[:MAX_ECHO] + f": {str(error)[:MAX_ECHO]}"
            logger.warning("specpivot: %s", self.last_error)
            return None

    def _check_sync(self, update: Mapping[str, object]) -> None:
        if self.sync is not None:
            self.sync.updated(update)
        elif SYNC_KEY in update:
            raise ValueError(f"{SYNC_KEY}: this worker brings the draft's KV up at every step; leave it out")

    def apply(self, policy: Policy, update: Mapping[str, object] | None = None) -> None:
        """Make a policy the live one; the gate's history is forgotten, unless the update is not about the policy.

        Args:
            policy: what `prepare` made of the update.
            update: where it names the autopilot, that one is set too; where it does not, it leaves the wheel.
        """
        update = update or {}
        rest = _without_sync(update)
        self.last_error = None
        if self.sync is not None:
            self.sync.steps = self.sync.updated(update)
        if update and not rest:
            return
        order = ordered(self.gate, update)
        if order is None or not autopilot.KEYS.issuperset(rest):
            if isinstance(self.gate, Autopilot):
                self.gate.hold(policy)
            else:
                self.gate = Gate(policy, self.num_steps)
        if order is not None:
            self._command(order)
        logger.info("specpivot: policy %s, threshold %s", policy.policy_id, policy.threshold)

    def snapshot(self) -> dict[str, object]:
        """The `specpivot` block of /server_info, without `ranks_agree`, which takes all ranks to know."""
        policy = self.gate.policy
        rows = sorted(self._tallies.items())
        return {
            **asdict(self.identity),
            "threshold": policy.threshold,
            "resume_at": policy.resume_at,
            "min_dwell": policy.min_dwell,
            "rungs": [asdict(rung) for rung in policy.rungs],
            "policy_id": policy.policy_id,
            "last_error": self.last_error,
            "steps_on": self._steps(ON),
            "steps_off": self._steps(OFF),
            "off_graph_steps": self.off_graph_steps,
            **(self.sync.snapshot() if self.sync is not None else {}),
            "switches": self.switches,
            "ungated": self.ungated,
            **({"autopilot": self.gate.snapshot()} if isinstance(self.gate, Autopilot) else {}),
            "by_batch": [{"batch": batch, "state": state, **asdict(tally)} for (batch, state), tally in rows],
        }

    def fingerprint(self) -> tuple[object, ...]:
        """What must be equal on every tensor-parallel rank at the same place in the scheduler's loop."""
        steps = tuple((key, tally.steps) for key, tally in sorted(self._tallies.items()))
        sync = self.sync.snapshot() if self.sync is not None else {}
        return (self.identity, self.gate.policy.policy_id, self.switches, self.ungated, steps, tuple(sync.values()))

    def disagree(self, fingerprints: list[tuple[object, ...]]) -> bool:
        """Whether the ranks' fingerprints differ; if so that becomes the last error."""
        if all(other == fingerprints[0] for other in fingerprints):
            return False
        self._fail(f"tensor-parallel ranks disagree: {fingerprints}")
        return True

    def _steps(self, state: str) -> int:
        return sum(tally.steps for (_, key), tally in self._tallies.items() if key == state)


def _without_sync(update: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in update.items() if key != SYNC_KEY}
