"""From a measured run to a recommended threshold, in numbers and in words.

The crossing of the measured curves is the recommendation; the score of other thresholds and the literal objective
stand beside it. No load is sent. The outcome is recommendation.json in the run folder, which export, apply and the
patched worker read.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from harness.errors import UserError
from harness.records import SCHEMA_VERSION, Source, Variant
from harness.regular import replace_file, require_regular
from harness.runfolder import RunFolder
from patched_worker.policy import DEFAULT_MIN_DWELL_STEPS, Policy, Rung, default_resume_at
from tuner import objective
from tuner.curves import Pivot, Shape, pivot
from tuner.graphs import MAX_COUNT, captured_sizes, effective_threshold, pads_batches
from tuner.ladder import ContextPivot, bands
from tuner.levels import reference_in, usable
from tuner.objective import Curves, LatencyC1, LiteralAnswer
from tuner.words import name, words

FILE = "recommendation.json"
Objective = Literal["score", "throughput"]


class Recommendation(msgspec.Struct, frozen=True, kw_only=True):
    """recommendation.json.

    Attributes:
        threshold: largest decode batch that still speculates; 0 never speculates, None never disables.
        interval: 90 % interval of the threshold, its ends as in `threshold`.
        effective_threshold: what the measured server makes of it, where it pads batches to captured graph sizes.
        resume_at: decode batch at which speculation resumes; None where it is never off.
        min_dwell_steps: decode steps that are spent off at least.
        ladder: rungs (threshold, resume_at, num_steps, max_mean_context) where one threshold is not enough; else None.
        contexts: the pivot at each context length, where several were measured; the smallest one is `threshold`.
        score: of `threshold`, against the better of reference and eagle3 at every level.
        best_by_throughput: the literal objective's answer, with the range of thresholds it cannot tell apart.
        off_tax: 1 - forced_off / reference, by concurrency.
        evidence: run, number of usable points, number of trials.
        words: recommended, confidence, rejected, would_change.
    """

    schema: int = SCHEMA_VERSION
    threshold: int | None
    interval: tuple[int | None, int | None]
    effective_threshold: int | None
    resume_at: int | None
    min_dwell_steps: int
    shape: Shape
    ladder: tuple[dict[str, int | None], ...] | None = None
    contexts: tuple[ContextPivot, ...] = ()
    objective: Objective = "score"
    score: float
    score_interval: tuple[float, float]
    best_by_throughput: LiteralAnswer
    latency_c1: LatencyC1
    off_tax: dict[str, float]
    off: Variant
    reference: Variant
    source: Source
    evidence: dict[str, Any]
    warnings: tuple[str, ...]
    words: dict[str, str]

    @property
    def policy(self) -> Policy:
        """The rule, as the patched worker and the simulated server apply it."""
        if self.ladder:
            return Policy(tuple(Rung(**rung) for rung in self.ladder), self.min_dwell_steps)
        return Policy.from_threshold(self.threshold, self.resume_at if self.threshold else None, self.min_dwell_steps)


class Analysis(msgspec.Struct, frozen=True):
    """A run's pivot and its curves, arranged for judging thresholds."""

    pivot: Pivot
    curves: Curves


def analyse(run: RunFolder, weights: Mapping[int, float] | None = None, seed: int = 0) -> Analysis:
    """Fit the pivot of a run.

    Args:
        run: the run folder.
        weights: traffic histogram, see `objective.curves`.
        seed: of the bootstrap.

    Raises:
        UserError: the run lacks usable points of eagle3 or of anything to compare it with.
    """
    rows = run.levels()
    reference = _reference(run)
    found = pivot(rows, reference, seed)
    if found is None:
        raise UserError(f"{run.path} cannot be judged: {what_is_missing(run)}")
    counted = weights or objective.even_weights(found, run.manifest.settings.concurrency)
    return Analysis(found, objective.curves(rows, found.off, reference or found.off, counted))


