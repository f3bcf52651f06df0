"""Sweeps and tunings on the virtual clock: seconds of work for what takes a real server an hour, and nothing measured.

The same search that tunes servers asks a preset's engine for points. For planning, for notebooks, and to see what a
tuning looks like; every row, folder and figure that comes of it is simulated and says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from harness.config import make_config
from harness.manifest import new_manifest
from harness.records import LevelRow, Manifest, Variant, VariantRecord
from harness.runfolder import RunFolder, RunWriter
from harness.sim.noise import Noise
from harness.sim.predict import ClosedLoopResult, simulate_closed_loop
from harness.sim.preset import Preset
from patched_worker.policy import Policy
from tuner import recommend
from tuner.outcome import tuned
from tuner.search import Aim, Task, fixed_policy, search
from tuner.study import JOURNAL, open_study, storage_of

NOISE = Noise(step_sigma=0.02, drift_sigma=0.02)  # repeats differ by some per cent, as on a quiet machine
VARIANTS: tuple[Variant, ...] = ("baseline", "eagle3", "forced_off")
RANGE_RATIO = 0.5  # lengths of equal requests make a closed loop fall into step


class Load(msgspec.Struct, frozen=True):
    """Requests of a point: mean lengths in tokens, and how long a point is watched, in simulated seconds."""

    input_tokens: int = 128
    output_tokens: int = 128
    duration_s: float | None = None


def point(
    preset: Preset, load: Load, variant: Variant, policy: Policy | None, concurrency: int, repeat: int
) -> LevelRow:
    """One simulated point as a row; repeats differ by their noise."""
    found = simulate_closed_loop(
        preset,
        variant,
        concurrency,
        load.input_tokens,
        load.output_tokens,
        policy,
        seed=repeat,
        duration_s=load.duration_s,
        range_ratio=RANGE_RATIO,
        noise=NOISE,
    )
    return _row(found, policy, repeat)


def sweep(
    preset: Preset, concurrency: Iterable[int], repeats: int, load: Load, variants: Iterable[Variant] = VARIANTS
) -> list[LevelRow]:
    """Every variant at every concurrency; eagle3 and forced_off as the patched server plays them."""
    levels = list(concurrency)
    return [
        point(preset, load, variant, fixed_policy(variant), level, repeat)
        for repeat in range(1, repeats + 1)
        for variant in variants
        for level in levels
    ]


def tuning(preset: Preset, preset_name: str, folder: Path, aim: Aim, load: Load, points: int) -> RunFolder:
    """A whole tuning into a new run folder, which the tuner's own readers and figures take.

    Args:
        preset_name: as `--sim` takes it; stands in the manifest.
        aim: what is tuned.
        points: the budget.

    Raises:
        UserError: the folder holds a run, or nothing could be judged.
    """
    rows: list[LevelRow] = []
    with RunWriter.create(folder, _manifest(preset_name, aim, load)) as writer:
        study = open_study(storage_of(folder / JOURNAL), "specpivot", aim.seed)
        task = Task(
            lambda variant, policy, level, repeat: point(preset, load, variant, policy, level, repeat),
            aim,
            rows,
            lambda: points - len(rows),
        )
        found = search(task, study)
        writer.set_rows(rows)
    run = RunFolder(folder)
    if found is None:
        recommend.analyse(run)  # says why
        raise AssertionError("a run that the search could not judge was judged")
    recommend.write(tuned(run, found, aim.slack, "score", aim.weights, aim.seed), folder / recommend.FILE)
    return run


def _manifest(preset_name: str, aim: Aim, load: Load) -> Manifest:
    config = make_config(
        {
            "sim": preset_name,
            "variants": list(VARIANTS),
            "concurrency": list(aim.concurrency),
            "input_tokens": load.input_tokens,
            "output_tokens": load.output_tokens,
            "random_range_ratio": RANGE_RATIO,
            "repeats": 1,
        }
    )
    manifest = new_manifest(config, ("tuner.virtual", preset_name))
    played = {variant: VariantRecord("virtual", None if variant == "baseline" else "baseline") for variant in VARIANTS}
    settings = msgspec.structs.replace(manifest.settings, variants=(*VARIANTS, "dynamic"))
    return msgspec.structs.replace(
        manifest,
        settings=settings,
        variants=played,
        latency_intervals=False,
        simulation={"preset": preset_name, "clock": "virtual"},
    )


def _row(found: ClosedLoopResult, policy: Policy | None, repeat: int) -> LevelRow:
    return LevelRow(
        variant=found.variant,
        concurrency=found.concurrency,
        repeat=repeat,
        status="done",
        verdict="ok",
        server_run="virtual",
        threshold=None if policy is None else -1 if policy.threshold is None else policy.threshold,
        decode_batch_mean=found.decode_batch_mean,
        requests=found.requests,
        duration_s=found.duration_s,
        output_tok_per_s=found.output_tok_per_s,
        user_tok_per_s=1 / found.tpot_p50_s,
        ttft_p50_s=found.ttft_p50_s,
        tpot_p50_s=found.tpot_p50_s,
        gap_p50_s=found.gap_p50_s,
        e2e_p50_s=found.e2e_p50_s,
        accept_len=found.accept_len,
        steps_on=found.steps_on,
        steps_off=found.steps_off,
        switches=found.switches,
    )
