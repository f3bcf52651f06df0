"""When the mock server really wrote, which is what a client's figures are compared with."""

from __future__ import annotations

import json
from array import array

from harness.transport import monotonic


class Stamps:
    """When chunks were really written."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.ttft_s = array("d")
        self.gap_s = array("d")
        self.requests = 0
        self.first_s = self.last_s = monotonic()
        self.in_flight = 0
        self.in_flight_max = 0
        self.disconnects = 0

    def as_json(self) -> bytes:
        body = {
            "requests": self.requests,
            "in_flight_max": self.in_flight_max,
            "disconnects": self.disconnects,
            "first_s": self.first_s,
            "last_s": self.last_s,
            "chunks": len(self.gap_s) + len(self.ttft_s),
            "ttft_p50_s": _quantile(self.ttft_s, 0.5),
            "ttft_p99_s": _quantile(self.ttft_s, 0.99),
            "gap_p50_s": _quantile(self.gap_s, 0.5),
            "gap_p99_s": _quantile(self.gap_s, 0.99),
        }
        return json.dumps(body).encode()


def _quantile(values: array[float], share: float) -> float | None:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else None
