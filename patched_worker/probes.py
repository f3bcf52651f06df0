"""Probes on SGLang's own calls: what is counted is what ran."""

from __future__ import annotations

from typing import Any

from patched_worker.control import Control

CONTEXT_SAMPLE = 8  # requests at most: a step must not take longer for a figure that changes slowly


def watch_target(model_runner: Any, control: Control) -> None:
    """Report every decode forward of the target model, speculative or plain.

    `ModelRunner.forward` is the one door to it, with and without CUDA graphs; the batch it gets is not padded yet.
    """
    original = model_runner.forward

    def forward(forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
        mode = forward_batch.forward_mode
        if mode.is_target_verify() or mode.is_decode():
            control.saw_target(len(forward_batch.input_ids))
        return original(forward_batch, *args, **kwargs)

    model_runner.forward = forward


def watch_draft(owner: Any, control: Control, method: str = "draft") -> None:
    """Report every round of proposals: a call of `owner.draft`."""
    original = getattr(owner, method)

    def draft(*args: Any, **kwargs: Any) -> Any:
        control.saw_draft()
        return original(*args, **kwargs)

    setattr(owner, method, draft)


class TokenCount:
    """Output tokens since the step before, of the requests of one batch after another.

    While the same requests run, what they had before a step is what they had after the last one.
    """

    def __init__(self) -> None:
        self._reqs: list[Any] = []
        self._tokens = 0

    def before(self, reqs: list[Any]) -> None:
        """Call before a step's tokens are appended."""
        if reqs != self._reqs:  # compares identities
            self._reqs, self._tokens = list(reqs), output_tokens(reqs)

    def after(self) -> int:
        """The tokens appended since."""
        tokens, before = output_tokens(self._reqs), self._tokens
        self._tokens = tokens
        return tokens - before


def output_tokens(reqs: list[Any]) -> int:
    """Output tokens of these requests that their clients get: what follows a stop is cut off."""
    return sum(len(req.output_ids) if req.finished_len is None else req.finished_len for req in reqs)


def context_of(batch: Any) -> int:
    """Sum of the sequence lengths of a batch; 0 where the host knows nothing of them.

    The overlap scheduler of newer releases keeps no lengths on the host: there it is estimated from some requests.
    """
    lengths = getattr(batch, "seq_lens_cpu", None)
    if lengths is not None:
        return int(lengths.sum())
    reqs = getattr(batch, "reqs", None)
    if not reqs:
        return 0
    some = reqs[:: len(reqs) // CONTEXT_SAMPLE + 1]
    return sum(len(req.origin_input_ids) + len(req.output_ids) for req in some) * len(reqs) // len(some)
