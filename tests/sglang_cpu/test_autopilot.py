"""The autopilot inside the real SGLang: it measures, it leaves no trace in the tokens, and ranks follow one plan."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.sglang_cpu import servers
from tests.sglang_cpu.machines import Machine
from tests.sglang_cpu.slot import Patched
from tests.sglang_cpu.traffic import Answer, answers, differences, greedy, prompt, streams

STEADY_TOKENS = 400
RANKS = Path(__file__).with_name("two_ranks.py")


@pytest.mark.arrangements("0.5.9-v1", "0.5.16-v2")
def test_blocks_in_both_states_and_the_same_tokens(patched: Patched, reference: dict[str, list[Answer]]) -> None:
    """Switched on live: steps are flipped, tokens per step are counted, and clients get what they always get."""
    patched.set_policy(8)
    update = {"speculative_autopilot": 1, "speculative_auto_max": 12}
    patched.server.post("/set_internal_state", {"server_args": update})

    replies = patched.server.generate_all(streams())
    assert differences(answers(replies), reference["streams"]) == []
    # at one batch for long enough to compare the states
    steady = [{"text": prompt(number), "sampling_params": greedy(STEADY_TOKENS)} for number in range(4)]
    patched.server.generate_all(steady)

    found = patched.state()["autopilot"]
    assert (found["state"], found["bounds"]) == ("auto", [0, 12])
    assert found["threshold"] <= 12
    assert found["flipped_steps"] > 0
    assert found["evidence"]["comparisons"] > 0
    assert 1.0 < found["evidence"]["accept_len"] <= servers.NUM_STEPS + 1
    assert found["evidence"]["mean_context"] > 1

    patched.set_policy(-1)
    assert patched.state()["autopilot"]["state"] == "held"


@pytest.mark.only_full
@pytest.mark.arrangements("0.5.16-v2")
def test_ranks_flip_the_same_steps(two_ranks: Patched, reference: dict[str, list[Answer]]) -> None:
    """Below the threshold some steps are plain, on both ranks the same ones, and the tokens stay."""
    two_ranks.set_policy(12)
    two_ranks.server.post("/set_internal_state", {"server_args": {"speculative_autopilot": 1}})

    replies = two_ranks.server.generate_all(streams(), at_once=4)

    assert differences(answers(replies), reference["streams"]) == []
    first, second = (
        [json.loads(line) for line in file.read_text().splitlines()]
        for file in sorted(two_ranks.probes.glob("steps-*.jsonl"))
    )
    assert first == second
    assert 0 < sum(asked == 0 for _, asked, _, _ in first) < len(first)
    assert two_ranks.state()["ranks_agree"] is True


def test_two_ranks_over_gloo_follow_one_plan(machine: Machine) -> None:
    """Their clocks differ, and the second one's are wild; every step is decided alike all the same."""
    done = subprocess.run(
        [str(machine.environment("0.5.16").python), str(RANKS), str(servers.free_port())],
        env=servers.variables(machine, "0.5.16"),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, second = (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))

    assert first["decisions"] == second["decisions"]
    assert first["moved"] == second["moved"] > 0
    assert first["policy_id"] == second["policy_id"]
