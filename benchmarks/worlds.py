"""Worlds for benchmarking the tuner: servers given as tables of step times, with noise, that only know their truth.

A world file is JSON, {"worlds": [WORLD, ...]}; every field of World may be given, step times in seconds:

    {"batch": [1, 2, 4, ...], "baseline_step_s": [...], "off_step_s": [...], "on_step_s": [...],
     "accept_len": 2.5, "noise_level": 0.03, "noise_run": 0.015, "flap_cost": 0.05, "dip": 0.08}

Step times are interpolated log-log over the batch. A step without speculation brings one token per request, a
speculating one accept_len. In a closed loop at C each request is decoding with probability 1 - dip. A threshold that
the batch hovers around loses up to flap_cost of the throughput.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from itertools import takewhile
from pathlib import Path

import msgspec
import numpy as np
from scipy import stats

from harness.openload import Arrivals
from harness.records import LevelRow, Variant
from harness.sim.engine import Engine
from harness.sim.noise import Noise
from harness.sim.predict import make_engine
from harness.sim.preset import Preset
from harness.sim.progress import Request
from patched_worker.policy import Policy

CONCURRENCY = (1, 2, 4, 8, 16, 32, 64, 128, 256)
GRID = tuple(2**i for i in range(10))


class World(msgspec.Struct, frozen=True, dict=True, forbid_unknown_fields=True):
    """One server; see the module's docstring for units."""

    baseline_step_s: tuple[float, ...]
    off_step_s: tuple[float, ...]
    on_step_s: tuple[float, ...]
    batch: tuple[int, ...] = GRID
    accept_len: float = 2.5
    noise_level: float = 0.03
    noise_run: float = 0.015
    flap_cost: float = 0.05
    dip: float = 0.08
    family: str = "file"

    def rate(self, variant: Variant, batch: float) -> float:
        """True tokens per second with `batch` requests decoding."""
        table = {"baseline": self.baseline_step_s, "forced_off": self.off_step_s}.get(variant, self.on_step_s)
        step_s = math.exp(float(np.interp(math.log(batch), np.log(self.batch), np.log(table))))
        return batch * (self.accept_len if variant == "eagle3" else 1.0) / step_s

    def throughput(self, variant: Variant, threshold: int | None, concurrency: int) -> float:
        """True tokens per second of a closed loop; `threshold` is for dynamic."""
        batch = concurrency * (1 - self.dip)
        if variant != "dynamic":
            return self.rate(variant, max(1.0, batch))
        top = CONCURRENCY[-1] + 1
        on = float(self._share_on(np.array([top if threshold is None else threshold]), concurrency)[0])
        mixed = on * self.rate("eagle3", max(1.0, batch)) + (1 - on) * self.rate("forced_off", max(1.0, batch))
        return mixed * (1 - self.flap_cost * 4 * on * (1 - on))

    def _share_on(self, thresholds: np.ndarray, concurrency: int) -> np.ndarray:
        """Share of decode steps at or below each threshold; an idle step is none."""
        if concurrency == 1:
            return (thresholds > 0).astype(float)
        return np.asarray(stats.binom.cdf(thresholds, concurrency, 1 - self.dip))

    @cached_property
    def scores(self) -> np.ndarray:
        """True score of every threshold: index t for threshold t, the last one for "never disable"."""
        thresholds = np.arange(CONCURRENCY[-1] + 2)
        logs = np.zeros(len(thresholds))
        for c in CONCURRENCY:
            batch = max(1.0, c * (1 - self.dip))
            eagle3, off = self.rate("eagle3", batch), self.rate("forced_off", batch)
            on = self._share_on(thresholds, c)
            rate = (on * eagle3 + (1 - on) * off) * (1 - self.flap_cost * 4 * on * (1 - on))
            logs += np.log(rate / max(self.rate("baseline", batch), eagle3))
        return np.exp(logs / len(CONCURRENCY))

    def score(self, threshold: int | None) -> float:
        """True score of a threshold over CONCURRENCY."""
        last = CONCURRENCY[-1] + 1
        return float(self.scores[last if threshold is None else min(threshold, last)])

    @cached_property
    def pivot(self) -> int | None:
        """The largest decode batch up to the largest level's at which speculation truly pays; None: all of them."""
        top = math.floor(CONCURRENCY[-1] * (1 - self.dip))
        gains = [self.rate("eagle3", b) > self.rate("forced_off", b) for b in range(1, top + 1)]
        return None if all(gains) else gains.index(False)


class Machine:
    """A world as the tuner sees it: only noisy rows.

    A run's common factor changes every len(CONCURRENCY) points of a variant, whatever repeat they are called.

    Args:
        world: the truth.
        seed: of the noise.
    """

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.points = 0
        self._rng = np.random.default_rng(seed)
        self._measured: dict[str, int] = {}
        self._factor: dict[str, float] = {}

    def measure(self, variant: Variant, policy: Policy | None, concurrency: int, repeat: int) -> LevelRow:
        """One point, as the harness would give it."""
        threshold = policy.threshold if policy else None
        truth = self.world.throughput(variant, threshold, concurrency)
        rate = truth * self._run_factor(variant) * math.exp(self.world.noise_level * self._rng.standard_normal())
        self.points += 1
        batch = max(1.0, concurrency * (1 - self.world.dip))
        return LevelRow(
            variant=variant,
            concurrency=concurrency,
            repeat=repeat,
            status="done",
            verdict="ok",
            threshold=(-1 if threshold is None else threshold) if policy else None,
            decode_batch_mean=batch,
            output_tok_per_s=rate,
            tpot_p50_s=batch / rate,
        )

    def _run_factor(self, variant: str) -> float:
        count = self._measured.get(variant, 0)
        if count % len(CONCURRENCY) == 0:
            self._factor[variant] = math.exp(self.world.noise_run * self._rng.standard_normal())
        self._measured[variant] = count + 1
        return self._factor[variant]


