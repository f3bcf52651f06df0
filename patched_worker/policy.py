"""When to speculate: a pure function of the decode batch, the sequence lengths and the step count.

The patched worker, the simulated server and the tuner share this module, so that what was simulated, tuned and
served is the same rule. Standard library only: it is imported inside SGLang's scheduler processes.

A policy is a ladder of rungs, most draft steps first; below its last rung speculation is off. A threshold is the
ladder with one rung. Leaving a rung is immediate (an overloaded step costs every request in it); climbing back needs
a batch at or below the rung's ``resume_at`` and ``min_dwell`` steps on the lower rung, so load that hovers around
the threshold cannot make the server flap.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

DEFAULT_MIN_DWELL_STEPS = 16
NEVER_DISABLE = -1  # the wire's word for "no threshold": newer SGLang releases take only numbers there

# Keys of POST /set_internal_state. A ladder is a count and four numbers per rung, counted from 1; -1 is None.
THRESHOLD_KEY = "speculative_disable_batch_threshold"
RESUME_KEY = "speculative_resume_batch_threshold"
DWELL_KEY = "speculative_min_dwell_steps"
RUNGS_KEY = "speculative_ladder_rungs"
MAX_RUNGS = 8
MAX_NUMBER = 2**31 - 1
RUNG_FIELDS = ("threshold", "resume_at", "num_steps", "max_mean_context")


def default_resume_at(threshold: int) -> int:
    """The batch size at which speculation resumes: a quarter below the threshold, never below 1 for threshold >= 1.

    Args:
        threshold: largest decode batch that speculates, in requests.
    """
    if threshold <= 1:
        return threshold
    return max(1, threshold - max(1, threshold // 4))


@dataclass(frozen=True, slots=True)
class Rung:
    """One band of the ladder.

    Attributes:
        threshold: largest decode batch, in requests, on this rung; None has no upper end.
        resume_at: largest decode batch at which a lower rung may climb back here; None where threshold is None.
        num_steps: draft steps while here; None means the server's own ``--speculative-num-steps``.
        max_mean_context: largest mean sequence length, in tokens, on this rung; None has no limit.
    """

    threshold: int | None
    resume_at: int | None
    num_steps: int | None = None
    max_mean_context: int | None = None

    def holds(self, batch: int, context: float) -> bool:
        return _at_most(batch, self.threshold) and _at_most(context, self.max_mean_context)

    def resumes(self, batch: int, context: float) -> bool:
        limit = self.threshold if self.resume_at is None else self.resume_at
        return _at_most(batch, limit) and _at_most(context, self.max_mean_context)


def _at_most(value: float, limit: int | None) -> bool:
    return limit is None or value <= limit


@dataclass(frozen=True, slots=True)
class Policy:
    """An immutable switching rule.

    Attributes:
        rungs: most draft steps first, thresholds strictly rising; no rung at all is "never speculate".
        min_dwell: decode steps that must be spent on a lower rung before climbing.
    """

    rungs: tuple[Rung, ...]
    min_dwell: int = DEFAULT_MIN_DWELL_STEPS

    def __post_init__(self) -> None:
        if self.min_dwell < 0:
            raise ValueError(f"min_dwell is {self.min_dwell}; give a number of steps >= 0")
        for rung in self.rungs:
            _check(rung)
        for upper, lower in zip(self.rungs, self.rungs[1:], strict=False):
            if not _rises(upper, lower):
                raise ValueError("rungs must rise: a later rung needs a larger threshold or context limit")

    @classmethod
    def from_threshold(
        cls,
        threshold: int | None,
        resume_at: int | None = None,
        min_dwell: int | None = None,
    ) -> Policy:
        """The one-threshold policy.

        Args:
            threshold: largest decode batch that speculates; 0 never speculates, None always does.
            resume_at: batch at which it resumes; default `default_resume_at`.
            min_dwell: decode steps off before it may resume; default 16.

        Raises:
            ValueError: a negative threshold, or resume_at outside 1 to threshold.
        """
        dwell = DEFAULT_MIN_DWELL_STEPS if min_dwell is None else min_dwell
        if threshold is None:
            return cls((Rung(None, None),), dwell)
        if threshold < 0:
            raise ValueError(f"threshold is {threshold}; give 0 (never speculate) or more, or None (never disable)")
        if threshold == 0:
            return cls((), dwell)
        resume = default_resume_at(threshold) if resume_at is None else resume_at
        return cls((Rung(threshold, resume),), dwell)

    @property
    def threshold(self) -> int | None:
        """Largest decode batch that still speculates; 0: none does, None: all do."""
        return self.rungs[-1].threshold if self.rungs else 0

    @property
    def resume_at(self) -> int | None:
        """Largest decode batch at which speculation resumes after being off; 0: never, None: no limit."""
        return self.rungs[-1].resume_at if self.rungs else 0

    @property
    def policy_id(self) -> str:
        """Twelve hex digits that name the rule: equal on every rank that holds the same policy."""
        body = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(body.encode()).hexdigest()[:12]

    def with_num_steps(self, num_steps: int) -> Policy:
        """The same policy with every rung's draft steps given, for a server whose number of steps is known."""
        rungs = (r if r.num_steps is not None else replace(r, num_steps=num_steps) for r in self.rungs)
        return replace(self, rungs=tuple(rungs))


