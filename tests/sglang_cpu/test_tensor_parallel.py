"""Two tensor-parallel ranks: they switch on the same step, and say so if they would not."""

from __future__ import annotations

import json

from tests.sglang_cpu.servers import NUM_STEPS
from tests.sglang_cpu.slot import Patched
from tests.sglang_cpu.traffic import Answer, answers, differences, streams

STREAMS = 12
Step = tuple[int, int, int, int]  # requests, draft steps asked for, target tokens, rounds of proposals


def _steps_of_each_rank(patched: Patched) -> list[list[Step]]:
    """What each scheduler process has written down itself."""
    files = sorted(patched.probes.glob("steps-*.jsonl"))
    return [[tuple(json.loads(line)) for line in file.read_text().splitlines()] for file in files]


def test_ranks_switch_on_the_same_step(two_ranks: Patched, reference: dict[str, list[Answer]]) -> None:
    """The tokens are one rank's; each rank did the same steps in the same order, off above the threshold; both agree.

    Then the negative control: a policy that does not reach one rank is seen at the next look.
    """
    two_ranks.set_policy(4, resume_at=4)

    replies = two_ranks.server.generate_all(streams()[:STREAMS], at_once=8)

    assert differences(answers(replies), reference["streams"][:STREAMS]) == []
    state = two_ranks.state()  # all ranks take part in the answer: the slower one, too, has ended its last step then
    first, second = _steps_of_each_rank(two_ranks)
    assert first == second
    for batch, asked, tokens, proposals in first:
        on = batch <= 4
        assert (asked, tokens, proposals) == (NUM_STEPS * on, batch * (NUM_STEPS * on + 1), int(on))
    assert 2 < sum(asked == 0 for _, asked, _, _ in first) < len(first) - 2
    assert (state["ranks"], state["ranks_agree"], state["ungated"], state["last_error"]) == (2, True, 0, None)
    two_ranks.server.assert_healthy()

    two_ranks.set_policy(9, deaf_rank=1)

    state = two_ranks.state()
    assert state["ranks_agree"] is False
    assert "ranks disagree" in str(state["last_error"])
    assert any("tensor-parallel ranks disagree" in line for line in two_ranks.server.faults())
