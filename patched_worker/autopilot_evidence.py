"""From step records to evidence, block by block.

A flipped block B and the steps of the policy's own state before and after it, A B A, hold the same requests at about
the same batch. Such a triple gives the cost ratio log(step time on / step time off): it depends on the machine and the
context, changes slowly, and is kept per half octave of the batch. Tokens per request and step while speculating depend
on the text, change quickly, and are measured by every speculative step, flipped or not. Throughput on against off at a
batch is the one minus the other.

Steps right after a switch are left out. So are steps behind a prefill, whose time a server that launches ahead cannot
tell from the prefill's; where nearly every step follows one, the whole block counts with its prefills instead, as
tokens per second: that ratio is nearer to 1, but turns from gain to loss at the same batch.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from patched_worker.autopilot_level import Kind, Level, Scatter
from patched_worker.autopilot_prefill import MEMORY, Prefills
from patched_worker.steptrace import StepRecord
from patched_worker.switchback import BINS, SETTLE_STEPS, bin_of

# weight: request steps; tokens are counted and not timed, so one block may be news by itself. It swings by 3 % where
# some 50 requests run whose own acceptance differs by 20 %
ACCEPT = Kind(
    half_life_s=90.0,
    unit_sd=1.2,
    break_runs=(1, 2, 4, 8, 16),
    break_sigmas=5.0,
    break_size=0.06,
    outlier_sigmas=8.0,
    swing_s=15.0,
    swing_sd=0.06,
)
COST = Kind(900.0, unit_sd=0.04, break_runs=(2, 4), break_sigmas=4.0, break_size=0.03)  # weight: clean steps
LONE = Kind(120.0, unit_sd=0.002, break_runs=(8, 16), break_sigmas=6.0, break_size=1e-4)  # weight: tokens
BREAK_NEWS_S = 120.0  # one change makes places break one after the other: they are doubted once
AGE_SD, AGE_S = 0.02, 1800.0  # what a cost ratio may have changed by in that time
CONTEXT_SD, CONTEXT_FREE = 0.06, 0.6  # and per octave of the context, beyond the first so many
ACCEPT_BLOCK = 384  # request steps ...
ACCEPT_BLOCK_STEPS = 32  # ... or steps of one observation
CLEAN_STEPS = 3  # that each side of a triple must have
WALL_WEIGHT = 0.15  # of a step that is compared together with its prefill
ELASTICITY = 0.5  # of a step's time in its batch; only for what batches of one triple differ by
MAX_BATCH_GAP = 0.12  # and that is at most this, in log
SLOPE = 0.1  # of the cost ratio, per octave: what evidence at neighbouring batches is expected to differ by
CONTEXT_MEMORY = 1 / 512  # per step, of the present mean context
_FRAME = 24


class Triple(NamedTuple):
    """What one A B A tells: `cost` is log(step time on / off) at `octave` = log2(batch).

    `off_tok_per_s` is tokens per second of decode time in plain steps; 0 where `cost` has the prefills in it.
    """

    octave: float
    cost: float
    weight: float
    context: float
    off_tok_per_s: float = 0.0


class Place:
    """What is known at one half octave.

    Attributes:
        cost: the cost ratios, each carried along SLOPE to the middle of the half octave.
    """

    def __init__(self, index: int, kind: Kind, scatter: Scatter) -> None:
        self._middle = index / 2
        self.cost = Level(kind, scatter)
        self.octave = 0.0  # mean log2(batch) of the evidence
        self.context = 0.0  # its mean sequence length
        self.off_tok_per_s = 0.0
        self.broke_s = -math.inf

    @property
    def cost_ratio(self) -> float:
        """The mean cost ratio at `octave`."""
        return self.cost.mean + SLOPE * (self.octave - self._middle)

    def add(self, triple: Triple, now_s: float) -> bool:
        """Take a triple; whether it completes a break."""
        if self.cost.count:
            self.cost.widen(self.change(now_s, triple.context))
        broke = self.cost.add(triple.cost - SLOPE * (triple.octave - self._middle), triple.weight, now_s)
        share = 1.0 if broke else min(1.0, triple.weight / self.cost.weight)
        self.broke_s = now_s if broke else self.broke_s
        self.octave += share * (triple.octave - self.octave)
        self.context += share * (triple.context - self.context)
        self.off_tok_per_s += share * (triple.off_tok_per_s - self.off_tok_per_s)
        return broke

    def change(self, now_s: float, context: float) -> float:
        """Variance of what may have changed since the last triple: with time, and with the context."""
        variance = AGE_SD**2 * max(0.0, now_s - self.cost.at_s) / AGE_S
        if context > 0.0 and self.context > 0.0:
            octaves = max(0.0, abs(math.log2(context / self.context)) - CONTEXT_FREE)
            variance += (CONTEXT_SD * octaves) ** 2
        return variance


class Evidence:
    """Everything measured so far. Call `add` with every step of the leading rank.

    Args:
        accept, cost: how acceptance and cost ratios are remembered.
        prefill_memory: kept of the prefills' cost per prefill.

    Attributes:
        now_s: seconds of steps and prefills so far; its clock, which stands still while the server is idle.
        accept: tokens per request and speculative step.
        places: by half octave.
        context: present mean sequence length, in tokens.
        lone_on: seconds per token of a lone request that speculates.
        prefills: what a step's tokens cost in prefills.
        triples, breaks: how many A B A there were, and how often a level broke.
    """

    def __init__(self, accept: Kind = ACCEPT, cost: Kind = COST, prefill_memory: float = MEMORY) -> None:
        self.now_s = 0.0
        self.accept = Level(accept)
        self.lone_on = Level(LONE)
        self.prefills = Prefills(prefill_memory)
        scatter = Scatter(cost)
        self.places = [Place(index, cost, scatter) for index in range(BINS)]
        self.context = 0.0
        self.triples = 0
        self.breaks = 0
        self._tokens = self._request_steps = self._block_steps = 0
        self._lone_tokens, self._lone_s = 0, 0.0
        self._before: deque[StepRecord] = deque(maxlen=_FRAME)
        self._flipped: list[StepRecord] = []
        self._after: list[StepRecord] = []
        self._base_on: bool | None = None

    def add(self, record: StepRecord) -> None:
        """Take one step."""
        self.now_s += record.seconds + record.prefill_s
        batch, drafts = record.batch, record.drafts
        if record.context:
            mean = record.context / batch
            self.context += (mean - self.context) * (CONTEXT_MEMORY if self.context else 1.0)
        self.prefills.add(record)
        if drafts:
            self._count(batch, record)
        elif self._block_steps:
            self._counted()  # a flipped block is news by itself; what follows it may be much later
        self._frame(record, drafts > 0)

    # ---- acceptance

    def _count(self, batch: int, record: StepRecord) -> None:
        self._tokens += record.tokens
        self._request_steps += batch
        self._block_steps += 1
        if batch == 1 and not record.prefill_s:
            self._lone_tokens += record.tokens
            self._lone_s += record.seconds
        if self._request_steps >= ACCEPT_BLOCK or self._block_steps >= ACCEPT_BLOCK_STEPS:
            self._counted()

    def _counted(self) -> None:
        self.breaks += self.accept.add(self._tokens / self._request_steps, self._request_steps, self.now_s)
        if self._lone_tokens:
            self.lone_on.add(self._lone_s / self._lone_tokens, self._lone_tokens, self.now_s)
            self._lone_tokens, self._lone_s = 0, 0.0
        self._tokens = self._request_steps = self._block_steps = 0

    # ---- triples

    def _frame(self, record: StepRecord, on: bool) -> None:
        if record.flipped:
            if self._after:
                self._conclude()
            self._flipped.append(record)
            return
        if on != self._base_on or record.after_idle:
            if self._flipped:
                self._conclude()
            self._before.clear()
            self._base_on = on
        if self._flipped:
            self._after.append(record)
            if len(self._after) >= len(self._flipped):
                self._conclude()
            return
        self._before.append(record)

    def _conclude(self) -> None:
        flipped, after = self._flipped, self._after
        wanted = len(flipped) - SETTLE_STEPS
        before = list(self._before)[-wanted:] if wanted > 0 else []
        self._flipped, self._after = [], []
        self._before.clear()
        self._before.extend(after[SETTLE_STEPS:])
        if wanted < CLEAN_STEPS or len(before) < CLEAN_STEPS:
            return
        triple = compared(flipped[SETTLE_STEPS:], [*before, *after[SETTLE_STEPS:]])
        if triple is not None:
            self.learn(triple)

    def learn(self, triple: Triple) -> None:
        """Take a comparison."""
        self.triples += 1
        place = self.places[bin_of(max(1, round(2**triple.octave)))]
        if place.add(triple, self.now_s):
            self.breaks += 1
            for other in self.places:
                if self.now_s - other.broke_s > BREAK_NEWS_S:
                    other.cost.widen(COST.break_size**2)
                    other.broke_s = self.now_s

    def lacking(self, index: int, enough: float) -> bool:
        """Whether a half octave needs more triples than its traffic brings by itself, for a standard error `enough`."""
        place = self.places[index]
        return place.cost.count < 4 or uncertainty(place, self.now_s, self.context) > enough**2


def uncertainty(place: Place, now_s: float, context: float) -> float:
    """Variance of a place's cost ratio now: its own, and what age and another context add."""
    return place.cost.variance() + place.change(now_s, context)


