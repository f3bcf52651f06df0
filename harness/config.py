"""What a sweep is asked to do: the command line's flags and sweep.toml are the same fields, checked in one place."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec

from harness.endpoint import check_url
from harness.environment import SECRET_WORDS
from harness.errors import UserError
from harness.records import PATCHED_VARIANTS, SPECULATIVE_VARIANTS, VARIANTS, Variant
from patched_worker.policy import Policy

WorkerGeneration = Literal["auto", "v1", "v2"]
Residency = Literal["auto", "together", "alternate"]
DEFAULT_NUM_STEPS = 3
DEFAULT_CONCURRENCY = (1, 2, 4, 8, 16, 32, 64)
MAX_CONCURRENCY = 65536
MAX_TOKENS = 2**22
MAX_VOCAB = 2**24
MAX_POLICY = 1_000_000
DAY_S = 86400.0
# What a point takes before any is measured; its load ends about two answers after its window (see harness.pace).
BESIDE_S = 1.6  # client processes, counters, waiting for an idle server
TOKEN_S, TWICE_AT = 0.0045, 100  # a token of a lone user; the concurrency at which it takes twice as long
PREFILL_TOK_PER_S = 40_000


class SweepConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One sweep.

    Attributes:
        variants: what to measure; empty means all that the servers given can do.
        concurrency: closed-loop levels, in requests in flight.
        repeats: how often each point is measured, interleaved.
        duration_s, warmup_s: the measuring window of a point, and the load before it that is not counted.
        threshold, resume_at, min_dwell: the policy of `dynamic`.
        input_tokens, output_tokens: lengths of a request, exact for random prompts; with a data set the longest prompt
            that a started server must have room for, and the answer's length where the data set has none.
        dataset: "random", or a file that harness.datasets reads.
        tokenizer: folder of a tokenizer, whose chat template makes token ids of the data set's messages.
        random_range_ratio: random lengths are uniform in [mean * (1 - ratio), mean * (1 + ratio)]; 0 is exact.
        vocab_size: random token ids stay below it; one above the model's own makes SGLang crash.
        sim: preset of simulated servers; time_scale simulated seconds pass per second.
        attach: variant to URL of a running server.
        model, draft, tp: what to start; num_steps, topk and draft_tokens are SGLang's speculative settings, by default
            3 (a preset's own, simulated), 1 and one more than num_steps.
        worker: which EAGLE worker generation must run: v1 (overlap off) or v2; auto takes SGLang's default.
        server_args, server_env: passed to every server that is started.
        resident: whether all servers are up at once ("together") or in turn ("alternate").
    """

    variants: tuple[Variant, ...] = ()
    concurrency: tuple[int, ...] = DEFAULT_CONCURRENCY
    repeats: int = 3
    duration_s: float = msgspec.field(default=20.0, name="duration")
    warmup_s: float = msgspec.field(default=5.0, name="warmup")
    threshold: int | None = None
    resume_at: int | None = None
    min_dwell: int | None = None
    input_tokens: int = 128
    output_tokens: int = 128
    random_range_ratio: float = 0.0
    dataset: str = "random"
    tokenizer: str | None = None
    vocab_size: int = 32000
    api: Literal["generate", "completions", "chat"] = "generate"
    seed: int = 1
    transport: Literal["auto", "raw", "aiohttp"] = "auto"
    client_workers: int = 0
    sim: str | None = None
    time_scale: float = 1.0
    attach: dict[str, str] = {}
    model: str | None = None
    draft: str | None = None
    tp: int = 1
    num_steps: int | None = None
    topk: int = 1
    draft_tokens: int | None = None
    worker: WorkerGeneration = "auto"
    server_args: tuple[str, ...] = ()
    server_env: dict[str, str] = {}
    resident: Residency = "auto"
    start_timeout_s: float = msgspec.field(default=900.0, name="start_timeout")

    @property
    def dynamic_policy(self) -> Policy:
        return Policy.from_threshold(self.threshold, self.resume_at, self.min_dwell)

    @property
    def load_s(self) -> float:
        """Warm-up and window of a point, in seconds of ours."""
        return (self.warmup_s + self.duration_s) / self.time_scale

    @property
    def point_s(self) -> float:
        """About how long a point takes before any is measured, in seconds of ours: the mean over all levels."""
        return sum(map(self.point_s_at, self.concurrency)) / len(self.concurrency)

    def point_s_at(self, concurrency: int) -> float:
        """The same at one level, as an H200 with a model of 8 B has it; `harness.pace` learns what others take."""
        decode_s = self.output_tokens * TOKEN_S * (1 + concurrency / TWICE_AT)
        return self.point_s_with(decode_s + self.input_tokens * concurrency / PREFILL_TOK_PER_S)

    def point_s_with(self, answer_s: float) -> float:
        """The same where an answer takes so many seconds."""
        return self.load_s + BESIDE_S + 2 * answer_s / self.time_scale

    @property
    def draft_steps(self) -> int:
        return DEFAULT_NUM_STEPS if self.num_steps is None else self.num_steps

    @property
    def together(self) -> bool:
        """Whether all servers are up at once; only those that are started on GPUs may not be."""
        fit = self.resident == "together" or (self.resident == "auto" and self.tp == 1)
        return self.model is None or fit

    @property
    def max_concurrency(self) -> int:
        return max(self.concurrency)


