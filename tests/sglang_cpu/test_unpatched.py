"""The kit itself, on servers that are not patched: without these, equal tokens further on would prove little."""

from __future__ import annotations

from tests.sglang_cpu.servers import NUM_STEPS, Arrangement, Server
from tests.sglang_cpu.traffic import Answer, answers, differences, streams

CLASSES = {"v1": "EAGLEWorker", "v2": "EAGLEWorkerV2"}


def test_static_eagle_runs_the_class_of_its_arrangement(unpatched: Server, arrangement: Arrangement) -> None:
    """Each release and its arguments select the worker class that the arrangement names."""
    made = [line.split()[-1] for line in unpatched.log_text().splitlines() if line.startswith("probe: worker ")]

    assert made == [CLASSES[arrangement.worker]]


def test_static_eagle_is_greedy_equal_to_no_speculation(
    reference: dict[str, list[Answer]], accepted: list[float], unpatched: Server
) -> None:
    """Upstream's own speculation gives the baseline's tokens, and some, not all, of its proposals are accepted."""
    replies = unpatched.generate_all(streams())

    assert differences(answers(replies), reference["streams"]) == []
    assert 1.0 < sum(accepted) / len(accepted) < NUM_STEPS + 1
