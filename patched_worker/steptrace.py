"""One compact record per decode step, written to a file.

The file is one line of JSON (schema, number of draft steps, what made it) and then RECORD after RECORD, little-endian,
22 bytes each, until the end. `tuner.replay` reads it. Writing stops at MAX_FILE_BYTES; a write that fails ends the
file and never the server. SGLang ends its schedulers with SIGKILL, so that nothing can be written at the end: records
wait for few others, and what is lost is less than FLUSH_STEPS of them.
"""

from __future__ import annotations

import json
import logging
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

logger = logging.getLogger(__name__)

# Format history. A reader refuses another number.
#   1  first format
#   2  requests in the prefills
TRACE_SCHEMA = 2
TRACE_KIND = "specpivot-steps"
RECORD = struct.Struct("<HBBIIffH")  # batch, flags, draft steps, context, tokens, seconds, prefill_s, joined
FLIPPED, AFTER_IDLE = 1, 2
FLUSH_STEPS = 32  # that one write takes; a larger write makes its step late
MAX_FILE_BYTES = 1 << 28
_MAX_REQUESTS, _MAX_COUNT = 0xFFFF, 0xFFFFFFFF


@dataclass(slots=True)
class StepRecord:
    """One decode step. Not frozen: the worker fills it in as it learns of it, because a second object costs time.

    Attributes:
        batch: requests in it.
        context: sum of their sequence lengths before it, in tokens; 0 where the worker does not know.
        drafts: draft steps; 0 is a plain step.
        flipped: whether it ran in the other state than the policy's own, to measure that one.
        after_idle: whether the server was idle before it.
        tokens: output tokens; less than 0 until they are known.
        seconds: from its start to the next step, prefill or idleness; less than 0 until it is known.
        prefill_s: seconds of the prefills between the step before and this one; 0: there was none.
        joined: requests in those prefills, one that took several of them once.
    """

    batch: int
    context: int
    drafts: int
    flipped: bool
    after_idle: bool
    tokens: int
    seconds: float
    prefill_s: float
    joined: int = 0


def packed(record: StepRecord) -> bytes:
    """The record's bytes; what does not fit its field is cut to the largest that does."""
    flags = (FLIPPED if record.flipped else 0) | (AFTER_IDLE if record.after_idle else 0)
    batch, joined = min(record.batch, _MAX_REQUESTS), min(record.joined, _MAX_REQUESTS)
    context = min(record.context, _MAX_COUNT)
    return RECORD.pack(batch, flags, record.drafts, context, record.tokens, record.seconds, record.prefill_s, joined)


def unpacked(body: bytes | bytearray | memoryview) -> list[StepRecord]:
    """The records in `body`, a multiple of RECORD.size bytes long."""
    return [
        StepRecord(batch, context, drafts, bool(flags & FLIPPED), bool(flags & AFTER_IDLE), tokens, seconds, *prefills)
        for batch, flags, drafts, context, tokens, seconds, *prefills in RECORD.iter_unpack(body)
    ]


class Trace:
    """The file.

    Args:
        file: where to write.
        header: what the file's first line says besides the schema.

    Raises:
        OSError: it cannot be written.
    """

    def __init__(self, file: Path, header: dict[str, object] | None = None) -> None:
        self._unwritten: list[StepRecord] = []
        self._written = 0
        self._out: BinaryIO | None = _opened(file, header or {})

    def append(self, record: StepRecord) -> None:
        """Keep one more step."""
        if self._out is not None:
            self._unwritten.append(record)
            if len(self._unwritten) >= FLUSH_STEPS:
                self.flush()

    def flush(self) -> None:
        """Hand what is not written yet to the operating system."""
        if self._out is None or not self._unwritten:
            return
        body, self._unwritten = b"".join(map(packed, self._unwritten)), []
        try:
            self._out.write(body)
        except OSError as error:
            self._end(f"cannot be written: {error}")
            return
        self._written += len(body)
        if self._written > MAX_FILE_BYTES:
            self._end(f"has reached {MAX_FILE_BYTES} bytes")

    def close(self) -> None:
        """Write the rest and close the file."""
        self.flush()
        if self._out is not None:
            self._out.close()
            self._out = None

    def _end(self, why: str) -> None:
        logger.warning("specpivot: the step trace %s; no more is recorded in it", why)
        if self._out is not None:
            self._out.close()
        self._out = None


def _opened(file: Path, header: dict[str, object]) -> BinaryIO:
    # unbuffered: what was handed over is in the file, also when the process is killed
    out = file.open("wb", buffering=0)
    out.write(json.dumps({"kind": TRACE_KIND, "schema": TRACE_SCHEMA, **header}).encode() + b"\n")
    return out