def load_config(path: Path) -> dict[str, Any]:
    """The keys of a sweep.toml, each one checked to exist; values are checked by `make_config`.

    Raises:
        UserError: unreadable, not TOML, or a key that no sweep has.
    """
    try:
        document = msgspec.toml.decode(path.read_bytes())
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; give an existing --config") from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid TOML: {error}") from error
    known = [field.encode_name for field in msgspec.structs.fields(SweepConfig)]
    for key in document:
        if key not in known:
            raise UserError(f"{path}: unknown key {key!r}{_suggestion(key, known)}")
    return dict(document)


def make_config(values: dict[str, Any]) -> SweepConfig:
    """A checked configuration from flags and file keys.

    Raises:
        UserError: naming the key and what it may be.
    """
    wanted = values.get("variants", ())
    for name in wanted if isinstance(wanted, list | tuple) else ():
        if name not in VARIANTS:
            raise UserError(f"unknown variant {name!r}{_suggestion(str(name), VARIANTS)}")
    try:
        config = msgspec.convert(values, SweepConfig)
    except msgspec.ValidationError as error:
        raise UserError(f"bad configuration: {error}") from error
    _check(config)
    return config


def _check(config: SweepConfig) -> None:
    _check_text(config)
    for complaint, is_bad in _COMPLAINTS.items():
        if is_bad(config):
            raise UserError(complaint)
    try:
        policy = config.dynamic_policy
    except ValueError as error:
        raise UserError(f"threshold: {error}") from error
    if "dynamic" in config.variants and policy.threshold is None:
        raise UserError("variant 'dynamic' needs a threshold; add --threshold N (`specpivot recommend` finds one)")
    for name, url in config.attach.items():
        if name not in VARIANTS:
            raise UserError(f"--attach {name}=...: unknown variant{_suggestion(name, VARIANTS)}")
        check_url(url)


def _check_text(config: SweepConfig) -> None:
    """Refuse what no file or process can be given, and secrets, which the manifest and `ps` would show."""
    try:
        text = msgspec.json.encode(config)
    except UnicodeEncodeError as error:
        raise UserError("a value is not valid UTF-8; give paths and names that are") from error
    if b"\\u0000" in text:
        raise UserError("a value holds a NUL character; take it out")
    for name in config.server_env:
        if any(word in name.upper() for word in SECRET_WORDS):
            raise UserError(f"server_env: {name} looks like a secret; export it instead, started servers inherit it")
    for argument in config.server_args:
        name = argument.partition("=")[0]
        if name.startswith("--") and name.rpartition("-")[2].upper() in SECRET_WORDS:
            raise UserError(f"server_args: leave {name} out; a started server is on 127.0.0.1 only and needs no secret")


