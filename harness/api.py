"""The three APIs that can carry load, and one request made for them.

Apart from harness.workload so that a client process starts without numpy.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Api = Literal["generate", "completions", "chat"]

API_PATHS: dict[Api, str] = {
    "generate": "/generate",
    "completions": "/v1/completions",
    "chat": "/v1/chat/completions",
}


class PlannedRequest(msgspec.Struct, frozen=True):
    """One request, ready to be sent.

    Attributes:
        index: position in the point's list.
        body: the encoded JSON body.
        prompt_tokens: how many tokens the server must count in the prompt; None where only it can know.
        output_tokens: how many tokens it must generate; None where it may stop earlier.
        due_s: when an open loop wants it sent, on the point's clock; None in a closed loop.
    """

    index: int
    body: bytes
    prompt_tokens: int | None
    output_tokens: int | None
    due_s: float | None = None
