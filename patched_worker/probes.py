"""Probes on SGLang's own calls: what is counted is what ran."""

from __future__ import annotations

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


def output_tokens(reqs: list[Any]) -> int:
    """Output tokens of these requests that their clients get: what follows a stop is cut off."""
    return sum(len(req.output_ids) if req.finished_len is None else req.finished_len for req in reqs)
