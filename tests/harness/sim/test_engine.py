"""The discrete-event engine on its virtual clock."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import UserError
from harness.sim.acceptance import Acceptance
from harness.sim.engine import Engine
from harness.sim.noise import Noise
from harness.sim.predict import make_engine
from harness.sim.preset import Limits
from harness.sim.progress import Request, Step
from patched_worker.policy import Policy
from tests.harness.sim.worlds import DECODE, PREFILL, SPECULATIVE, world

Plan = list[tuple[float, int, int]]  # arrival in seconds, prompt and output tokens


def drain(engine: Engine, plan: Plan) -> list[Step]:
    """Send the plan's requests and run until nothing is left."""
    for i, (at, prompt, output) in enumerate(sorted(plan)):
        engine.submit(Request(str(i), prompt, output, at))
    return list(iter(engine.step, None))


def timeline(steps: list[Step]) -> list[tuple[object, ...]]:
    return [
        (s.kind, s.start_s, s.end_s, [r.rid for r in s.requests], s.tokens.tolist(), [r.rid for r in s.finished])
        for s in steps
    ]


plans = st.lists(st.tuples(st.floats(0, 2), st.integers(1, 500), st.integers(1, 40)), min_size=1, max_size=30)


@settings(max_examples=60, deadline=None)
@given(plans, st.integers(0, 2**32), st.sampled_from([Noise(), Noise(0.05, 0.02)]))
def test_zero_drafts_is_the_baseline_exactly(plan: Plan, seed: int, noise: Noise) -> None:
    """A patched server that never speculates and pays no tax does, step for step, what the baseline does."""
    baseline = drain(make_engine(world(), "baseline", seed=seed, noise=noise), plan)
    off = drain(make_engine(world(), "forced_off", seed=seed, noise=noise), plan)
    assert timeline(off) == timeline(baseline)


@settings(max_examples=60, deadline=None)
@given(plans, st.integers(0, 5), st.integers(0, 2**32))
def test_every_token_is_produced_once(plan: Plan, threshold: int, seed: int) -> None:
    """Each request gets exactly its output tokens, and the counters hold the same sum as the steps."""
    engine = make_engine(world(), "dynamic", Policy.from_threshold(threshold, min_dwell=1), seed)
    steps = drain(engine, plan)
    got: dict[str, int] = {}
    for step in steps:
        for request, tokens in zip(step.requests, step.tokens.tolist(), strict=True):
            got[request.rid] = got.get(request.rid, 0) + tokens
    finished = [request for step in steps for request in step.finished]
    assert sorted(finished, key=lambda r: int(r.rid)) == sorted(
        {r for s in steps for r in s.requests}, key=lambda r: int(r.rid)
    )
    assert all(got[request.rid] == request.output_tokens == request.generated for request in finished)
    assert len(finished) == len(plan) == engine.counters.finished
    decoded = sum(count.tokens for count in engine.counters.by_batch.values())
    assert engine.counters.output_tokens == sum(got.values()) == decoded + len(plan)
    assert engine.used_tokens == 0


@settings(max_examples=40, deadline=None)
@given(plans, st.integers(1, 6), st.integers(1, 4))
def test_policy_decides_every_step(plan: Plan, threshold: int, min_dwell: int) -> None:
    """Steps over more requests than the threshold are plain, and costs follow width, not acceptance."""
    engine = make_engine(world(), "dynamic", Policy.from_threshold(threshold, min_dwell=min_dwell))
    for step in drain(engine, plan):
        if step.kind == "decode":
            batch = len(step.requests)
            assert not (batch > threshold and step.drafts)
            table = SPECULATIVE if step.drafts else DECODE
            assert step.end_s - step.start_s == pytest.approx(table.at(batch))


def test_prefill_goes_first_and_in_one_batch() -> None:
    """Requests that wait together are prefilled together, before the running ones decode again."""
    engine = make_engine(world(), "baseline")
    engine.submit(Request("a", 100, 10, 0.0))
    assert engine.step().kind == "prefill"
    engine.submit(Request("b", 100, 10, 0.0))
    engine.submit(Request("c", 200, 10, 0.0))
    step = engine.step()
    assert step is not None
    assert (step.kind, [r.rid for r in step.requests]) == ("prefill", ["b", "c"])
    assert step.end_s - step.start_s == pytest.approx(PREFILL.at(300))
    assert len(engine.step().requests) == 3


def test_long_prompt_is_prefilled_in_chunks() -> None:
    """A prompt beyond chunked_prefill_size takes several prefills and gets its first token at the last."""
    limits = Limits(256, 100_000, chunked_prefill_size=1000)
    engine = make_engine(world(limits=limits), "baseline")
    engine.submit(Request("long", 2500, 5, 0.0))
    steps = [engine.step() for _ in range(4)]
    assert [step.kind for step in steps if step] == ["prefill"] * 3 + ["decode"]
    assert [len(step.requests) for step in steps if step] == [0, 0, 1, 1]


