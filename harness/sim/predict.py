"""A closed loop on the virtual clock: what a preset's server would do at one concurrency, in milliseconds of work.

C users each send a request, wait for its last token and send the next, as harness.load does; they start one by one.
Warm-up and window are counted in finished requests, so that they cover whole cycles at every speed. The result's names
and formulas are those of a measured point; its source is a simulation.
"""

from __future__ import annotations

from collections import deque
from itertools import count

import msgspec
import numpy as np

from harness.records import PATCHED_VARIANTS, Variant
from harness.sim.engine import Engine
from harness.sim.noise import NO_NOISE, Noise
from harness.sim.preset import Preset, costs_of
from harness.sim.progress import Request, Step
from patched_worker.autopilot import Order
from patched_worker.policy import Policy
from patched_worker.steptrace import Trace

NEVER_DISABLE = Policy.from_threshold(None)
ALWAYS_OFF = Policy.from_threshold(0)
WARMUP_ROUNDS, WINDOW_ROUNDS = 2, 8
SPREAD_S = 1.5  # over which users start: half of the load generator's usual warm-up
MIN_WARMUP_REQUESTS, MIN_WINDOW_REQUESTS = 8, 48  # C = 1 needs more rounds to average its acceptance out


class ClosedLoopResult(msgspec.Struct, frozen=True):
    """A simulated point; times in simulated seconds, over the window.

    Attributes:
        gap_p50_s: median time between two chunks of one answer.
        decode_batch_mean: mean decode batch over decode steps.
        decode_s, prefill_s: the parts of duration_s spent in decode steps and in `prefills` prefills.
        accept_len: tokens per verify step, over steps that speculated; None where none did.
        requests: finished inside the window.
    """

    variant: Variant
    concurrency: int
    output_tok_per_s: float
    ttft_p50_s: float
    tpot_p50_s: float
    gap_p50_s: float
    e2e_p50_s: float
    decode_batch_mean: float
    accept_len: float | None
    duration_s: float
    decode_s: float
    prefill_s: float
    prefills: int
    requests: int
    steps_on: int
    steps_off: int
    switches: int


def initial_policy(variant: Variant, threshold: int | None = None) -> Policy | None:
    """The policy that a variant's server starts with; None for a server that cannot speculate."""
    if variant == "eagle3":
        return NEVER_DISABLE
    if variant == "forced_off":
        return ALWAYS_OFF
    return Policy.from_threshold(threshold) if variant in PATCHED_VARIANTS else None


def make_engine(
    preset: Preset,
    variant: Variant,
    policy: Policy | None = None,
    seed: int = 0,
    noise: Noise = NO_NOISE,
    num_steps: int | None = None,
    order: Order | None = None,
    trace: Trace | None = None,
) -> Engine:
    """The engine of the server that plays `variant`.

    Args:
        policy: overrides the variant's own; ignored on a server that cannot speculate.
        num_steps: the server's own draft steps; None takes the preset's.
        order, trace: see the engine; nothing is recorded of a server that cannot speculate.
    """
    start = initial_policy(variant)
    chosen = policy if policy is not None and start is not None else start
    costs = costs_of(preset, variant)
    return Engine(
        costs, preset.limits, preset.acceptance, chosen, preset.frontend, seed, noise, num_steps, order, trace
    )


def simulate_closed_loop(
    preset: Preset,
    variant: Variant,
    concurrency: int,
    input_tokens: int = 128,
    output_tokens: int = 128,
    policy: Policy | None = None,
    seed: int = 0,
    duration_s: float | None = None,
    min_requests: int = MIN_WINDOW_REQUESTS,
    spread_s: float = SPREAD_S,
    range_ratio: float = 0.0,
    noise: Noise = NO_NOISE,
) -> ClosedLoopResult:
    """Run one point on the virtual clock.

    Args:
        preset: the machine.
        variant: whose server; for dynamic give its `policy`.
        concurrency: users, each with one request at a time.
        input_tokens, output_tokens: of every request.
        policy: when to speculate, on a patched server.
        seed: of acceptance and noise.
        duration_s: simulated seconds of the window; by default it spans 8 requests per user.
        min_requests: the fewest requests that such a window spans.
        spread_s: simulated seconds over which the users start. With answers of equal length it matters for long: users
            who start together stay together, and a server prefills them in one batch.
        range_ratio: half the width of the requests' lengths, as a share of their mean (see harness.workload).
        noise: how step times scatter.

    Raises:
        UserError: the requests never fit the preset's limits.
    """
    engine = make_engine(preset, variant, policy, seed, noise)
    users = _Users(engine, concurrency, (input_tokens, output_tokens), spread_s, range_ratio, seed)
    users.run_until(None, 2 * spread_s)
    users.run_until(max(WARMUP_ROUNDS * concurrency, MIN_WARMUP_REQUESTS), None)
    before = _reading(engine)
    users.gaps.clear()
    requests = max(WINDOW_ROUNDS * concurrency, min_requests) if duration_s is None else None
    finished = users.run_until(requests, duration_s)
    return _result(variant, concurrency, before, _reading(engine), finished, _weighted_median(users.gaps))