def rung_key(number: int, field: str) -> str:
    """The wire's key of one field of a rung; `number` counts from 1."""
    return f"speculative_rung_{number}_{field}"


LADDER_KEYS = frozenset({RUNGS_KEY, *(rung_key(n, f) for n in range(1, MAX_RUNGS + 1) for f in RUNG_FIELDS)})
WIRE_KEYS = frozenset({THRESHOLD_KEY, RESUME_KEY, DWELL_KEY}) | LADDER_KEYS


def to_wire(policy: Policy) -> dict[str, int]:
    """A policy as the numbers that /set_internal_state takes; `updated` reads them.

    Raises:
        ValueError: it has more rungs than the wire.
    """
    rungs, dwell = policy.rungs, {DWELL_KEY: policy.min_dwell}
    if not rungs or rungs == (Rung(rungs[0].threshold, rungs[0].resume_at),):
        numbers = {THRESHOLD_KEY: policy.threshold, RESUME_KEY: policy.resume_at or None}
        return {key: _or_never(value) for key, value in numbers.items()} | dwell
    if len(rungs) > MAX_RUNGS:
        raise ValueError(f"a ladder has {len(rungs)} rungs; at most {MAX_RUNGS} can be set")
    fields = {rung_key(n, f): _or_never(getattr(rung, f)) for n, rung in enumerate(rungs, 1) for f in RUNG_FIELDS}
    return {RUNGS_KEY: len(rungs)} | fields | dwell


def updated(policy: Policy, update: Mapping[str, object]) -> Policy:
    """The policy after an update on the wire.

    A new threshold without a resume value takes that threshold's default, a ladder replaces all rungs, and the dwell
    stays unless given.

    Raises:
        ValueError: an unknown key, an unfit value, or a threshold beside a ladder.
    """
    numbers = {key: _whole_number(key, value) for key, value in update.items()}
    if unknown := sorted(numbers.keys() - WIRE_KEYS):
        raise ValueError(f"unknown keys {unknown}")
    dwell = numbers.pop(DWELL_KEY, policy.min_dwell)
    if RUNGS_KEY in numbers:
        return Policy(_rungs(numbers), dwell)
    if numbers.keys() & LADDER_KEYS:
        raise ValueError(f"rungs without their number; give {RUNGS_KEY} too")
    if not numbers:
        return replace(policy, min_dwell=dwell)
    threshold, resume_at = policy.threshold, policy.resume_at or None
    if THRESHOLD_KEY in numbers:
        threshold, resume_at = _or_none(numbers[THRESHOLD_KEY]), None
    return Policy.from_threshold(threshold, _or_none(numbers.get(RESUME_KEY, _or_never(resume_at))), dwell)


def unservable(policy: Policy, num_steps: int) -> str | None:
    """Why a server cannot follow a policy; None where it can.

    Args:
        policy: the rule.
        num_steps: draft steps of a server that drafts these or none.
    """
    other = sorted({r.num_steps for r in policy.rungs if r.num_steps is not None} - {0, num_steps})
    return f"this server drafts {num_steps} steps or none, the ladder asks for {other}" if other else None


