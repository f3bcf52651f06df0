"""After how many plain steps spec v2 brings the draft's KV up: at start, live, and in the read-back.

As many steps as there are draft tokens take the shape of SGLang's own draft-extend, with its CUDA graph where there is
one. Any other number is one eager extend: more steps read the draft's weights less often, and keep more hidden states.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from patched_worker.settings import DRAFT_SYNC_STEPS, Refusal

SYNC_KEY = "speculative_draft_sync_steps"
RAGGED_BACKENDS = ("TritonAttnBackend", "FlashAttentionBackend")  # as read: each request by its own number of tokens


@dataclass(slots=True)
class DraftSync:
    """See the module.

    Attributes:
        steps: plain steps until the draft's KV is brought up.
        least, most: what `steps` may be set to while the server runs; `most` is the ring's length.
        count: how often the KV was brought up, in batches.
    """

    steps: int
    least: int
    most: int
    count: int = 0

    @classmethod
    def of(cls, steps: int | None, draft_tokens: int, backend: Any) -> DraftSync:
        """As the operator asked for it.

        Args:
            steps: None for the number of draft tokens.
            draft_tokens: the server's.
            backend: the draft's attention backend.

        Raises:
            Refusal: other steps than draft tokens, with a backend that may extend all requests by the same number.
        """
        fa_version = getattr(backend, "fa_impl_ver", 3)  # the class of fa3 serves fa4 as well
        name = type(backend).__name__ + ("" if fa_version == 3 else f" of fa{fa_version}")
        if name in RAGGED_BACKENDS:
            return cls(steps or draft_tokens, 1, steps or draft_tokens)
        if steps not in (None, draft_tokens):
            raise Refusal(
                f"{DRAFT_SYNC_STEPS}={steps} takes triton or fa3 attention, not {name}; "
                f"use one of these, or leave it out ({draft_tokens})"
            )
        return cls(draft_tokens, draft_tokens, draft_tokens)

    def updated(self, update: Mapping[str, object]) -> int:
        """The steps after an update on the wire.

        Raises:
            ValueError: an unfit value.
        """
        value = update.get(SYNC_KEY, self.steps)
        if type(value) is not int or not self.least <= value <= self.most:
            raise ValueError(
                f"{SYNC_KEY} {value!r} is not from {self.least} to {self.most}; "
                f"start the server with {DRAFT_SYNC_STEPS} as large as you need"
            )
        return value

    def snapshot(self) -> dict[str, int]:
        """The part of the `specpivot` block."""
        return {"draft_sync_steps": self.steps, "draft_sync_most": self.most, "draft_syncs": self.count}