class _Users:
    """C users in a closed loop around an engine."""

    def __init__(
        self,
        engine: Engine,
        concurrency: int,
        lengths: tuple[int, int],
        spread_s: float = 0.0,
        range_ratio: float = 0.0,
        seed: int = 0,
    ) -> None:
        self._engine = engine
        self._rng = np.random.default_rng(seed)
        self._bounds = [(max(1, round(mean * (1 - range_ratio))), round(mean * (1 + range_ratio))) for mean in lengths]
        self._ids = count()
        self.gaps: list[tuple[float, int]] = []  # between chunks in seconds, and how many answers saw it
        self._last_s: dict[str, float] = {}  # end of the last step of each kind
        self._joined = 0  # answers whose last chunk came from a prefill
        self._starts = deque(spread_s * user / concurrency for user in range(concurrency))

    def run_until(self, requests: int | None, duration_s: float | None) -> list[Request]:
        """Step until `requests` more have finished, or for `duration_s`; the requests that finished."""
        engine, finished = self._engine, list[Request]()
        end_s = engine.now_s + (duration_s or 0.0)
        while engine.now_s < end_s if requests is None else len(finished) < requests:
            self._start_due()
            step = engine.step()
            if step is None:
                continue
            self._note_gaps(step)
            if step.finished:
                finished += step.finished
                self._start_due()
                for _ in step.finished:
                    self._send(step.end_s)
        return finished

    def _note_gaps(self, step: Step) -> None:
        if step.kind == "decode":
            old = len(step.requests) - self._joined
            self.gaps += ((step.end_s - self._last_s.get("decode", step.start_s), old),) if old else ()
            self.gaps += ((step.end_s - self._last_s["prefill"], self._joined),) if self._joined else ()
            self._joined = 0
        else:
            self._joined += len(step.requests)
        self._last_s[step.kind] = step.end_s

    def _start_due(self) -> None:
        while self._starts and (self._starts[0] <= self._engine.now_s or self._engine.ready_s is None):
            self._send(self._starts.popleft())

    def _send(self, at_s: float) -> None:
        prompt, output = (low if low == high else int(self._rng.integers(low, high + 1)) for low, high in self._bounds)
        self._engine.submit(Request(str(next(self._ids)), prompt, output, sent_s=at_s))


class _Reading(msgspec.Struct, frozen=True):
    """The engine's counters at one time."""

    now_s: float
    output_tokens: int
    switches: int
    steps: dict[str, int]
    tokens_on: int
    requests_on: int
    requests_all: int
    decode_s: float
    prefill_s: float
    prefills: int


def _reading(engine: Engine) -> _Reading:
    counters = engine.counters
    on = [(batch, count) for (batch, state), count in counters.by_batch.items() if state == "on"]
    return _Reading(
        engine.now_s,
        counters.output_tokens,
        counters.switches,
        {"on": counters.steps("on"), "off": counters.steps("off")},
        sum(count.tokens for _, count in on),
        sum(batch * count.steps for batch, count in on),
        sum(batch * count.steps for (batch, _), count in counters.by_batch.items()),
        sum(count.seconds for count in counters.by_batch.values()),
        counters.prefill_s,
        counters.prefills,
    )


def _weighted_median(values: list[tuple[float, int]]) -> float:
    if not values:
        return float("nan")
    ordered = np.array(sorted(values))
    weights = np.cumsum(ordered[:, 1])
    return float(ordered[np.searchsorted(weights, weights[-1] / 2), 0])


def _result(
    variant: Variant, concurrency: int, before: _Reading, after: _Reading, finished: list[Request], gap_p50_s: float
) -> ClosedLoopResult:
    duration_s = after.now_s - before.now_s
    steps_on, steps_off = (after.steps[state] - before.steps[state] for state in ("on", "off"))
    verifies = after.requests_on - before.requests_on
    timed = [(request.sent_s, request.first_token_s or 0.0, request.finished_s or 0.0) for request in finished]
    sent, first, end = np.array(timed).T if timed else np.full((3, 1), np.nan)
    gaps = np.array([max(request.generated - 1, 1) for request in finished]) if finished else 1
    return ClosedLoopResult(
        variant=variant,
        concurrency=concurrency,
        output_tok_per_s=(after.output_tokens - before.output_tokens) / duration_s,
        ttft_p50_s=float(np.median(first - sent)),
        tpot_p50_s=float(np.median((end - first) / gaps)),
        gap_p50_s=gap_p50_s,
        e2e_p50_s=float(np.median(end - sent)),
        decode_batch_mean=(after.requests_all - before.requests_all) / max(steps_on + steps_off, 1),
        accept_len=(after.tokens_on - before.tokens_on) / verifies if verifies else None,
        duration_s=duration_s,
        decode_s=after.decode_s - before.decode_s,
        prefill_s=after.prefill_s - before.prefill_s,
        prefills=after.prefills - before.prefills,
        requests=len(finished),
        steps_on=steps_on,
        steps_off=steps_off,
        switches=after.switches - before.switches,
    )
