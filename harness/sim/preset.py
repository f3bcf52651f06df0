"""A preset: everything the engine knows about one machine, model and draft, as one JSON file.

The tables are of three servers: the baseline with the overlap scheduler, the same without it, and a patched
speculative one, whose off step costs what its reference's decode step costs plus a tax. A preset says whether its
tables were inverted from measured runs or merely illustrate.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from harness.errors import UserError
from harness.records import VARIANTS, Variant, json_file
from harness.sim.acceptance import MAX_DRAFTS, Acceptance
from harness.sim.steptime import StepTable, TaxTable

# Format history. A reader refuses another number.
#   1  first format
PRESET_SCHEMA = 1
MAX_LIMIT = 2**40
MAX_DELAY_S = 60.0
DEFAULT_PRESET = "h200-llama31-8b-illustrative"
PRESETS = Path(__file__).with_name("presets")


class ServerTables(msgspec.Struct, frozen=True):
    """Step times of an unpatched server: decode by batch, prefill by tokens of one prefill batch.

    Attributes:
        latency_s: what each request waits besides, while the server works on for the others.
    """

    decode: StepTable
    prefill: StepTable
    latency_s: float = 0.0


class ContextCost(msgspec.Struct, frozen=True):
    """What longer sequences add to a decode step: seconds per token of the batch's sequence lengths.

    Attributes:
        mean_tokens: the mean sequence length at which the decode tables hold; shorter ones are not cheaper.
        plain, speculative: seconds per token beyond it, of a step without and with drafts.
    """

    mean_tokens: int
    plain: float
    speculative: float


class PatchedTables(msgspec.Struct, frozen=True):
    """Step times of the patched server.

    Attributes:
        reference: the variant whose decode step its off step is made of (v1 runs without overlap, v2 with).
        worker: SGLang's worker generation.
        speculative: decode step by batch, by number of draft steps.
        prefill: target and draft prefill together.
        latency_s: what each request waits besides, while the server works on for the others.
        off_tax: cost of an off step beyond the reference's decode step, as a fraction.
        switch_cost_s: added to a step that speculates after one that did not, or the other way round.
        context: what longer sequences add; None: nothing.
    """

    reference: Literal["baseline", "baseline_no_overlap"]
    worker: Literal["v1", "v2"]
    speculative: dict[int, StepTable]
    prefill: StepTable
    off_tax: TaxTable
    latency_s: float = 0.0
    switch_cost_s: float = 0.0
    context: ContextCost | None = None


class Limits(msgspec.Struct, frozen=True):
    """SGLang's own limits, by their argument's name; in requests and tokens."""

    max_running_requests: int
    max_total_num_tokens: int
    chunked_prefill_size: int = 8192
    context_length: int = 8192


class Calibration(msgspec.Struct, frozen=True):
    """Which measurements a preset's tables were inverted from.

    Attributes:
        runs: names of the run folders.
        concurrency: the points that were used; every other one is a prediction.
        input_tokens, output_tokens: of the requests; other lengths are extrapolation.
    """

    runs: tuple[str, ...]
    concurrency: tuple[int, ...]
    input_tokens: int
    output_tokens: int


class FrontEnd(msgspec.Struct, frozen=True):
    """What lies between a user and the scheduler: HTTP, tokenizer, detokenizer, one request after the other.

    Attributes:
        delay_s: from when a request is sent until the front end is done with it, if it is alone.
        per_request_s: of that, the part for which it keeps later requests waiting.
        jitter_s: mean of what comes on top, exponentially distributed: event loops and the network.
    """

    delay_s: float = 0.0
    per_request_s: float = 0.0
    jitter_s: float = 0.0


NO_FRONT_END = FrontEnd()


class Preset(msgspec.Struct, frozen=True):
    """One simulated machine.

    Attributes:
        description: where the figures come from, in a sentence.
        calibration: the measurements behind the tables; None where they merely illustrate.
    """

    schema: int
    name: str
    description: str
    gpu: str
    model: str
    draft: str
    sglang_version: str
    acceptance: Acceptance
    baseline: ServerTables
    baseline_no_overlap: ServerTables
    patched: PatchedTables
    limits: Limits
    frontend: FrontEnd = NO_FRONT_END
    calibration: Calibration | None = None

    @property
    def origin(self) -> Literal["measured", "illustrative"]:
        return "illustrative" if self.calibration is None else "measured"


class Costs(msgspec.Struct, frozen=True):
    """What the steps of one server cost: its decode and prefill tables, and what speculation adds."""

    decode: StepTable
    prefill: StepTable
    latency_s: float = 0.0
    off_tax: TaxTable | None = None
    speculative: dict[int, StepTable] = {}
    switch_cost_s: float = 0.0
    context: ContextCost | None = None

    def context_s(self, batch: int, drafts: int, tokens: int) -> float:
        """Seconds that sequences of `tokens` in all add to such a step."""
        cost = self.context
        if cost is None:
            return 0.0
        beyond = max(0, tokens - batch * cost.mean_tokens)
        return beyond * (cost.speculative if drafts else cost.plain)

    def decode_s(self, batch: int, drafts: int) -> float:
        """Seconds of a decode step of `batch` requests with `drafts` draft steps.

        Raises:
            UserError: the tables hold no step of this width, nor one on either side of it.
        """
        if drafts == 0:
            seconds = self.decode.at(batch)
            return seconds if self.off_tax is None else seconds * (1 + self.off_tax.at(batch))
        widths = sorted(self.speculative)
        low = max((width for width in widths if width <= drafts), default=None)
        high = min((width for width in widths if width >= drafts), default=None)
        if low is None or high is None:
            raise UserError(f"this preset has no step times for {drafts} draft steps; it has {widths}")
        low_s, high_s = self.speculative[low].at(batch), self.speculative[high].at(batch)
        return low_s if low == high else low_s + (high_s - low_s) * (drafts - low) / (high - low)


def costs_of(preset: Preset, variant: Variant) -> Costs:
    """The tables of the server that plays `variant`; eagle3, dynamic and forced_off are the same server."""
    if variant == "baseline" or variant == "baseline_no_overlap":
        tables = preset.baseline if variant == "baseline" else preset.baseline_no_overlap
        return Costs(tables.decode, tables.prefill, tables.latency_s)
    patched = preset.patched
    reference = preset.baseline if patched.reference == "baseline" else preset.baseline_no_overlap
    return Costs(
        reference.decode,
        patched.prefill,
        patched.latency_s,
        patched.off_tax,
        patched.speculative,
        patched.switch_cost_s,
        patched.context,
    )


def preset_names() -> list[str]:
    """The presets that come with the package."""
    return sorted(file.stem for file in PRESETS.glob("*.json"))


def load_preset(name: str | Path) -> Preset:
    """Read a preset of the package by its name, or any preset by its path.

    Raises:
        UserError: there is none, or the file is damaged or of another schema.
    """
    file = Path(name)
    if file.suffix != ".json":
        file = PRESETS / f"{name}.json"
    try:
        body = file.read_bytes()
    except OSError as error:
        known = ", ".join(preset_names())
        raise UserError(f"no preset {name} ({error.strerror}); give one of {known}, or a path to a .json") from error
    try:
        preset = msgspec.json.decode(body, type=Preset)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"preset {file} is damaged: {error}; make it again with harness.sim.calibrate") from error
    if preset.schema != PRESET_SCHEMA:
        raise UserError(
            f"preset {file} has schema {preset.schema}, this SpecPivot reads {PRESET_SCHEMA}; make it again"
        )
    for name, value in msgspec.structs.asdict(preset.limits).items():
        if not 1 <= value <= MAX_LIMIT:
            raise UserError(
                f"preset {file}: limits.{name} is {value}, with which no request would ever run; correct it"
            )
    delays = {f"frontend.{name}": delay_s for name, delay_s in msgspec.structs.asdict(preset.frontend).items()}
    for name in ("baseline", "baseline_no_overlap", "patched"):
        delays[f"{name}.latency_s"] = getattr(preset, name).latency_s
    for name, delay_s in {**delays, "patched.switch_cost_s": preset.patched.switch_cost_s}.items():
        if not 0 <= delay_s <= MAX_DELAY_S:
            raise UserError(f"preset {file}: {name} is {delay_s} s; give 0 to {MAX_DELAY_S:.0f}")
    widths = preset.patched.speculative.keys()
    if not widths or not all(1 <= drafts <= MAX_DRAFTS for drafts in widths):
        raise UserError(
            f"preset {file}: patched.speculative has no table for 1 to {MAX_DRAFTS} draft steps; correct it"
        )
    return preset


def save_preset(preset: Preset, file: Path) -> None:
    """Write a preset as JSON.

    Raises:
        UserError: the file cannot be written.
    """
    try:
        file.write_bytes(json_file(preset))
    except OSError as error:
        raise UserError(f"cannot write the preset {file}: {error.strerror}; give another -o") from error


def checked_variant(name: str) -> Variant:
    """`name` as a variant.

    Raises:
        UserError: there is no such variant.
    """
    for variant in VARIANTS:
        if variant == name:
            return variant
    raise UserError(f"unknown variant {name}; give one of {', '.join(VARIANTS)}")