class OpenMachine:
    """A preset's patched server under open-loop load, on the virtual clock, as the tuner sees it.

    Args:
        preset: the truth, switching cost and all.
        noise: of step times; drawn anew at each point, as a machine's is.
        seed: of it.
        lengths: prompt and output tokens of every request.
        window_s: seconds measured, after as many seconds of warm-up as `warmup_s`.
    """

    def __init__(
        self,
        preset: Preset,
        noise: Noise,
        seed: int,
        lengths: tuple[int, int] = (128, 128),
        window_s: float = 20.0,
        warmup_s: float = 5.0,
    ) -> None:
        self.preset = preset
        self.noise = noise
        self.points = 0
        self.lengths = lengths
        self.window = (warmup_s, warmup_s + window_s)
        self._rng = np.random.default_rng(seed)

    def measure(self, policy: Policy, arrivals: Arrivals, seed: int, number: int) -> LevelRow:
        """One point: `seed` draws the arrivals, `number` is the row's repeat."""
        self.points += 1
        engine = make_engine(self.preset, "dynamic", policy, int(self._rng.integers(2**31)), self.noise)
        requests = self._serve(engine, arrivals.due_s(seed))
        start_s, end_s = self.window
        stays = [min(r.finished_s or end_s, end_s) - max(r.sent_s, start_s) for r in requests]
        return LevelRow(
            variant="dynamic",
            concurrency=self.preset.limits.max_running_requests,
            repeat=number,
            status="done",
            verdict="ok",
            in_flight_mean=sum(max(stay, 0.0) for stay in stays) / (end_s - start_s),
            switches=engine.counters.switches,
        )

    def _serve(self, engine: Engine, due_s: Iterator[float]) -> list[Request]:
        sent = []
        for index, at_s in enumerate(takewhile(lambda at_s: at_s < self.window[1], due_s)):
            while engine.ready_s is not None and engine.now_s < at_s:
                engine.step()
            sent.append(Request(str(index), *self.lengths, sent_s=at_s))
            engine.submit(sent[-1])
        while engine.ready_s is not None and engine.now_s < self.window[1]:
            engine.step()
        return sent


def read_worlds(file: Path) -> list[World]:
    """The worlds of a world file."""
    return msgspec.json.decode(file.read_bytes(), type=dict[str, list[World]])["worlds"]


def make_worlds(count: int, seed: int) -> list[World]:
    """Worlds whose curves are not of one family: affine, rooflines, MoE-like, stepped."""
    rng = np.random.default_rng(seed)
    worlds: list[World] = []
    while len(worlds) < count:
        world = _draw(rng)
        if world.pivot is not None and world.pivot > 1:
            worlds.append(world)
    return worlds


def _draw(rng: np.random.Generator) -> World:
    family = str(rng.choice(["affine", "roofline", "moe", "stepped"]))
    batch = np.array(GRID, dtype=float)
    fixed_s = float(np.exp(rng.uniform(np.log(0.004), np.log(0.02))))
    knee = float(np.exp(rng.uniform(np.log(24), np.log(400))))  # batch at which compute equals what is fixed
    width = float(rng.choice([2, 4, 6, 8]))  # verified tokens per request
    kv = float(rng.uniform(0.0005, 0.004))  # attention's share per request

    def step(tokens: np.ndarray, requests: np.ndarray) -> np.ndarray:
        compute = tokens / knee
        if family == "affine":
            shape = 1 + compute
        elif family == "roofline":
            shape = np.maximum(1, compute) + 0.1 * compute
        elif family == "moe":
            shape = 1 + 0.6 * np.sqrt(compute) + 0.5 * compute
        else:
            shape = 1 + np.ceil(tokens / 32) * 32 / knee * rng.uniform(0.9, 1.1)
        return fixed_s * (shape + kv * requests)

    drafting = fixed_s * (rng.uniform(0.15, 0.6) + rng.uniform(0.0, 0.004) * batch)
    base = step(batch, batch)
    tax = rng.uniform(0.0, 0.3) * (batch / batch[-1]) ** rng.uniform(-0.1, 0.1)
    return World(
        baseline_step_s=tuple(base.tolist()),
        off_step_s=tuple((base / (1 - np.clip(tax, 0, 0.3))).tolist()),
        on_step_s=tuple((step(width * batch, batch) + drafting).tolist()),
        accept_len=float(rng.uniform(1.5, min(width, 3.6))),
        flap_cost=float(rng.uniform(0.0, 0.1)),
        dip=float(rng.uniform(0.02, 0.1)),
        family=family,
    )