def recommend(
    run: RunFolder,
    slack: float = 0.05,
    weights: Mapping[int, float] | None = None,
    objective: Objective = "score",
    seed: int = 0,
) -> Recommendation:
    """Recommend a threshold from the run's measured curves, and write it to recommendation.json.

    Args:
        run: the run folder.
        slack: by how much, as a share, a lone user's time per token may exceed static EAGLE-3's.
        weights: traffic histogram, weight by number of concurrent requests.
        objective: "score", or "throughput" for the literal one: peak throughput under the latency constraint.
        seed: of the bootstrap.

    Raises:
        UserError: the run cannot be judged, or its folder cannot be written.
    """
    analysis = analyse(run, weights, seed)
    found = build(run, analysis, slack, objective, seed)
    write(found, run.path / FILE)
    return found


def build(
    run: RunFolder, analysis: Analysis, slack: float, aim: Objective = "score", seed: int = 0, trials: int = 0
) -> Recommendation:
    """The recommendation of an analysed run, not yet written; arguments as in `recommend`."""
    fit, curves = analysis.pivot, analysis.curves
    literal = objective.literal(curves, slack)
    threshold = literal.threshold if aim == "throughput" else fit.threshold
    latency = objective.latency_c1(curves, threshold, slack)
    tax = objective.off_tax(curves)
    ladder = bands(fit) if fit.shape == "not_monotone" and aim == "score" else None
    return Recommendation(
        threshold=threshold,
        interval=fit.interval if aim == "score" else literal.within_half_percent,
        effective_threshold=effective(run, threshold),
        resume_at=None if threshold is None else default_resume_at(threshold),
        min_dwell_steps=DEFAULT_MIN_DWELL_STEPS,
        shape=fit.shape,
        ladder=ladder,
        objective=aim,
        score=objective.score(curves, threshold),
        score_interval=objective.score_interval(curves, threshold, seed),
        best_by_throughput=literal,
        latency_c1=latency,
        off_tax=tax,
        off=fit.off,
        reference=curves.reference,
        source=run.manifest.source,
        evidence={"run": run.path.name, "points": len(usable(run.levels())), "trials": trials},
        warnings=fit.warnings + _warnings(run, curves, latency, tax),
        words=words(fit, curves, threshold, literal, aim, latency, blind=bool(_blind(run, curves))),
    )


def effective(run: RunFolder, threshold: int | None) -> int | None:
    """What the measured server makes of a threshold."""
    servers = run.manifest.servers.values()
    padding = next((s.server_args for s in servers if pads_batches(s.server_args)), None)
    return threshold if padding is None else effective_threshold(threshold, captured_sizes(padding))


def write(found: Recommendation, file: Path) -> None:
    """Write recommendation.json in one step: readers see the old one or the new one.

    Raises:
        UserError: the folder cannot be written.
    """
    try:
        replace_file(file, dumped(found).encode())
    except OSError as error:
        raise UserError(f"cannot write {file}: {error.strerror}; mend its permissions or copy the run") from error


def dumped(found: Recommendation) -> str:
    """recommendation.json as text."""
    return msgspec.json.format(msgspec.json.encode(found), indent=1).decode() + "\n"


def read(run: RunFolder) -> Recommendation:
    """The recommendation of a run.

    Raises:
        UserError: there is none yet, or it is of another schema.
    """
    file = require_regular(run.path / FILE)
    again = f"run `specpivot recommend {run.path}` again"
    try:
        found = msgspec.json.decode(file.read_bytes(), type=Recommendation)
        problem = _impossible(found)
    except FileNotFoundError:
        raise UserError(f"{run.path} has no recommendation yet; run `specpivot recommend {run.path}` first") from None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{file} cannot be read: {error}; {again}") from error
    if problem is not None:
        raise UserError(f"{file} is damaged: {problem}; {again}")
    return found


