"""Live traffic on a simulated server whose world changes: users, drifts, an oracle, and what each gate gets out of it.

Everything runs on the virtual clock. A scenario says, for every simulated second, how many users there are, how long
their prompts are, and how well drafts are accepted. Users form a closed loop: each sends its next request when the last
one is answered. Gates that are compared meet the same users at the same times.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count

import msgspec
import numpy as np

from harness.sim.acceptance import Acceptance
from harness.sim.engine import Engine
from harness.sim.noise import Noise
from harness.sim.preset import ContextCost, Preset, costs_of, load_preset
from harness.sim.progress import Request
from patched_worker.autopilot import Autopilot, Order
from patched_worker.policy import Gate, Policy

NOISE = Noise(step_sigma=0.02, drift_sigma=0.01)
# an 8B model's KV, 128 KiB a token, read at three quarters of an H200's bandwidth; a draft of one layer, and its steps,
# read a little more. The tables hold for 128 + 128 tokens.
CONTEXT = ContextCost(mean_tokens=192, plain=3.6e-8, speculative=4.2e-8)
OUTPUT_TOKENS = (128, 512)
LOOK_AHEAD_STEPS = 32  # of the oracle: over how many steps a switch must pay


@dataclass(frozen=True, slots=True)
class Scenario:
    """What the world does; each function of simulated seconds.

    Attributes:
        users: how many there are.
        accept_len: mean tokens per verify step.
        prompt_tokens: mean prompt length; requests vary by half of it either way.
        duration_s: how long it takes.
        drifts: when it changes, and which way the threshold should go: 1 up, -1 down.
        start: threshold at start.
    """

    name: str
    users: Callable[[float], int]
    accept_len: Callable[[float], float]
    prompt_tokens: Callable[[float], int]
    duration_s: float
    drifts: tuple[tuple[float, int], ...] = ()
    start: int = 32
    noise: Noise = NOISE


@dataclass(slots=True)
class Outcome:
    """What one gate made of a scenario.

    Attributes:
        tokens: output tokens by the end of each simulated second.
        thresholds: (second, threshold) after each move.
        flipped: share of decode steps that ran in the other state.
        moves: reasons, in words.
    """

    tokens: np.ndarray
    thresholds: list[tuple[float, int]] = field(default_factory=list)
    flipped: float = 0.0
    moves: list[str] = field(default_factory=list)
    pilot: Autopilot | None = None

    def rate(self, start_s: float, end_s: float) -> float:
        """Tokens per second between two seconds."""
        low, high = int(start_s), min(int(end_s), len(self.tokens) - 1)
        return float(self.tokens[high] - self.tokens[low]) / max(high - low, 1)

    def threshold_at(self, second: float) -> int:
        """The threshold at that time."""
        return [value for at, value in self.thresholds if at <= second][-1]


class Oracle(Gate):
    """Knows the step tables, the acceptance and the context of this very step, and what a switch costs."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(Policy.from_threshold(None), engine.acceptance.num_steps)
        self._engine = engine
        self._on: bool | None = None

    def decide(self, batch: int, seq_lens_sum: int = 0) -> int:
        costs, drafts = self._engine.costs, self.num_steps
        on_s = costs.decode_s(batch, drafts) + costs.context_s(batch, drafts, seq_lens_sum)
        off_s = costs.decode_s(batch, 0) + costs.context_s(batch, 0, seq_lens_sum)
        gain = math.log(self._engine.acceptance.mean_len * off_s / on_s)
        toll = costs.switch_cost_s / (LOOK_AHEAD_STEPS * off_s)
        if self._on is None or (gain > toll if not self._on else gain < -toll):
            self._on = gain > 0
        return drafts if self._on else 0


def machine(accept_len: float) -> Preset:
    """The simulated server at one acceptance: the illustrative H200, with steps that grow with the context."""
    preset = load_preset("h200-llama31-8b-illustrative")
    patched = msgspec.structs.replace(preset.patched, context=CONTEXT)
    acceptance = msgspec.structs.replace(preset.acceptance, mean_len=accept_len)
    return msgspec.structs.replace(preset, patched=patched, acceptance=acceptance)


