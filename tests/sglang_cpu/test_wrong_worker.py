"""A patch of the class that does not run, and one that does not take, are impossible to miss: negative controls."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from tests.sglang_cpu import servers
from tests.sglang_cpu.servers import Arrangement, Wanted
from tests.sglang_cpu.slot import Patched, Slot
from tests.sglang_cpu.traffic import greedy, prompt


def test_refused_policy_changes_nothing(wrong: Wanted, slot: Slot, probes: Path, arrangement: Arrangement) -> None:
    """A refused update answers false, keeps the policy, and says why."""
    patched = Patched(arrangement, slot.use(wrong), probes)
    patched.set_policy(7)
    before = patched.state()

    for update in ({"threshold": -5}, {"threshold": 3, "resume": 9}, {"dwell": -1}):
        keys = {"threshold": "disable_batch_threshold", "resume": "resume_batch_threshold", "dwell": "min_dwell_steps"}
        body = {f"speculative_{keys[name]}": value for name, value in update.items()}
        assert patched.server.post("/set_internal_state", {"server_args": body}) in ([False], False)
        after = patched.state()
        assert after["policy_id"] == before["policy_id"]
        assert "refused" in str(after["last_error"])


def test_step_that_is_not_gated_is_counted_and_logged(
    wrong: Wanted, slot: Slot, probes: Path, arrangement: Arrangement
) -> None:
    """The gate says off, and upstream's step runs all the same: counted, logged, and a fault of the log."""
    patched = Patched(arrangement, slot.use(wrong), probes)
    patched.set_policy(0)
    patched.probe(ungate=True)

    patched.server.generate(text=prompt(0), sampling_params=greedy(12))

    state = patched.state()
    assert state["ungated"] > 0
    assert "gated step" in str(state["last_error"])
    assert any("gated step" in line for line in patched.server.faults())
    slot.empty()


def test_server_of_another_class_does_not_start(wrong: Wanted, slot: Slot, models: Path, logs: Path) -> None:
    """The scheduler comes up with upstream's class: the server ends, and says which class ran."""
    slot.empty()
    worse = replace(wrong, variables=(*wrong.variables, ("SPECPIVOT_TEST_WRONG_CLASS", "1")))
    server = servers.launch(slot.machine, worse, models, logs / f"{wrong.name}.log")
    try:
        deadline = time.monotonic() + slot.machine.start_timeout_s
        while server.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.2)
        assert server.process.poll() not in (None, 0)
        assert "not the patched worker" in server.log_text()
        assert "ready to roll" not in server.log_text()
    finally:
        servers.stop(server)
