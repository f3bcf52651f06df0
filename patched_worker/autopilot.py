"""The threshold tuned on live traffic: a gate that also measures, and moves its own threshold.

It stands in for `policy.Gate`. Each decode step it is asked for the number of draft steps, and told afterwards what the
step did. Every TICK_STEPS steps the leading rank looks at its evidence and makes the next plan; where there are more
ranks, all of them meet there and take over its plan, because step times differ between ranks and decisions must not.
With one rank nothing is exchanged. Knowledge is kept when the operator takes over and hands back.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from enum import IntEnum

from patched_worker.autopilot_curve import Curve
from patched_worker.autopilot_decide import ANY_THRESHOLD, Bounds, Verdict, decide, resume_at
from patched_worker.autopilot_evidence import Evidence
from patched_worker.policy import MAX_NUMBER, NEVER_DISABLE, Gate, Policy
from patched_worker.steptrace import StepRecord
from patched_worker.switchback import Plan, Switchback

logger = logging.getLogger(__name__)

TICK_STEPS = 256
START_THRESHOLD = 32
MOVES_KEPT = 20

MODE_KEY = "speculative_autopilot"
MIN_KEY = "speculative_auto_min"
MAX_KEY = "speculative_auto_max"
KEYS = frozenset({MODE_KEY, MIN_KEY, MAX_KEY})

Exchange = Callable[[list[int]], list[int]]


class Mode(IntEnum):
    """What the autopilot does; the numbers are the wire's."""

    HELD = 0
    AUTO = 1
    DRY_RUN = 2


@dataclass(frozen=True, slots=True)
class Order:
    """What the operator asks of the autopilot."""

    mode: Mode = Mode.AUTO
    bounds: Bounds = ANY_THRESHOLD

    def updated(self, update: Mapping[str, object]) -> Order:
        """The order after an update of KEYS on the wire.

        Raises:
            ValueError: a value that is no whole number, or bounds that make no sense.
        """
        low, high = self.bounds.low, self.bounds.high
        mode = Mode(_whole(MODE_KEY, update[MODE_KEY], 2)) if MODE_KEY in update else self.mode
        if MIN_KEY in update:
            low = _whole(MIN_KEY, update[MIN_KEY])
        if MAX_KEY in update:
            high = None if update[MAX_KEY] == NEVER_DISABLE else _whole(MAX_KEY, update[MAX_KEY])
        return Order(mode, Bounds(low, high))


def _whole(key: str, value: object, most: int | None = None) -> int:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or value != int(value)
        or not 0 <= value <= MAX_NUMBER
    ):
        raise ValueError(f"{key} is {value!r}; give a whole number of 0 or more, {MAX_NUMBER} at most")
    if most is not None and value > most:
        raise ValueError(f"{key} is {value!r}; give 0 (hold), 1 (tune) or {most} (dry-run)")
    return int(value)


def without_order(update: Mapping[str, object]) -> dict[str, object]:
    """The part of an update on the wire that is the policy's."""
    return {key: value for key, value in update.items() if key not in KEYS}


@dataclass(frozen=True, slots=True)
class Move:
    """One change of the threshold, for the audit log.

    Attributes:
        step: decode steps before it.
        at_s: seconds of decoding and prefilling before it.
        old, new: thresholds.
        reason: why, in words.
        dry_run: whether it was only noted.
    """

    step: int
    at_s: float
    old: int
    new: int
    reason: str
    dry_run: bool


