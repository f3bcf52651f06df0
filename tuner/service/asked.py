"""What a request may ask for. Whatever is not named here is refused: no URL, path, model or argument of a server."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from harness.config import MAX_CONCURRENCY, MAX_POLICY, MAX_TOKENS, MAX_VOCAB, SweepConfig, make_config
from harness.records import Variant
from tuner.service.answers import AutopilotState, Name

Small = Annotated[int, msgspec.Meta(ge=0, le=1000)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=86400)]
Threshold = Annotated[int, msgspec.Meta(ge=0, le=MAX_POLICY)]
Tokens = Annotated[int, msgspec.Meta(ge=1, le=MAX_TOKENS)]
Level = Annotated[int, msgspec.Meta(ge=1, le=MAX_CONCURRENCY)]
KeyName = Annotated[str, msgspec.Meta(pattern="^SPECPIVOT_(ADMIN_)?API_KEY[A-Z0-9_]{0,60}$")]
Unset = msgspec.UnsetType


class Load(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The keys of a sweep.toml that a sweep and a tuning share and that name no file, model or server."""

    concurrency: Annotated[list[Level], msgspec.Meta(min_length=1, max_length=64)] | Unset = msgspec.UNSET
    duration: Seconds | Unset = msgspec.UNSET
    warmup: Seconds | Unset = msgspec.UNSET
    input_tokens: Tokens | Unset = msgspec.UNSET
    output_tokens: Tokens | Unset = msgspec.UNSET
    random_range_ratio: Annotated[float, msgspec.Meta(ge=0, lt=1)] | Unset = msgspec.UNSET
    vocab_size: Annotated[int, msgspec.Meta(ge=16, le=MAX_VOCAB)] | Unset = msgspec.UNSET
    api: Literal["generate", "completions", "chat"] | Unset = msgspec.UNSET
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] | Unset = msgspec.UNSET
    transport: Literal["auto", "raw", "aiohttp"] | Unset = msgspec.UNSET
    client_workers: Annotated[int, msgspec.Meta(ge=0, le=256)] | Unset = msgspec.UNSET
    worker: Literal["auto", "v1", "v2"] | Unset = msgspec.UNSET
    time_scale: Annotated[float, msgspec.Meta(gt=0, le=1000)] | Unset = msgspec.UNSET


class SweepOptions(Load, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a sweep may be told beyond its server."""

    variants: Annotated[list[Variant], msgspec.Meta(min_length=1, max_length=5)] | Unset = msgspec.UNSET
    repeats: Annotated[int, msgspec.Meta(ge=1, le=1000)] | Unset = msgspec.UNSET
    threshold: Threshold | Unset = msgspec.UNSET
    resume_at: Threshold | Unset = msgspec.UNSET
    min_dwell: Threshold | Unset = msgspec.UNSET


class TuneOptions(Load, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a tuning may be told.

    `budget` such as 20m, 900s or 1h; `latency_slack` such as 5% or 0.05; `context_lengths`: two or three different
    prompt lengths, in tokens.
    """

    budget: Annotated[str, msgspec.Meta(pattern=r"^[0-9]+(\.[0-9]+)?[smh]?$", max_length=20)] | Unset = msgspec.UNSET
    trials: Small | Unset = msgspec.UNSET
    latency_slack: Annotated[str, msgspec.Meta(pattern=r"^[0-9]+(\.[0-9]+)?%?$", max_length=20)] | Unset = msgspec.UNSET
    objective: Literal["score", "throughput"] | Unset = msgspec.UNSET
    context_lengths: Annotated[list[Tokens], msgspec.Meta(min_length=2, max_length=3)] | Unset = msgspec.UNSET


class NewJob(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind"):
    """A job: give either `server`, a registered one, or `sim`, a preset. Without `run` the service names the run."""

    run: Name | None = None
    server: Name | None = None
    sim: Name | None = None

    @property
    def kind(self) -> Literal["sweep", "tune"]:
        return "tune" if isinstance(self, NewTune) else "sweep"


class NewSweep(NewJob, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="sweep", tag_field="kind"):
    """A sweep."""

    options: SweepOptions = SweepOptions()


class NewTune(NewJob, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="tune", tag_field="kind"):
    """A tuning."""

    options: TuneOptions = TuneOptions()


class NewServer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A server to register.

    `variants`: what it can play in a sweep. `api_key_env`, `admin_api_key_env`: variables of the service's own
    environment that hold its keys; the keys themselves are never sent or stored.
    """

    name: Name
    url: Annotated[str, msgspec.Meta(min_length=1, max_length=500)]
    variants: Annotated[tuple[Variant, ...], msgspec.Meta(min_length=1, max_length=5)] = (
        "eagle3",
        "dynamic",
        "forced_off",
    )
    admin_api_key_env: KeyName | None = None
    api_key_env: KeyName | None = None


class ApplyRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Set what a run recommends."""

    run: Name


class ApplyThreshold(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Set a threshold: the largest decode batch that speculates; 0 never speculates, null never disables."""

    threshold: Threshold | None  # required, and null is a value of its own
    resume_at: Annotated[int, msgspec.Meta(ge=1, le=MAX_POLICY)] | None = None
    min_dwell_steps: Threshold | None = None


class SetAutopilot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Switch the autopilot; `bounds` are the smallest and largest threshold it may set, null for no upper bound."""

    state: AutopilotState
    bounds: tuple[Threshold, Threshold | None] | None = None


class Login(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The token that the service was started with."""

    token: Annotated[str, msgspec.Meta(max_length=500)]


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An empty object."""


def flags(options: Load) -> list[str]:
    """The options as flags of the command line."""
    return [f"--{name.replace('_', '-')}={_text(value)}" for name, value in _given(options).items()]


def settings(options: Load, **servers: Any) -> SweepConfig:
    """The sweep's settings that the command will make of them, checked now.

    Args:
        options: as asked.
        servers: `sim`, or `attach`.

    Raises:
        UserError: naming the key and what it may be.
    """
    known = {field.encode_name for field in msgspec.structs.fields(SweepConfig)}
    return make_config({name: value for name, value in _given(options).items() if name in known} | servers)


def _given(options: Load) -> dict[str, Any]:
    return {name: value for name, value in msgspec.structs.asdict(options).items() if value is not msgspec.UNSET}


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
