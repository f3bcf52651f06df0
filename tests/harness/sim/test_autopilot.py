"""The simulated server plays the autopilot with the worker's own code, and shows and takes what the worker does."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from harness.errors import UserError
from harness.sim.engine import Engine
from harness.sim.noise import Noise
from harness.sim.predict import make_engine
from harness.sim.preset import ContextCost, Costs, costs_of, load_preset
from harness.sim.progress import Request
from harness.sim.server import settings_from
from harness.sim.service import ServerSettings, Service
from patched_worker.autopilot import Autopilot, Mode, Order
from patched_worker.autopilot_decide import Bounds
from patched_worker.policy import Policy
from patched_worker.steptrace import FLUSH_STEPS, StepRecord, Trace, unpacked

PRESET = load_preset("h200-llama31-8b-accept-1.8-illustrative")  # pays up to a batch of about 13


def loaded(engine: Engine, users: int, seconds: float) -> None:
    """Keep that many requests running for some simulated seconds."""
    sent = 0
    while engine.now_s < seconds:
        while sent - engine.counters.finished < users:
            engine.submit(Request(str(sent), 64 + sent % 97, 100 + sent % 211, sent_s=engine.now_s))
            sent += 1
        engine.step()


def test_a_wrong_threshold_is_corrected_on_the_virtual_clock() -> None:
    """Steady load of 24 under a threshold of 200: speculation loses there, and it is switched off."""
    engine = make_engine(PRESET, "dynamic", Policy.from_threshold(200), 1, Noise(0.02, 0.01), order=Order())
    loaded(engine, 24, 60.0)
    assert isinstance(engine.gate, Autopilot)

    assert engine.gate.plan.threshold < 24
    assert engine.gate.evidence.accept.mean == pytest.approx(1.8, rel=0.05)


def test_prompts_in_chunks_are_requests_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted once a chunk they would be many requests in one prefill, which speculation seems to make cheap."""
    seen: list[StepRecord] = []
    monkeypatch.setattr(Autopilot, "observe", lambda pilot, record: seen.append(record))
    limits = msgspec.structs.replace(PRESET.limits, chunked_prefill_size=32)
    engine = make_engine(msgspec.structs.replace(PRESET, limits=limits), "dynamic", order=Order())
    loaded(engine, 4, 5.0)
    begun = engine.counters.finished + 4

    assert begun > 10
    assert engine.counters.prefills > 2 * begun
    assert begun - 4 <= sum(record.joined for record in seen) <= begun


def test_records_are_what_the_engine_did(tmp_path: Path) -> None:
    """Every decode step, its tokens, and the prefills' seconds in between."""
    trace = Trace(tmp_path / "t")
    engine = make_engine(PRESET, "dynamic", Policy.from_threshold(8), order=None, trace=trace)
    loaded(engine, 10, 3.0)
    trace.close()
    counters, records = engine.counters, unpacked((tmp_path / "t").read_bytes().partition(b"\n")[2])
    decoded = sum(count.tokens for count in counters.by_batch.values())

    assert len(records) == counters.steps("on") + counters.steps("off")
    assert sum(r.tokens for r in records) == decoded
    assert sum(r.prefill_s for r in records) == pytest.approx(counters.prefill_s, rel=0.05)
    assert sum(r.seconds for r in records) == pytest.approx(sum(c.seconds for c in counters.by_batch.values()))


def test_a_server_that_ends_writes_the_rest_of_its_trace(tmp_path: Path) -> None:
    """Steps that would have waited for others to be written with."""
    service = Service(ServerSettings(PRESET, "dynamic", Policy.from_threshold(8), trace_file=tmp_path / "t"))
    loaded(service.engine, 2, 0.05)
    service.close()
    counters = service.engine.counters
    steps = counters.steps("on") + counters.steps("off")

    assert steps % FLUSH_STEPS
    assert len(unpacked((tmp_path / "t").read_bytes().partition(b"\n")[2])) == steps


def test_an_operator_sets_it_as_in_sglang() -> None:
    """Keys of /set_internal_state, and the block of /server_info."""
    service = Service(ServerSettings(PRESET, "dynamic", Policy.from_threshold(8)))

    assert "autopilot" not in service.info()["internal_states"][0]["specpivot"]
    assert service.set_internal_state({"speculative_autopilot": 1, "speculative_auto_max": 64})
    block = service.info()["internal_states"][0]["specpivot"]["autopilot"]
    assert (block["state"], block["bounds"], block["threshold"]) == ("auto", [0, 64], 8)

    assert service.set_internal_state({"speculative_disable_batch_threshold": 12})
    block = service.info()["internal_states"][0]["specpivot"]
    assert (block["autopilot"]["state"], block["threshold"]) == ("held", 12)


def test_an_unfit_order_is_refused() -> None:
    """Nothing changes, and the reason is there to read."""
    service = Service(ServerSettings(PRESET, "dynamic", Policy.from_threshold(8)))

    assert not service.set_internal_state({"speculative_autopilot": 9, "speculative_disable_batch_threshold": 4})
    block = service.info()["internal_states"][0]["specpivot"]
    assert block["threshold"] == 8
    assert "speculative_autopilot" in block["last_error"]


def test_the_command_line_starts_it(tmp_path: Path) -> None:
    """Mode, bounds and trace."""
    file = str(tmp_path / "t")
    settings = settings_from(["--auto", "--auto-max", "96", "--auto-dry-run", "--trace-file", file])

    assert settings.order == Order(Mode.DRY_RUN, Bounds(0, 96))
    assert settings.trace_file == Path(file)
    assert settings_from([]).order is None
    with pytest.raises(UserError, match="bounds"):
        settings_from(["--auto", "--auto-min", "9", "--auto-max", "8"])


def test_longer_contexts_make_steps_dearer_only_where_a_preset_says_so() -> None:
    """Per token beyond the length that the tables hold for, and nothing in the presets that come along."""
    plain = costs_of(PRESET, "dynamic")
    cost = msgspec.structs.replace(plain, context=ContextCost(mean_tokens=200, plain=1e-8, speculative=2e-8))

    assert plain.context_s(10, 3, 10**6) == 0.0
    assert cost.context_s(10, 0, 5000) == pytest.approx(3000e-8)
    assert cost.context_s(10, 3, 5000) == pytest.approx(6000e-8)
    assert Costs.context_s(cost, 10, 0, 1000) == 0.0
