"""Positions whose draft KV is not written yet.

A plain step leaves one such position per request: the draft's row at position p needs the target's hidden state at p
and the token at p + 1. Both are kept in a ring, addressed by the request's row in `req_to_token` and by p modulo the
ring's length, so that one draft-extend can bring many steps up at once. How many are pending is known on the host,
because every plain step adds exactly one: nothing here waits for the GPU.
"""

from __future__ import annotations

from typing import Any


class Pending:
    """A ring of (token, hidden state) per request.

    Args:
        rows: number of rows of `req_to_token`.
        length: positions kept per request; a catch-up writes this many.
        device: where the hidden states are.
    """

    def __init__(self, rows: int, length: int, device: Any) -> None:
        import torch

        self.length = length
        self.counts = [0] * rows
        self._device = device
        self._offsets = torch.arange(length, dtype=torch.int64, device=device)
        self._tokens = torch.zeros(rows * length, dtype=torch.int64, device=device)
        self._hidden: Any = None  # its width is the target's choice: made at the first plain step

    def add(self, rows: Any, host_rows: list[int], positions: Any, tokens: Any, hidden: Any) -> None:
        """Keep one position of each request.

        Args:
            rows: rows of `req_to_token`, on the device.
            host_rows: the same on the host.
            positions: the position that the target has just written, on the device.
            tokens: the tokens sampled there.
            hidden: the target's hidden states there.
        """
        if self._hidden is None:
            self._hidden = hidden.new_zeros((len(self._tokens), hidden.shape[-1]))
        cells = rows * self.length + positions % self.length
        self._tokens[cells] = tokens.to(self._tokens.dtype)
        self._hidden[cells] = hidden
        for row in host_rows:
            self.counts[row] += 1

    def clear(self, host_rows: list[int]) -> None:
        """Forget these requests' positions: they were written, or a prefill is about to."""
        for row in host_rows:
            self.counts[row] = 0

    def most(self, host_rows: list[int]) -> int:
        """The largest number pending among these requests."""
        return max((self.counts[row] for row in host_rows), default=0)

    def counts_of(self, host_rows: list[int]) -> Any:
        """Numbers pending, as an int64 tensor on the host."""
        import torch

        return torch.tensor([self.counts[row] for row in host_rows], dtype=torch.int64)

    def positions(self, start: Any) -> Any:
        """The `length` positions from `start` on, one line per request."""
        return start.unsqueeze(1) + self._offsets

    def window(self, rows: Any, start: Any) -> tuple[Any, Any]:
        """Tokens and hidden states of `length` positions from `start` on, flat; stale where none is pending."""
        cells = (rows.unsqueeze(1) * self.length + self.positions(start) % self.length).reshape(-1)
        return self._tokens[cells], self._hidden[cells]