def _impossible(found: Recommendation) -> str | None:
    """What no recommendation can say; None where it holds together. A server would be set to it."""
    if found.schema != SCHEMA_VERSION:
        return f"its schema is {found.schema}, not {SCHEMA_VERSION}"
    for field in ("threshold", "resume_at", "effective_threshold", "min_dwell_steps"):
        value = getattr(found, field)
        if value is not None and not 0 <= value <= MAX_COUNT:
            return f"{field} is {value}"
    try:
        policy = found.policy
    except (ValueError, TypeError) as error:
        return str(error)
    steps = [rung.num_steps for rung in policy.rungs if rung.num_steps is not None]
    if not all(0 <= number <= MAX_COUNT for number in steps):
        return f"its ladder has draft steps {steps}"
    missing = {"recommended", "confidence", "rejected", "would_change"} - found.words.keys()
    return f"words lacks {', '.join(sorted(missing))}" if missing else None


def _reference(run: RunFolder) -> Variant | None:
    """The reference of eagle3, of those that have usable points."""
    return reference_in(run.manifest, {row.variant for row in usable(run.levels())})


def what_is_missing(run: RunFolder) -> str:
    """Why a run cannot be judged, and what to do."""
    rows = run.levels()
    good = {row.variant for row in usable(rows)}
    if "eagle3" not in good:
        spoilt = sorted({row.verdict for row in rows if row.variant == "eagle3" and not row.usable})
        why = f" (verdicts: {', '.join(spoilt)})" if spoilt else ""
        return f"no usable point of eagle3{why}; measure it with sweep --variants baseline,eagle3,forced_off"
    if not good - {"eagle3", "dynamic"}:
        return "nothing to compare eagle3 with; measure forced_off or baseline too"
    return "eagle3 and the variant it is compared with share no usable concurrency; measure both at the same C"


def _blind(run: RunFolder, curves: Curves) -> list[int]:
    """Planned levels above the largest one with a usable pair."""
    return [c for c in run.manifest.settings.concurrency if c > max(curves.batches)]


def _not_measured(run: RunFolder) -> int:
    """Planned points without a row. A tuning plans one pass of its curves; the rest it decides as it goes."""
    settings, variants = run.manifest.settings, run.manifest.variants
    tuning = "tune" in run.manifest.config
    planned = {
        (variant, level, repeat)
        for variant in settings.variants
        for level in settings.concurrency
        for repeat in range(1, settings.repeats + 1)
        if (variant != "dynamic" or not tuning) and (variant not in variants or variants[variant].not_run is None)
    }
    return len(planned - {(row.variant, row.concurrency, row.repeat) for row in run.levels()})


def _warnings(run: RunFolder, curves: Curves, latency: LatencyC1, tax: dict[str, float]) -> tuple[str, ...]:
    found: list[str] = []
    missing = _not_measured(run)
    if missing:
        points = "1 planned point was" if missing == 1 else f"{missing} planned points were"
        found.append(f"{points} not measured; --resume measures what is missing")
    if blind := _blind(run, curves):
        found.append(
            f"nothing is known above C={max(curves.batches)}: C={', '.join(map(str, blind))} have no usable pair of"
            f" eagle3 and {curves.off}; do not trust the answer there"
        )
    left_out = len(run.levels()) - len(curves.rows)
    if left_out:
        found.append(f"{left_out} of {len(run.levels())} points are not usable and were left out")
    if latency.eagle3_s is None:
        found.append("the latency constraint was not checked: the smallest level has no time per output token")
    elif latency.concurrency > 1:
        found.append(f"the latency constraint was checked at C={latency.concurrency}: C=1 was not measured")
    if not latency.ok:
        found.append(f"a lone user would be slower than with static EAGLE-3 by more than {latency.slack:.0%}")
    if tax and max(tax.values()) > 0.05:
        at, share = max(tax.items(), key=lambda item: item[1])
        stock = pivot([row for row in curves.rows if row.variant != "forced_off"], curves.reference)
        where = f"; against it, eagle3 stops paying at {name(stock.threshold)}" if stock else ""
        found.append(
            f"while off, the patched server loses up to {share:.0%} against {curves.reference} (C={at}){where}"
        )
    return tuple(found)