class Autopilot:
    """See the module.

    Args:
        num_steps: the server's draft steps.
        start: the policy at start; one that never disables starts at START_THRESHOLD.
        order: mode and bounds.
        seed: of the measuring blocks; the same on every rank.
        exchange: hands the leading rank's numbers to all; None where there is one rank.
        leading: whether this rank decides.
    """

    def __init__(
        self,
        num_steps: int,
        start: Policy,
        order: Order | None = None,
        seed: int = 0,
        exchange: Exchange | None = None,
        leading: bool = True,
    ) -> None:
        self.num_steps = num_steps
        self.order = Order() if order is None else order
        self._held = self.order.mode is Mode.HELD
        self.evidence = Evidence()
        self.moves: deque[Move] = deque(maxlen=MOVES_KEPT)
        self.steps = 0
        self.moved = 0
        self.flipped_steps = 0
        self.flipped = False  # whether the last step that was decided is a flipped one
        self._exchange = exchange
        self._leading = leading
        self._switchback = Switchback(seed)
        self._verdict: Verdict | None = None
        self._placed_se: float | None = None
        threshold = START_THRESHOLD if start.threshold is None else start.threshold
        threshold = self.order.bounds.clamp(threshold)
        self.plan = Plan(threshold, resume_at(threshold))
        self._dwell = start.min_dwell
        if self.order.mode is Mode.HELD:
            self._gate = Gate(start, num_steps)
        else:
            self._follow(threshold)

    def command(self, order: Order) -> None:
        """Change mode and bounds; a new threshold follows at the next tick, on every rank at once."""
        was, self.order = self.order, order
        self._held = order.mode is Mode.HELD
        if was.mode is not order.mode and order.mode is Mode.AUTO:
            self._follow(self.plan.threshold)

    def hold(self, policy: Policy) -> None:
        """The operator's own policy from here on; nothing is measured on purpose, and tuning resumes from there."""
        self.order = Order(Mode.HELD, self.order.bounds)
        self._held = True
        if policy.threshold is not None:
            self.plan = replace(self.plan, threshold=policy.threshold, resume_at=resume_at(policy.threshold))
        self._placed_se = None
        self._dwell = policy.min_dwell
        self._gate = Gate(policy, self.num_steps)
        self._switchback.reset()

    @property
    def policy(self) -> Policy:
        """The rule in force."""
        return self._gate.policy

    @property
    def switches(self) -> int:
        return self._gate.switches

    def reset(self) -> None:
        """The server has fallen idle."""
        self._gate.reset()
        self._switchback.reset()

    def decide(self, batch: int, seq_lens_sum: int = 0) -> int:
        """The number of draft steps for this decode step; 0 is a plain step."""
        if self._held:
            self.steps += 1
            self.flipped = False
            return self._gate.decide(batch, seq_lens_sum)
        if self.steps % TICK_STEPS == 0 and self.steps:
            self._tick()
        self.steps += 1
        drafts = self._gate.decide(batch, seq_lens_sum)
        self.flipped = self._switchback.flips(batch, drafts > 0, self.plan)
        if not self.flipped:
            return drafts
        self.flipped_steps += 1
        return 0 if drafts else self.num_steps

    def observe(self, record: StepRecord) -> None:
        """What a step did; only the leading rank's count."""
        if self._leading:
            self.evidence.add(record)

    def _tick(self) -> None:
        if self._leading:
            self._verdict = decide(self.evidence, self.plan, self.order.bounds, self._placed_se)
            self._placed_se = self._verdict.placed_se
            numbers = self._verdict.plan.numbers()
        else:
            numbers = self.plan.numbers()
        if self._exchange is not None:
            numbers = self._exchange(numbers)
        self._adopt(Plan(*numbers))

    def _adopt(self, plan: Plan) -> None:
        old, self.plan = self.plan, plan
        if plan.threshold == old.threshold:
            return
        dry_run = self.order.mode is Mode.DRY_RUN
        reason = self._verdict.reason if self._verdict is not None else None
        move = Move(
            self.steps, self.evidence.now_s, old.threshold, plan.threshold, reason or "the leading rank's", dry_run
        )
        self.moves.append(move)
        self.moved += 1
        logger.info("specpivot autopilot%s: threshold %s", " (dry run)" if dry_run else "", move.reason)
        if not dry_run:
            self._follow(plan.threshold)

    def _follow(self, threshold: int) -> None:
        resume = resume_at(threshold) or None
        self._gate = Gate(Policy.from_threshold(threshold, resume, self._dwell), self.num_steps)
        self._switchback.reset()

    def snapshot(self) -> dict[str, object]:
        """The `autopilot` block of /server_info."""
        evidence, verdict = self.evidence, self._verdict
        curve = None if verdict is None else verdict.curve
        return {
            "state": self.order.mode.name.lower(),
            "bounds": [self.order.bounds.low, self.order.bounds.high],
            "threshold": self.plan.threshold,
            "pivot": None if curve is None or verdict is None else _batch(verdict.pivot),
            "interval": [None, None] if curve is None else [_batch(end) for end in curve.interval()],
            "evidence": self._evidence(curve),
            "steps": self.steps,
            "flipped_steps": self.flipped_steps,
            "moved": self.moved,
            "moves": [asdict(move) for move in self.moves],
            "lone": _lone(evidence, curve),
        }

    def _evidence(self, curve: Curve | None) -> dict[str, object]:
        evidence = self.evidence
        accept = evidence.accept
        known = [place for place in evidence.places if place.cost.count] if curve is not None else []
        return {
            "accept_len": round(accept.mean, 4) if accept.count else None,
            "accept_len_se": _rounded(math.sqrt(accept.variance())),
            "mean_context": round(evidence.context),
            "comparisons": evidence.triples,
            "breaks": evidence.breaks,
            "by_batch": [_row(curve, place.octave, place.cost.count) for place in known if curve is not None],
        }


def _row(curve: Curve, octave: float, count: int) -> dict[str, object]:
    point = curve.at(octave)
    return {"batch": round(2**octave, 1), "gain": _rounded(point.gain), "se": _rounded(point.se), "comparisons": count}


def _lone(evidence: Evidence, curve: Curve | None) -> dict[str, object]:
    """The one user alone: seconds per token with speculation, now, and what speculation gains."""
    level = evidence.lone_on
    known = curve is not None and curve.low <= 0.25
    point = curve.at(0.0) if curve is not None and known else None
    return {
        "on_s_per_token": _rounded(level.mean, 7) if level.count else None,
        "gain": None if point is None else _rounded(point.gain),
        "se": None if point is None else _rounded(point.se),
    }


def _rounded(value: float, digits: int = 4) -> float | None:
    return round(value, digits) if math.isfinite(value) else None


def _batch(octave: float) -> float | None:
    return round(2**octave, 1) if math.isfinite(octave) else None


def ordered(gate: Gate | Autopilot, update: Mapping[str, object]) -> Order | None:
    """What an update on the wire asks of the autopilot; None where it asks nothing.

    Raises:
        ValueError: an unfit value.
    """
    asked = {key: value for key, value in update.items() if key in KEYS}
    before = gate.order if isinstance(gate, Autopilot) else Order(Mode.HELD)
    return before.updated(asked) if asked else None
