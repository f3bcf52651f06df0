"""A discrete-event engine: one call of `step` is one forward of a serving engine, on a virtual clock.

It schedules as SGLang does: waiting requests are prefilled before anything decodes, in batches of at most
chunked_prefill_size tokens, as far as running slots and KV tokens allow; else all running requests decode together.
A prefill brings each request's first token. What a decode step costs depends on its batch and its draft steps, which
`patched_worker.policy.Gate` decides; what it brings depends on acceptance. With zero drafts it is the baseline.

Simpler than SGLang in three ways: a request reserves its whole KV (prompt and output) when admitted, so none is ever
retracted; there is no prefix cache; every request runs to its output length.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from harness.errors import UserError
from harness.sim.acceptance import Acceptance
from harness.sim.noise import NO_NOISE, Disturbance, Noise
from harness.sim.preset import NO_FRONT_END, Costs, FrontEnd, Limits
from harness.sim.progress import BatchCount, Counters, Counts, Request, Step
from harness.sim.recording import Recorder, commanded, gate_for, held
from patched_worker.autopilot import Order
from patched_worker.policy import Policy
from patched_worker.steptrace import Trace


class Engine:
    """One simulated server's scheduler and model.

    Args:
        costs: its tables.
        limits: its capacity.
        acceptance: what its draft achieves.
        policy: when it speculates; None is a server that cannot (the baselines).
        frontend: what a request passes before it is scheduled.
        seed: of acceptance, noise and the front end's jitter, which draw from separate streams.
        noise: how step times scatter.
        num_steps: draft steps of a rung that does not say; None takes those that acceptance was measured with.
        order, trace: what the autopilot is to do, and where decode steps are recorded; None: no such thing.
    """

    def __init__(
        self,
        costs: Costs,
        limits: Limits,
        acceptance: Acceptance,
        policy: Policy | None = None,
        frontend: FrontEnd = NO_FRONT_END,
        seed: int = 0,
        noise: Noise = NO_NOISE,
        num_steps: int | None = None,
        order: Order | None = None,
        trace: Trace | None = None,
    ) -> None:
        self.costs = costs
        self.limits = limits
        self.acceptance = acceptance
        self.counters = Counters()
        self.now_s = 0.0
        accept_seed, noise_seed, front_seed = np.random.SeedSequence(seed).spawn(3)
        self._accept_rng = np.random.default_rng(accept_seed)
        self._disturbance = Disturbance(noise, np.random.default_rng(noise_seed))
        self._frontend = frontend
        self._frontend_rng = np.random.default_rng(front_seed)
        self._frontend_free_s = 0.0
        self._arriving: list[Request] = []  # in the front end, the next to arrive last
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._left: Counts = np.zeros(0, np.int64)  # tokens still to come, of each running request
        self._verified: Counts = np.zeros(0, np.int64)  # verify steps so far, of each running request
        self._accepted_drafts: Counts = np.zeros(0, np.int64)  # tokens beyond one of those steps
        self._context_tokens = 0  # sum of the running requests' sequence lengths
        self._reserved_tokens = 0  # KV tokens of admitted requests
        self._drafts_before: int | None = None
        self._decode_s: dict[tuple[int, int], float] = {}  # by (batch, drafts)
        self._prefill_s: dict[int, float] = {}  # by tokens
        self._chances: dict[int, npt.NDArray[np.float64]] = {}
        self.num_steps = acceptance.num_steps if num_steps is None else num_steps
        self._recorder = Recorder(trace)
        self.gate = gate_for(policy, self.num_steps, order, seed)

    @property
    def running(self) -> Sequence[Request]:
        return self._running

    @property
    def waiting(self) -> Sequence[Request]:
        return self._waiting

    @property
    def used_tokens(self) -> int:
        """KV tokens that admitted requests hold or have reserved."""
        return self._reserved_tokens

    def set_policy(self, policy: Policy) -> None:
        """Change the rule; the gate starts afresh, and an autopilot leaves the wheel."""
        self.gate = held(self.gate, policy, self.num_steps)

    def command(self, order: Order) -> None:
        """Set the autopilot of a server that can speculate; it begins at the present threshold."""
        self.gate = commanded(self.gate, order, self.num_steps)

    def drift(self, acceptance: Acceptance) -> None:
        """From now on drafts are accepted so: the traffic's text has changed."""
        self.acceptance = acceptance
        self._chances.clear()

    def check(self, request: Request) -> None:
        """See whether a request can be served at all.

        Raises:
            UserError: it never fits.
        """
        if request.prompt_tokens < 1 or request.output_tokens < 1:
            raise UserError("a simulated request needs at least one prompt token and one output token")
        room = min(self.limits.context_length, self.limits.max_total_num_tokens)
        if request.reservation > room:
            raise UserError(
                f"Requested token count exceeds the model's maximum context length of {room} tokens: "
                f"{request.prompt_tokens} of input and {request.output_tokens} to come."
            )

    def submit(self, request: Request) -> None:
        """Let a request in, in the order of `sent_s`.

        Raises:
            UserError: it never fits.
        """
        self.check(request)
        front = self._frontend
        alone_s = request.sent_s + self.costs.latency_s + front.delay_s - front.per_request_s
        request.arrived_s = self._frontend_free_s = max(alone_s, self._frontend_free_s) + front.per_request_s
        if front.jitter_s:
            request.arrived_s += front.jitter_s * self._frontend_rng.standard_exponential()
        insort(self._arriving, request, key=lambda other: -other.arrived_s)

    @property
    def ready_s(self) -> float | None:
        """When the next step can begin; None while there is nothing to do."""
        if self._running or self._waiting:
            return self.now_s
        return max(self.now_s, self._arriving[-1].arrived_s) if self._arriving else None

    def step(self) -> Step | None:
        """Run the next step from `ready_s`; None where there is nothing to do."""
        start_s = self.ready_s
        if start_s is None:
            self._fall_idle()
            return None
        if start_s > self.now_s:
            self._fall_idle()
            self.now_s = start_s
        while self._arriving and self._arriving[-1].arrived_s <= self.now_s:
            self._waiting.append(self._arriving.pop())
        if batch := self._admit():
            return self._prefill(batch)
        return self._decode()

    def abort(self, chosen: Callable[[Request], bool]) -> list[Request]:
        """Drop the arriving, waiting and running requests that are `chosen`."""
        dropped = [request for request in (*self._arriving, *self._waiting) if chosen(request)]
        for request in dropped:
            request.finish, request.finished_s = "abort", self.now_s
            self._reserved_tokens -= request.reservation if request.prefilled else 0
        self._arriving = [request for request in self._arriving if request.finish is None]
        self._waiting = deque(request for request in self._waiting if request.finish is None)
        dropped += self._retire(np.array([chosen(request) for request in self._running], bool), "abort")
        self.counters.aborted += len(dropped)
        return dropped

    def _admit(self) -> list[tuple[Request, int]]:
        """The next prefill batch: (request, prompt tokens to compute now), first come first served."""
        batch: list[tuple[Request, int]] = []
        budget = self.limits.chunked_prefill_size
        while self._waiting and budget:
            request = self._waiting[0]
            if not request.prefilled and not self._fits(request, len(self._running) + len(batch)):
                break
            self._reserved_tokens += 0 if request.prefilled else request.reservation
            part = min(request.prompt_tokens - request.prefilled, budget)
            request.prefilled += part
            budget -= part
            batch.append((request, part))
            if request.prefilled < request.prompt_tokens:
                break  # its next chunk leads the next batch
            self._waiting.popleft()
        return batch

    def _fits(self, request: Request, admitted: int) -> bool:
        has_slot = admitted < self.limits.max_running_requests
        return has_slot and self._reserved_tokens + request.reservation <= self.limits.max_total_num_tokens

    def _prefill(self, batch: list[tuple[Request, int]]) -> Step:
        tokens = sum(part for _, part in batch)
        if tokens not in self._prefill_s:
            self._prefill_s[tokens] = self.costs.prefill.at(tokens)
        start_s, end_s = self._spend(self._prefill_s[tokens])
        first = [request for request, _ in batch if request.prefilled == request.prompt_tokens]
        for request in first:
            request.first_token_s = end_s
            self._context_tokens += request.prompt_tokens + 1
        self._running = self._running + first
        self._left = np.append(self._left, [request.output_tokens - 1 for request in first]).astype(np.int64)
        none_yet = np.zeros(len(first), np.int64)
        self._verified = np.append(self._verified, none_yet)
        self._accepted_drafts = np.append(self._accepted_drafts, none_yet)
        self.counters.prefills += 1
        self.counters.prefill_s += end_s - start_s
        self._recorder.prefill_s += end_s - start_s
        self._recorder.joined += len(first)
        self.counters.prompt_tokens += tokens
        self.counters.output_tokens += len(first)
        return Step("prefill", start_s, end_s, 0, first, np.ones(len(first), np.int64), self._finish())

    def _decode(self) -> Step:
        requests = self._running
        batch = len(requests)
        drafts = 0 if self.gate is None else self.gate.decide(batch, self._context_tokens)
        context = self._context_tokens
        start_s, end_s = self._spend(self._cost(batch, drafts) + self.costs.context_s(batch, drafts, context))
        tokens = np.minimum(self._accepted(batch, drafts), self._left)
        total = int(tokens.sum())
        self._left = self._left - tokens
        if drafts:
            self._verified += 1
            self._accepted_drafts += tokens - 1
        self._context_tokens += total
        self._count(batch, drafts, total, end_s - start_s)
        self._recorder.add(self.gate, batch, context, drafts, total, end_s - start_s)
        return Step("decode", start_s, end_s, drafts, requests, tokens, self._finish())

    def _cost(self, batch: int, drafts: int) -> float:
        seconds = self._decode_s.get((batch, drafts))
        if seconds is None:
            seconds = self._decode_s[batch, drafts] = self.costs.decode_s(batch, drafts)
        switched = self._drafts_before is not None and (self._drafts_before > 0) != (drafts > 0)
        self.counters.switches += switched
        self._drafts_before = drafts
        return seconds + self.costs.switch_cost_s if switched else seconds

    def _accepted(self, batch: int, drafts: int) -> Counts:
        if drafts == 0:
            return np.ones(batch, np.int64)
        chances = self._chances.get(drafts)
        if chances is None:
            chances = self._chances[drafts] = np.cumsum(self.acceptance.probabilities(drafts))[:-1]
        draws = self._accept_rng.random(batch if self.acceptance.kind == "request" else 1)
        tokens = 1 + np.searchsorted(chances, draws, side="right")
        return tokens if self.acceptance.kind == "request" else np.repeat(tokens, batch)

    def _spend(self, seconds: float) -> tuple[float, float]:
        start_s = self.now_s
        self.now_s += seconds * self._disturbance.factor(seconds)
        return start_s, self.now_s

    def _count(self, batch: int, drafts: int, tokens: int, seconds: float) -> None:
        count = self.counters.by_batch.setdefault((batch, "on" if drafts else "off"), BatchCount())
        count.steps += 1
        count.tokens += tokens
        count.seconds += seconds
        self.counters.output_tokens += tokens

    def _finish(self) -> list[Request]:
        if not len(self._left) or self._left.min() > 0:
            return []
        ended = self._retire(self._left == 0, "length")
        self.counters.finished += len(ended)
        return ended

    def _retire(self, ends: npt.NDArray[np.bool_], finish: Literal["length", "abort"]) -> list[Request]:
        """Take the marked requests out of the running batch; steps already handed out keep their own lists."""
        ended = []
        for position in np.flatnonzero(ends):
            request = self._running[position]
            request.generated = request.output_tokens - int(self._left[position])
            request.verify_steps = int(self._verified[position])
            request.accepted_drafts = int(self._accepted_drafts[position])
            request.finish, request.finished_s = finish, self.now_s
            self._context_tokens -= request.prompt_tokens + request.generated
            self._reserved_tokens -= request.reservation
            ended.append(request)
        if ended:
            self._running = [request for request in self._running if request.finish is None]
            self._left, self._verified = self._left[~ends], self._verified[~ends]
            self._accepted_drafts = self._accepted_drafts[~ends]
        return ended

    def _fall_idle(self) -> None:
        self._drafts_before = None
        self._recorder.idle()
        if self.gate is not None:
            self.gate.reset()