def compared(flipped: Sequence[StepRecord], base: Sequence[StepRecord]) -> Triple | None:
    """The triple of a block and its frame; None where their batches differ too much or a side is too short."""
    on, off = (flipped, base) if flipped[0].drafts else (base, flipped)
    clean_on = [r for r in on if r.prefill_s == 0.0]
    clean_off = [r for r in off if r.prefill_s == 0.0]
    by_step = len(clean_on) >= CLEAN_STEPS and len(clean_off) >= CLEAN_STEPS
    if by_step:
        on, off = clean_on, clean_off
    batch_on = sum(r.batch for r in on) / len(on)
    batch_off = sum(r.batch for r in off) / len(off)
    gap = math.log(batch_on / batch_off)
    if abs(gap) > MAX_BATCH_GAP:
        return None
    if by_step:
        seconds_on = sum(r.seconds for r in on) / len(on)
        seconds_off = sum(r.seconds for r in off) / len(off)
        cost = math.log(seconds_on / seconds_off) - ELASTICITY * gap
        weight = 2.0 / (1.0 / len(on) + 1.0 / len(off))
        off_tok_per_s = batch_off / seconds_off
    else:
        tokens_on, tokens_off = sum(r.tokens for r in on), sum(r.tokens for r in off)
        if not tokens_on or not tokens_off:
            return None
        walls_on, walls_off = ([r.seconds + r.prefill_s for r in side] for side in (on, off))
        gain = math.log(tokens_on / sum(walls_on)) - math.log(tokens_off / sum(walls_off)) - (1 - ELASTICITY) * gap
        cost = math.log(tokens_on / (len(on) * batch_on)) - gain
        # a prefill of twenty requests on one side only says nothing of the states
        variance = (1.0 / len(on) + 1.0 / len(off)) / (2.0 * WALL_WEIGHT)
        weight = 1.0 / (variance + (_scatter(walls_on) + _scatter(walls_off)) / COST.unit_sd**2)
        off_tok_per_s = 0.0
    octave = math.log2(math.sqrt(batch_on * batch_off))
    context = sum(r.context for r in flipped) / sum(r.batch for r in flipped)
    return Triple(octave, cost, weight, context, off_tok_per_s)


def _scatter(seconds: Sequence[float]) -> float:
    """Relative variance of the mean, from how far the values differ."""
    count, mean = len(seconds), sum(seconds) / len(seconds)
    return sum((value - mean) ** 2 for value in seconds) / (count * (count - 1) * mean * mean)