# Beyond these a value is a slip, and would exhaust memory, processes or patience before anything is measured.
_COMPLAINTS: dict[str, Callable[[SweepConfig], bool]] = {
    "concurrency: give at least one level, each from 1 to 65536, such as --concurrency 1,2,4,8": lambda c: (
        not c.concurrency or not all(1 <= level <= MAX_CONCURRENCY for level in c.concurrency)
    ),
    "concurrency: a level is given twice; name each one once": lambda c: len(set(c.concurrency)) < len(c.concurrency),
    "variants: one is given twice; name each one once": lambda c: len(set(c.variants)) < len(c.variants),
    "repeats: give 1 or more, at most 1000": lambda c: not 1 <= c.repeats <= 1000,
    "duration: give a number of seconds above 0, at most 86400": lambda c: not 0 < c.duration_s <= DAY_S,
    "warmup: give a number of seconds, 0 or more, at most 86400": lambda c: not 0 <= c.warmup_s <= DAY_S,
    "start_timeout: give a number of seconds above 0, at most 86400": lambda c: not 0 < c.start_timeout_s <= DAY_S,
    "time_scale: give a number above 0, at most 1000": lambda c: not 0 < c.time_scale <= 1000,
    "input_tokens and output_tokens: give 1 or more, at most 4194304": lambda c: (
        not 1 <= min(c.input_tokens, c.output_tokens) <= max(c.input_tokens, c.output_tokens) <= MAX_TOKENS
    ),
    "vocab_size: give 16 or more, at most 16777216": lambda c: not 16 <= c.vocab_size <= MAX_VOCAB,
    "client_workers: give 0 (SpecPivot chooses) to 256": lambda c: not 0 <= c.client_workers <= 256,
    "num_steps, topk and draft_tokens: give 1 to 1024": lambda c: any(
        value is not None and not 1 <= value <= 1024 for value in (c.num_steps, c.topk, c.draft_tokens)
    ),
    "threshold, resume_at and min_dwell: give at most 1000000": lambda c: any(
        value is not None and value > MAX_POLICY for value in (c.threshold, c.resume_at, c.min_dwell)
    ),
    "random_range_ratio: give a number from 0 to below 1": lambda c: not 0 <= c.random_range_ratio < 1,
    "tokenizer: only a data set needs one; add --dataset FILE, or leave --tokenizer out": lambda c: (
        c.tokenizer is not None and c.dataset == "random"
    ),
    "tokenizer: with --api chat the server applies its own template; leave --tokenizer out": lambda c: (
        c.tokenizer is not None and c.api == "chat"
    ),
    "tp: give 1 to 1024 GPUs": lambda c: not 1 <= c.tp <= 1024,
    "give only one of --sim, --attach and --model": lambda c: (
        sum((c.sim is not None, bool(c.attach), c.model is not None)) > 1
    ),
    "topk: simulated servers draft chains; give --topk 1, or leave it out": lambda c: c.sim is not None and c.topk != 1,
    "a speculative variant needs --draft PATH beside --model": lambda c: (
        c.model is not None and c.draft is None and not SPECULATIVE_VARIANTS.isdisjoint(c.variants)
    ),
}


def variants_to_run(config: SweepConfig) -> tuple[Variant, ...]:
    """The variants asked for, or all that make sense with the servers given."""
    if config.variants:
        return config.variants
    if config.attach:
        return tuple(v for v in VARIANTS if v in config.attach)
    able = [v for v in VARIANTS if v != "dynamic" or config.threshold is not None]
    if config.model is not None and config.draft is None:
        able = [v for v in able if v not in SPECULATIVE_VARIANTS]
    return tuple(able)


def is_patched(variants: tuple[Variant, ...]) -> bool:
    """Whether these variants need the patched worker."""
    return not PATCHED_VARIANTS.isdisjoint(variants)


def _suggestion(word: str, known: Any) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(known)}"