def test_slots_and_kv_tokens_hold_requests_back() -> None:
    """Beyond max_running_requests, or the KV pool, requests wait for others to finish; all are served."""
    for limits in (Limits(3, 100_000), Limits(256, 330)):
        engine = make_engine(world(limits=limits), "eagle3")
        steps = drain(engine, [(0.0, 100, 10)] * 12)
        batches = [len(step.requests) for step in steps if step.kind == "decode"]
        assert max(batches) == 3
        assert engine.counters.finished == 12


def test_request_that_never_fits_is_refused() -> None:
    """A request larger than the KV pool or the context raises instead of blocking the queue for ever."""
    engine = make_engine(world(limits=Limits(8, 1000, context_length=500)), "baseline")
    with pytest.raises(UserError, match="maximum context length of 500"):
        engine.submit(Request("r", 400, 101, 0.0))
    with pytest.raises(UserError, match="at least one"):
        engine.submit(Request("r", 0, 1, 0.0))


@pytest.mark.parametrize("kind", ["request", "batch"])
def test_mean_acceptance_is_met(kind: str) -> None:
    """Over many steps the mean accept length is the preset's; requests differ only where each draws for itself."""
    acceptance = msgspec.convert({"mean_len": 2.3, "num_steps": 3, "kind": kind}, Acceptance)
    engine = make_engine(world(acceptance=acceptance), "eagle3", seed=5)
    for i in range(16):
        engine.submit(Request(str(i), 10, 5000, 0.0))
    steps = [engine.step() for _ in range(1500)]
    tokens = [step.tokens for step in steps if step and step.kind == "decode"]
    assert engine.counters.accept_len == pytest.approx(2.3, abs=0.05)
    assert all(np.ptp(row) == 0 for row in tokens) == (kind == "batch")


def test_switch_costs_and_is_counted() -> None:
    """Going off and on again costs the preset's switch cost once each; falling idle forgets the state."""
    patched = msgspec.structs.replace(world().patched, switch_cost_s=0.5)
    engine = make_engine(world(patched=patched), "dynamic", Policy.from_threshold(1, min_dwell=1))
    steps = [s for s in drain(engine, [(0.0, 10, 200), (0.1, 10, 3)]) if s.kind == "decode"]
    dear = [s for s in steps if s.end_s - s.start_s > 0.5]
    assert engine.counters.switches == 2 == len(dear)
    assert [bool(s.drafts) for s in dear] == [False, True]
    before = engine.counters.switches
    drain(engine, [(engine.now_s + 1, 10, 5), (engine.now_s + 1, 10, 5)])
    assert engine.counters.switches == before


def test_abort_frees_what_the_request_held() -> None:
    """An aborted request leaves slots and KV behind, whether it waited, was half prefilled or ran."""
    limits = Limits(2, 100_000, chunked_prefill_size=100)
    engine = make_engine(world(limits=limits), "eagle3")
    for rid, prompt in (("run", 50), ("half", 120), ("wait", 10)):
        engine.submit(Request(rid, prompt, 50, 0.0))
    engine.step()
    dropped = engine.abort(lambda request: True)
    assert sorted(request.rid for request in dropped) == ["half", "run", "wait"]
    assert {request.finish for request in dropped} == {"abort"}
    assert engine.used_tokens == 0
    assert engine.step() is None
    assert engine.counters.aborted == 3


def test_noise_keeps_the_mean() -> None:
    """Step noise scatters step times by its sigma without shifting their mean."""
    engine = make_engine(world(), "baseline", noise=Noise(step_sigma=0.1))
    engine.submit(Request("r", 10, 6000, 0.0))
    steps = [engine.step() for _ in range(5001)]
    ratio = np.array([(s.end_s - s.start_s) / 0.005 for s in steps if s and s.kind == "decode"])
    assert ratio.mean() == pytest.approx(1, abs=0.005)
    assert np.log(ratio).std() == pytest.approx(0.1, rel=0.05)


def test_drift_is_slow() -> None:
    """The drift's factor is nearly the same from one step to the next, and forgotten after many drift times."""
    engine = make_engine(world(), "baseline", noise=Noise(drift_sigma=0.1, drift_time_s=1.0))
    engine.submit(Request("r", 10, 7000, 0.0))
    steps = [engine.step() for _ in range(6001)]
    log = np.log([(s.end_s - s.start_s) / 0.005 for s in steps if s and s.kind == "decode"])
    assert np.corrcoef(log[:-1], log[1:])[0, 1] > 0.98
    assert abs(np.corrcoef(log[:-2000], log[2000:])[0, 1]) < 0.5
