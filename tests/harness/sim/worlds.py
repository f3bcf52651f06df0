"""Small presets for the simulation's tests."""

from __future__ import annotations

import msgspec

from harness.sim.acceptance import Acceptance
from harness.sim.preset import FrontEnd, Limits, PatchedTables, Preset, ServerTables
from harness.sim.steptime import StepTable, TaxTable

DECODE = StepTable((1, 16, 256), (0.005, 0.006, 0.013))
PREFILL = StepTable((128, 1024, 8192), (0.01, 0.024, 0.139))
SPECULATIVE = StepTable((1, 16, 256), (0.0075, 0.011, 0.037))


def world(tax: float = 0.0, **changes: object) -> Preset:
    """A preset in which an off step costs `tax` more than the baseline's step; `changes` replace fields."""
    tables = ServerTables(DECODE, PREFILL)
    patched = PatchedTables("baseline", "v2", {3: SPECULATIVE}, PREFILL, TaxTable((1,), (tax,)))
    preset = Preset(
        schema=1,
        name="test",
        description="a test's world",
        gpu="none",
        model="model",
        draft="draft",
        sglang_version="0.5.12.post1",
        acceptance=Acceptance(2.8, 3),
        baseline=tables,
        baseline_no_overlap=ServerTables(DECODE.scaled(1.2), PREFILL),
        patched=patched,
        limits=Limits(max_running_requests=256, max_total_num_tokens=100_000),
        frontend=FrontEnd(0.002, 0.0002, 0.001),
    )
    return msgspec.structs.replace(preset, **changes)
