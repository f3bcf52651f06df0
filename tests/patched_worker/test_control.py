"""Counters count what was seen, refusals change nothing, and ranks that differ are noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from patched_worker.autopilot import MAX_KEY, MODE_KEY, Autopilot, Mode, Order
from patched_worker.autopilot_decide import Bounds
from patched_worker.control import Control, Identity
from patched_worker.draft_sync import SYNC_KEY, DraftSync
from patched_worker.policy import THRESHOLD_KEY, Policy
from patched_worker.stepcount import Step
from patched_worker.steptrace import RECORD, Trace, unpacked

IDENTITY = Identity("sglang.Worker", "patched_worker.eagle_v2", "0.5.16", "0123456789ab")
DRAFT_TOKENS = 4


def speculative(control: Control, batch: int) -> Step:
    """A step that drafts and verifies."""
    step = control.begin(batch)
    control.saw_draft()
    control.saw_target(batch * DRAFT_TOKENS)
    control.end(step)
    return step


def plain(control: Control, batch: int, graph: bool = False) -> Step:
    """A step of one target token per request."""
    step = control.begin(batch)
    control.saw_target(batch)
    control.end(step, graph)
    return step


def row(control: Control, batch: int, state: str) -> dict[str, object]:
    """One line of the histogram."""
    rows = control.snapshot()["by_batch"]
    assert isinstance(rows, list)
    (found,) = [r for r in rows if (r["batch"], r["state"]) == (batch, state)]
    return dict(found)


def test_steps_are_counted_by_what_ran(control: Control) -> None:
    """Two speculative steps and a plain one are two, one, and one switch."""
    speculative(control, 2)
    speculative(control, 2)
    plain(control, 5)
    snapshot = control.snapshot()

    assert (snapshot["steps_on"], snapshot["steps_off"], snapshot["switches"]) == (2, 1, 1)
    assert (row(control, 2, "on")["steps"], row(control, 5, "off")["steps"]) == (2, 1)
    assert snapshot["last_error"] is None


def test_plain_steps_that_replay_a_graph_are_counted(control: Control) -> None:
    """Only plain steps, and only those whose target ran as a captured graph."""
    plain(control, 5, graph=True)
    plain(control, 6)
    step = control.begin(2)
    control.saw_draft()
    control.saw_target(2 * DRAFT_TOKENS)
    control.end(step, graph=True)

    assert control.snapshot()["off_graph_steps"] == 1


def test_a_gated_step_that_speculates_is_ungated(control: Control, caplog: pytest.LogCaptureFixture) -> None:
    """A patch that does not take must not look like one that does."""
    assert speculative(control, 5).off
    snapshot = control.snapshot()

    assert (snapshot["ungated"], snapshot["steps_on"], snapshot["steps_off"]) == (1, 1, 0)
    assert "gated step of 5 requests ran 20 target tokens" in caplog.text


def test_a_forward_outside_of_any_step_is_ungated(control: Control) -> None:
    """SGLang reached its target by a way that the gate does not see."""
    control.saw_target(8)

    assert control.snapshot()["ungated"] == 1


def test_a_plain_step_that_should_speculate_is_an_error_but_not_ungated(control: Control) -> None:
    """Too little speculation is reported, and not mixed up with too much."""
    plain(control, 2)

    assert control.ungated == 0
    assert control.last_error is not None
    assert "should have speculated" in control.last_error


def test_a_fault_of_every_step_is_logged_once(control: Control, caplog: pytest.LogCaptureFixture) -> None:
    """Counters go on, the log does not."""
    for _ in range(50):
        speculative(control, 5)

    assert control.ungated == 50
    assert caplog.text.count("gated step") == 1


def test_tokens_arrive_after_the_step(control: Control) -> None:
    """With the overlap scheduler a step's tokens are known one step late."""
    first = speculative(control, 2)
    plain(control, 5).add_tokens(5)
    first.add_tokens(6)

    assert (row(control, 2, "on")["tokens"], row(control, 5, "off")["tokens"]) == (6, 5)