def engine_for(scenario: Scenario, kind: str, seed: int) -> Engine:
    """A server at the beginning of a scenario, with one of the gates: autopilot, oracle, on, off, or a threshold."""
    preset = machine(scenario.accept_len(0.0))
    policy = {"on": Policy.from_threshold(None), "off": Policy.from_threshold(0)}.get(kind)
    if policy is None:
        policy = Policy.from_threshold(int(kind) if kind.isdigit() else scenario.start)
    order = Order() if kind == "autopilot" else None
    costs = costs_of(preset, "dynamic")
    engine = Engine(costs, preset.limits, preset.acceptance, policy, preset.frontend, seed, scenario.noise, order=order)
    if kind == "oracle":
        engine.gate = Oracle(engine)
    return engine


def play(scenario: Scenario, kind: str, seed: int) -> Outcome:
    """Run a scenario with one gate."""
    engine = engine_for(scenario, kind, seed)
    users = _Users(engine, scenario, seed)
    pilot = engine.gate if isinstance(engine.gate, Autopilot) else None
    outcome = Outcome(np.zeros(0), [(0.0, scenario.start)], pilot=pilot)
    tokens, accept, moved = [0], engine.acceptance.mean_len, 0
    for second in range(1, int(scenario.duration_s) + 1):
        if (wanted := scenario.accept_len(second)) != accept:
            engine.drift(Acceptance(wanted, engine.acceptance.num_steps, engine.acceptance.kind))
            accept = wanted
        users.run_until(float(second))
        tokens.append(engine.counters.output_tokens)
        if pilot is not None and pilot.moved > moved:
            outcome.thresholds.append((float(second), pilot.plan.threshold))
            outcome.moves += [f"{second} s: {move.reason}" for move in list(pilot.moves)[moved - pilot.moved :]]
            moved = pilot.moved
    outcome.tokens = np.array(tokens, dtype=float)
    if pilot is not None:
        outcome.flipped = pilot.flipped_steps / pilot.steps
    return outcome


class _Users:
    """A closed loop whose number of users changes."""

    def __init__(self, engine: Engine, scenario: Scenario, seed: int) -> None:
        self._engine, self._scenario = engine, scenario
        self._rng = np.random.default_rng((seed, 7))
        self._ids = count()
        self._active = 0

    def run_until(self, end_s: float) -> None:
        engine = self._engine
        self._fill(engine.now_s)
        while engine.now_s < end_s:
            ready_s = engine.ready_s
            if ready_s is None or ready_s >= end_s:
                break
            step = engine.step()
            if step is not None and step.finished:
                self._active -= len(step.finished)
                self._fill(step.end_s)

    def _fill(self, now_s: float) -> None:
        for _ in range(self._scenario.users(now_s) - self._active):
            prompt = self._scenario.prompt_tokens(now_s)
            prompt = int(self._rng.integers(prompt // 2, prompt * 3 // 2 + 1))
            output = int(self._rng.integers(*OUTPUT_TOKENS))
            self._engine.submit(Request(str(next(self._ids)), prompt, output, sent_s=now_s))
            self._active += 1


def wandering(
    middle: int, octaves: float, seed: int, duration_s: float, time_s: float = 20.0
) -> Callable[[float], int]:
    """Users whose number wanders around `middle`: an AR(1) process in log2 with that standard deviation."""
    path = _wander(duration_s, time_s, (seed, 11))
    users = [int(min(256, max(1, round(middle * 2 ** (octaves * value))))) for value in path]
    return lambda second: users[int(second)]


def restless(
    accept_len: float, spread: float, seed: int, duration_s: float, time_s: float = 8.0
) -> Callable[[float], float]:
    """An acceptance that belongs to the requests that happen to run: it wanders around its mean, and never drifts.

    Args:
        spread: its relative standard deviation; 0.03 is what some 50 requests with a spread of 20 % each give.
        time_s: how long it remembers itself, about as long as a request lives.
    """
    lengths = [accept_len * (1 + spread * value) for value in _wander(duration_s, time_s, (seed, 13))]
    return lambda second: lengths[int(second)]


def _wander(duration_s: float, time_s: float, seed: tuple[int, int]) -> list[float]:
    """A stationary AR(1) process, one value per second."""
    rng, keep = np.random.default_rng(seed), math.exp(-1 / time_s)
    path = [float(rng.standard_normal())]
    for _ in range(int(duration_s) + 1):
        path.append(keep * path[-1] + math.sqrt(1 - keep * keep) * float(rng.standard_normal()))
    return path


def starting_at(scenario: Scenario, threshold: int) -> Scenario:
    """The same scenario from another threshold."""
    return replace(scenario, start=threshold)
