"""The self-check passes a server whose states agree, and names what parts too early."""

from __future__ import annotations

from patched_worker import selfcheck
from patched_worker.selfcheck import MUST_AGREE, OUTPUT_TOKENS, PROMPTS, Server


class Answering(Server):
    """A server that deviates from some token on, while plain.

    Args:
        deviates_at: index of the first wrong token while plain; None never does.
    """

    def __init__(self, deviates_at: int | None) -> None:
        super().__init__("http://nowhere", None)
        self.deviates_at = deviates_at
        self.thresholds: list[int] = []

    def answers(self) -> list[list[int]]:
        right = [[len(prompt) + i for i in range(OUTPUT_TOKENS)] for prompt in PROMPTS]
        if self.thresholds[-1] == 0 and self.deviates_at is not None:
            right[1][self.deviates_at] += 1
        return right

    def set_policy(self, threshold: int, resume_at: int = -1, dwell: int = 0) -> None:
        self.thresholds.append(threshold)


def test_states_that_agree_pass() -> None:
    """On is asked first, then off, and the policy is switched many times."""
    server = Answering(None)

    assert selfcheck.disagreement(server) is None
    assert server.thresholds[:2] == [-1, 0]
    assert server.thresholds.count(0) > 10


def test_an_early_difference_is_named() -> None:
    """Which prompt, in which state."""
    fault = selfcheck.disagreement(Answering(MUST_AGREE - 1))

    assert fault is not None
    assert fault.startswith("prompt 1, off")


def test_late_differences_are_rounding() -> None:
    """A decode and a verify kernel need not round alike."""
    assert selfcheck.disagreement(Answering(MUST_AGREE)) is None
