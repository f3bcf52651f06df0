"""Probes on SGLang's own calls: what is counted is what ran."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from patched_worker.control import Control


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


_output_ids = attrgetter("output_ids")
_finished_len = attrgetter("finished_len")


def output_tokens(reqs: list[Any]) -> int:
    """Output tokens of these requests that their clients get: what follows a stop is cut off.

    Called twice per decode step with every running request, hence the maps.
    """
    total = sum(map(len, map(_output_ids, reqs)))
    if list(map(_finished_len, reqs)).count(None) < len(reqs):
        total -= sum(len(req.output_ids) - req.finished_len for req in reqs if req.finished_len is not None)
    return total
