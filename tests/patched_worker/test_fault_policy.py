"""Hostile policies: whatever /set_internal_state or a policy file brings, the worker holds a rule that it can serve."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from patched_worker.control import KEYS, Control, Identity
from patched_worker.policy import Gate, Policy
from patched_worker.refusals import Refusal
from patched_worker.settings import policy_from_file

NUM_STEPS = 3
IDENTITY = Identity("sglang.Worker", "patched_worker.eagle_v2", "0.5.16", "0123456789ab")
FUZZED = settings(
    max_examples=400, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
NUMBERS = st.integers(-3, 40) | st.integers() | st.floats() | st.sampled_from([10**400, 2**63, 1e308, -0.0])
VALUES = NUMBERS | st.none() | st.booleans() | st.text(max_size=8) | st.lists(st.integers(), max_size=2)
UPDATES = st.dictionaries(st.sampled_from(sorted(KEYS)) | st.text(max_size=8), VALUES, max_size=6)


def check(policy: Policy) -> None:
    """The rule can be served: any batch gets a number of draft steps that the server has, in any order."""
    gate = Gate(policy, NUM_STEPS)
    assert all(0 <= gate.decide(batch, batch * 100) <= NUM_STEPS for batch in (1, 300, 2, 17, 1, 10**6, 1))
    assert isinstance(policy.policy_id, str)


@FUZZED
@given(updates=st.lists(UPDATES, min_size=1, max_size=4))
def test_any_update_is_applied_whole_or_refused(updates: list[Mapping[str, Any]]) -> None:
    """A refusal keeps the policy and says why, in few words; what is applied can be served and written as JSON."""
    control = Control(Policy.from_threshold(8), NUM_STEPS, IDENTITY)
    for update in updates:
        held = control.gate.policy
        policy = control.prepare(update)
        assert control.gate.policy == held
        if policy is None:
            assert "refused" in str(control.last_error)
        else:
            control.apply(policy)
            check(policy)
            assert control.last_error is None
        assert len(json.dumps(control.snapshot(), allow_nan=False)) < 20_000
        control.fingerprint()


@pytest.mark.parametrize(
    "value", [float("inf"), float("nan"), 10**400, "8", None, [8], {"a": 1}, "x" * 10**6], ids=lambda v: repr(v)[:9]
)
def test_no_value_ends_the_scheduler(value: Any) -> None:
    """Each key with what json.loads makes of 1e999, of a long text and of no number: no exception, a short reason."""
    for key in sorted(KEYS):
        control = Control(Policy.from_threshold(8), NUM_STEPS, IDENTITY)
        policy = control.prepare({key: value})
        if policy is None:
            assert len(str(control.last_error)) < 1000
        else:
            check(policy)


FIELDS = st.sampled_from(["threshold", "resume_at", "min_dwell_steps", "ladder"])
RUNGS = st.lists(
    st.dictionaries(st.sampled_from(["threshold", "resume_at", "num_steps", "max_mean_context", "x"]), VALUES),
    max_size=3,
)


@FUZZED
@given(document=st.dictionaries(FIELDS, VALUES | RUNGS) | VALUES)
def test_any_policy_file_is_a_rule_or_a_refusal(tmp_path: Path, document: Any) -> None:
    """Before a server starts with it."""
    file = tmp_path / "recommendation.json"
    file.write_text(json.dumps(document))
    refused = False
    try:
        policy = policy_from_file(file)
    except Refusal:
        refused = True
    if not refused:
        check(policy)
        assert all(isinstance(number, int | None) for number in (policy.threshold, policy.resume_at, policy.min_dwell))


@pytest.mark.parametrize(
    "body", [b"", b"[" * 100_000, b'{"a":' * 100_000, b"\xff", b"[]", b"5", b'{"threshold": 1e999}']
)
def test_what_is_no_policy_file_is_refused(tmp_path: Path, body: bytes) -> None:
    """Garbage is not a traceback."""
    (tmp_path / "p.json").write_bytes(body)
    with pytest.raises(Refusal):
        policy_from_file(tmp_path / "p.json")