def _rungs(numbers: Mapping[str, int]) -> tuple[Rung, ...]:
    count = numbers[RUNGS_KEY]
    wanted = {rung_key(n, field) for n in range(1, min(count, MAX_RUNGS) + 1) for field in RUNG_FIELDS}
    if not 0 <= count <= MAX_RUNGS or numbers.keys() != {RUNGS_KEY, *wanted}:
        raise ValueError(
            f"a ladder of {count} rungs; give 0 to {MAX_RUNGS}, and for each of them, from 1 on,"
            f" {', '.join(rung_key(1, field) for field in RUNG_FIELDS)}, and no threshold beside it"
        )
    return tuple(
        Rung(**{field: _or_none(numbers[rung_key(n, field)]) for field in RUNG_FIELDS}) for n in range(1, count + 1)
    )


def _or_never(value: int | None) -> int:
    return NEVER_DISABLE if value is None else value


def _or_none(number: int) -> int | None:
    return None if number == NEVER_DISABLE else number


def _whole_number(key: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
        raise ValueError(f"{key} is {value!r}; give a whole number, {NEVER_DISABLE} for never")
    if abs(value) > MAX_NUMBER:  # releases that send numbers as 64 bits would lose the process over it
        raise ValueError(f"{key} is beyond {MAX_NUMBER}; give {NEVER_DISABLE} for never")
    return int(value)


def _check(rung: Rung) -> None:
    if rung.threshold is None:
        return
    if rung.threshold < 1:
        raise ValueError(f"a rung's threshold is {rung.threshold}; give 1 or more")
    if rung.resume_at is not None and not 1 <= rung.resume_at <= rung.threshold:
        raise ValueError(f"resume_at is {rung.resume_at}; give 1 to threshold ({rung.threshold})")


def _rises(upper: Rung, lower: Rung) -> bool:
    """Whether `lower` still holds somewhere beyond `upper`: in batch, or in context."""
    return _less(upper.threshold, lower.threshold) or _less(upper.max_mean_context, lower.max_mean_context)


def _less(a: int | None, b: int | None) -> bool:
    return a is not None and (b is None or a < b)


class Gate:
    """A policy at work: call `decide` once per decode step.

    It depends on its arguments and its own step count only, so tensor-parallel ranks that see the same batches
    decide alike without talking to one another.

    Args:
        policy: the rule.
        num_steps: the server's own number of draft steps, for rungs that do not say.
    """

    def __init__(self, policy: Policy, num_steps: int) -> None:
        self.policy = policy
        self.num_steps = num_steps
        self.switches = 0
        self.reset()

    def reset(self) -> None:
        """Forget history: call it when the server falls idle. The next step may take any rung at once."""
        self._rung: int | None = None
        self._dwelt = 0

    def decide(self, batch: int, seq_lens_sum: int = 0) -> int:
        """The number of draft steps for this decode step; 0 is a plain step.

        Args:
            batch: running requests in the decode batch.
            seq_lens_sum: sum of their sequence lengths, in tokens.
        """
        rung = self._next_rung(batch, seq_lens_sum / batch if batch else 0.0)
        if self._rung is not None and rung != self._rung:
            self.switches += 1
            self._dwelt = 0
        self._rung = rung
        self._dwelt += 1
        return self._steps(rung)

    def _next_rung(self, batch: int, context: float) -> int:
        rungs = self.policy.rungs
        lowest = next((i for i, rung in enumerate(rungs) if rung.holds(batch, context)), len(rungs))
        if self._rung is None or lowest >= self._rung:
            return lowest
        if self._dwelt < self.policy.min_dwell:
            return self._rung
        climbable = (i for i in range(lowest, self._rung) if rungs[i].resumes(batch, context))
        return next(climbable, self._rung)

    def _steps(self, rung: int) -> int:
        if rung == len(self.policy.rungs):
            return 0
        steps = self.policy.rungs[rung].num_steps
        return self.num_steps if steps is None else steps