def test_seconds_run_to_the_next_call_and_end_with_idleness(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step's time ends where the next worker call begins, or where the server has nothing to do."""
    clock = iter([10.0, 13.0, 21.5, 30.0, 31.0])
    monkeypatch.setattr("patched_worker.control.time.perf_counter", lambda: next(clock))

    speculative(control, 2)  # from 10 to 13
    speculative(control, 2)  # from 13 to 21.5
    control.idle()
    plain(control, 5)  # from 30 to 31
    control.interrupt()

    assert row(control, 2, "on")["seconds"] == pytest.approx(11.5)
    assert row(control, 5, "off")["seconds"] == pytest.approx(1.0)


def test_idleness_forgets_hysteresis_and_is_no_switch() -> None:
    """The first step after it may speculate, and the change of state is not counted."""
    control = Control(Policy.from_threshold(4, 2, 16), 3, IDENTITY)
    plain(control, 5)

    control.idle()

    assert not control.begin(4).off
    assert control.switches == 0


def test_ranks_that_differ_are_an_error(control: Control) -> None:
    """Equal histories agree; one step more on one rank does not."""
    other = Control(Policy.from_threshold(4, 4, 0), DRAFT_TOKENS - 1, IDENTITY)
    speculative(control, 2)
    speculative(other, 2)
    assert not control.disagree([control.fingerprint(), other.fingerprint()])

    plain(other, 5)

    assert control.disagree([control.fingerprint(), other.fingerprint()])
    assert "ranks disagree" in str(control.last_error)


def test_snapshot_has_the_keys_that_programs_rely_on(control: Control) -> None:
    """The block of /server_info is a contract."""
    plain(control, 5)
    keys = set(control.snapshot())

    assert keys >= {
        *("worker", "module", "version", "source_hash", "threshold", "resume_at", "min_dwell", "policy_id"),
        *("last_error", "steps_on", "steps_off", "switches", "ungated", "by_batch"),
    }
    assert set(row(control, 5, "off")) == {"batch", "state", "steps", "tokens", "seconds"}


def updated(control: Control, update: dict[str, object]) -> None:
    """As the scheduler does it."""
    policy = control.prepare(update)
    assert policy is not None
    control.apply(policy, update)


def decode(control: Control, batch: int) -> Step:
    """One step that does what the gate asks, with its tokens."""
    step = control.begin(batch, 100 * batch)
    if not step.off:
        control.saw_draft()
    control.saw_target(batch if step.off else batch * DRAFT_TOKENS)
    control.end(step)
    step.add_tokens(batch if step.off else 2 * batch)
    return step


def test_the_autopilot_is_told_of_every_step_by_what_it_was(control: Control, tmp_path: Path) -> None:
    """Batch, context, tokens and state reach the trace; flipped steps are marked."""
    trace = Trace(tmp_path / "t")
    control.connect(Order(), trace)
    for _ in range(200):
        decode(control, 4)
    trace.close()
    records = unpacked((tmp_path / "t").read_bytes().partition(b"\n")[2])

    assert len(records) == 199  # the last one's time is still running
    assert {(record.batch, record.context) for record in records} == {(4, 400)}
    flipped = [record for record in records if record.flipped]
    assert flipped
    assert all(record.drafts == 0 and record.tokens == 4 for record in flipped)
    assert isinstance(control.gate, Autopilot)
    assert control.gate.evidence.accept.mean == 2.0
    assert control.snapshot()["autopilot"]


def test_a_threshold_from_the_operator_takes_the_wheel(control: Control) -> None:
    """And the autopilot's own key gives it back, from that threshold on."""
    control.connect(Order(bounds=Bounds(0, 64)), None)
    updated(control, {THRESHOLD_KEY: 20})
    assert isinstance(control.gate, Autopilot)
    assert (control.gate.order.mode, control.gate.policy.threshold) == (Mode.HELD, 20)

    updated(control, {MODE_KEY: 1, MAX_KEY: 80})
    assert control.gate.order == Order(Mode.AUTO, Bounds(0, 80))
    assert control.gate.plan.threshold == 20


def test_the_autopilot_can_be_switched_on_live(control: Control) -> None:
    """A server that was started with a fixed threshold can tune from there."""
    assert "autopilot" not in control.snapshot()
    updated(control, {MODE_KEY: 2})

    assert isinstance(control.gate, Autopilot)
    assert control.gate.order.mode is Mode.DRY_RUN
    assert control.gate.policy.threshold == 4


def test_an_unfit_order_is_refused_with_all_that_came_with_it(control: Control) -> None:
    """Nothing changes, and the reason names the key."""
    assert control.prepare({THRESHOLD_KEY: 8, MODE_KEY: 7}) is None
    assert control.gate.policy.threshold == 4
    assert MODE_KEY in str(control.last_error)


def test_draft_sync_is_set_live_beside_the_policy_or_alone() -> None:
    """Alone it leaves the gate with its history; what is unfit changes nothing that came with it."""
    control = Control(Policy.from_threshold(4, 2, 16), 3, IDENTITY)
    control.sync = DraftSync(16, 1, 16)
    gate, before = control.gate, control.fingerprint()

    updated(control, {SYNC_KEY: 8})
    assert control.gate is gate
    assert {"draft_sync_steps": 8, "draft_sync_most": 16, "draft_syncs": 0}.items() <= control.snapshot().items()
    assert control.disagree([before, control.fingerprint()])

    assert control.prepare({SYNC_KEY: 17, THRESHOLD_KEY: 9}) is None
    assert (control.sync.steps, control.gate.policy.threshold) == (8, 4)
    assert "start the server with" in str(control.last_error)

    updated(control, {SYNC_KEY: 4, THRESHOLD_KEY: 9})
    assert (control.sync.steps, control.gate.policy.threshold, control.last_error) == (4, 9, None)


def test_draft_sync_alone_leaves_the_autopilot_at_the_wheel() -> None:
    """It says nothing of the threshold."""
    control = Control(Policy.from_threshold(4), 3, IDENTITY)
    control.sync = DraftSync(16, 1, 16)
    control.connect(Order(), None)

    updated(control, {SYNC_KEY: 8})

    assert isinstance(control.gate, Autopilot)
    assert control.gate.order.mode is Mode.AUTO


def test_a_worker_without_a_ring_refuses_draft_sync(control: Control) -> None:
    """Spec v1 has nothing to defer, and shows nothing of it."""
    assert control.prepare({SYNC_KEY: 4}) is None
    assert "at every step; leave it out" in str(control.last_error)
    assert "draft_syncs" not in control.snapshot()


def test_ranks_that_do_not_lead_keep_no_records() -> None:
    """They follow; their times are not asked for."""
    control = Control(Policy.from_threshold(4), DRAFT_TOKENS - 1, IDENTITY)
    control.connect(Order(), None, exchange=lambda numbers: numbers, leading=False)
    for _ in range(300):
        decode(control, 4)

    assert isinstance(control.gate, Autopilot)
    assert control.gate.evidence.now_s == 0.0


def test_an_idle_server_has_its_trace_on_disk(tmp_path: Path) -> None:
    """Whoever looks at a quiet server misses no step."""
    trace = Trace(tmp_path / "t")
    control = Control(Policy.from_threshold(4), DRAFT_TOKENS - 1, IDENTITY)
    control.connect(None, trace)
    for _ in range(3):
        decode(control, 4)
    control.idle()

    assert (tmp_path / "t").read_bytes().count(b"\n") >= 1
    assert len((tmp_path / "t").read_bytes().partition(b"\n")[2]) == 3 * RECORD.size
    trace.close()
