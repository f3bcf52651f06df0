"""The kit itself, on servers that are not patched: without these, equal tokens further on would prove little."""

from __future__ import annotations

from tests.sglang_cpu.references import References
from tests.sglang_cpu.servers import NUM_STEPS, Arrangement, Server
from tests.sglang_cpu.traffic import answers, streams

CLASSES = {"v1": "EAGLEWorker", "v2": "EAGLEWorkerV2"}


def test_static_eagle_serves_with_the_class_of_its_arrangement(unpatched: tuple[Arrangement, Server]) -> None:
    """Each release and its arguments select the worker class that the arrangement names."""
    arrangement, server = unpatched

    made = [line.split()[-1] for line in server.log_text().splitlines() if line.startswith("probe: worker ")]

    assert made == [CLASSES[arrangement.worker]]


def test_static_eagle_is_greedy_equal_to_no_speculation(
    unpatched: tuple[Arrangement, Server], references: References
) -> None:
    """Upstream's own speculation gives the baseline's tokens, and some, not all, of its proposals are accepted."""
    arrangement, server = unpatched

    replies = server.generate_all(streams())

    assert answers(replies) == references.of(arrangement.release)
    accepted = [reply["meta_info"]["spec_accept_length"] for reply in replies]
    assert 1.0 < sum(accepted) / len(accepted) < NUM_STEPS + 1
