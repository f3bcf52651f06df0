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
        length: positions kept per request, the most that may be pending.
        device: where the hidden states are.
    """

    def __init__(self, rows: int, length: int, device: Any) -> None:
        import torch

        self.length = length
        self.counts = [0] * rows
        self._device = device
        self._tokens = torch.zeros(rows * length, dtype=torch.int64, device=device)
        self._hidden: Any = None

    def allocate(self, like: Any) -> None:
        """Make room for hidden states, once.

        Args:
            like: any of the target's; which of its layers they come from, and so their width, is the target's choice.
        """
        if self._hidden is None:
            self._hidden = like.new_zeros((len(self._tokens), like.shape[-1]))

    def add(self, rows: Any, host_rows: list[int], positions: Any, tokens: Any, hidden: Any) -> None:
        """Keep one position of each request.

        Args:
            rows: rows of `req_to_token`, on the device.
            host_rows: the same on the host.
            positions: the position that the target has just written, on the device.
            tokens: the tokens sampled there.
            hidden: the target's hidden states there.
        """
        cells = self.cells(rows, positions)
        self._tokens[cells] = tokens.to(self._tokens.dtype)
        self._hidden[cells] = hidden
        for row in host_rows:
            self.counts[row] += 1

    def clear(self, host_rows: list[int]) -> None:
        """Forget these requests' positions: they were written, or a prefill is about to."""
        for row in host_rows:
            self.counts[row] = 0

    def of(self, host_rows: list[int]) -> list[int]:
        """Numbers pending."""
        return [self.counts[row] for row in host_rows]

    def numbers(self, values: list[int]) -> Any:
        """Whole numbers of the host as an int64 tensor on the device."""
        import torch

        return torch.tensor(values, dtype=torch.int64).to(self._device, non_blocking=True)

    def places(self, start: Any, widths: Any, total: int) -> tuple[Any, Any]:
        """Whose each of the `widths[i]` positions from `start[i]` on is, and which one it is: both flat.

        Args:
            start: first position per request, on the device.
            widths: positions per request, on the device.
            total: their sum, which torch would ask the GPU for.
        """
        import torch

        request = torch.repeat_interleave(widths, output_size=total)
        before = widths.cumsum(0) - widths
        return request, torch.arange(total, device=self._device) + (start - before)[request]

    def cells(self, rows: Any, positions: Any) -> Any:
        """Where the ring keeps these positions of these rows."""
        return rows * self.length + positions % self.length

    def read(self, cells: Any) -> tuple[Any, Any]:
        """Tokens and hidden states of these cells; stale where nothing is pending."""
        return self._tokens[cells], self._hidden[cells]
