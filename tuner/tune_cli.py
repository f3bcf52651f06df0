"""specpivot tune on the command line: a sweep's flags, and those of tuning."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import msgspec
import psutil
import typer

from harness.cli import given_values, sweep, sweep_settings
from harness.command import command_line, default_folder, load_libraries
from harness.config import SweepConfig, make_config
from harness.console import ConsoleReporter
from harness.errors import UserError
from harness.runfolder import RunFolder
from harness.sweep import Keys
from tuner.asked import TuneOptions
from tuner.knobs import parse_lengths, parse_search
from tuner.recommend import Objective
from tuner.study import check_storage
from tuner.texts import choice, last_line, share, tell
from tuner.traffic import weights_from
from tuner.tune import run_tune

# A tuning decides these itself.
_NOT_OURS = {"variants", "repeats", "threshold", "resume_at", "min_dwell"}


def with_sweep_flags(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the flags of `sweep` beside its own, so that the two cannot drift apart."""

    def flags_of(function: Callable[..., None]) -> dict[str, inspect.Parameter]:
        hints = get_type_hints(function, include_extras=True)
        parameters = inspect.signature(function).parameters.values()
        return {
            p.name: p.replace(annotation=hints[p.name], kind=inspect.Parameter.KEYWORD_ONLY)
            for p in parameters
            if p.kind is not inspect.Parameter.VAR_KEYWORD
        }

    inherited = {name: flag for name, flag in flags_of(sweep).items() if name not in _NOT_OURS}
    merged = flags_of(command) | inherited

    def called(**flags: Any) -> None:
        command(**flags)

    called.__signature__ = inspect.Signature(list(merged.values()))  # type: ignore[attr-defined]  # typer reads it
    called.__annotations__ = {name: flag.annotation for name, flag in merged.items()}
    called.__doc__ = command.__doc__
    return called


def tune(
    run: Annotated[Path | None, typer.Argument(help="a run whose settings to take over", show_default=False)] = None,
    budget: Annotated[
        str | None, typer.Option(help="time of the tuning, also when resumed: 20m, 900s or 1h [default: 20m]")
    ] = None,
    trials: Annotated[int | None, typer.Option(min=0, help="most thresholds to try live [default: 8]")] = None,
    latency_slack: Annotated[str | None, typer.Option(help="how much slower a lone user may become [5%]")] = None,
    objective_name: Annotated[str | None, typer.Option("--objective", help="score or throughput [score]")] = None,
    weights: Annotated[str | None, typer.Option(help="traffic: CSV with concurrency, weight; or a URL")] = None,
    watch: Annotated[float, typer.Option(min=1, help="seconds to watch that server's /metrics")] = 60.0,
    search: Annotated[
        str | None,
        typer.Option(
            help="what may vary: threshold, resume_at, min_dwell (live); num_steps=1,3,5, topk, draft_tokens (restarts)"
        ),
    ] = None,
    context_lengths: Annotated[
        str | None, typer.Option(help="prompt lengths, 2 or 3, each with curves of its own: 128,2048")
    ] = None,
    storage: Annotated[str | None, typer.Option(help="Optuna storage that several tuners share: a URL")] = None,
    study: Annotated[str | None, typer.Option(help="name of the shared study")] = None,
    **flags: Any,
) -> None:
    """Find the best threshold in one life of the patched server, with its confidence."""
    asked = {
        "budget_s": seconds(budget) if budget else None,
        "trials": trials,
        "slack": share(latency_slack) if latency_slack else None,
        "objective": choice(objective_name, Objective, "--objective") if objective_name else None,
        "weights": weights_from(weights, watch) if weights else None,
        "search": parse_search(search) if search else None,
        "context_lengths": parse_lengths(context_lengths) if context_lengths else None,
        "storage": check_storage(storage) if storage else None,
        "study": study,
    }
    asked = {name: value for name, value in asked.items() if value is not None}
    config, options, folder = _settings(run, asked, flags)
    load_libraries()
    from tuner import plots, trial_plots  # bring matplotlib, which most commands do not need

    keys = Keys(flags["api_key"], flags["admin_api_key"])
    with ConsoleReporter() as reporter:
        if config.sim is not None:
            reporter.say(f"warning: simulated servers (preset {config.sim}): these are not measurements of yours")
        reporter.say(f"run folder: {folder}")
        since_s = time.time() - psutil.Process().create_time()
        outcome = run_tune(config, options, folder, command_line(), reporter, keys, flags["resume"], since_s)
    if outcome.recommendation is not None:
        tell(outcome.recommendation)
        finished = RunFolder(folder)
        plots.save_plots(finished, folder / "plots")
        if options.storage is None:
            trial_plots.save(finished, folder / "plots", trial_plots.trials(finished, options.study))
    last_line(outcome)
    raise typer.Exit(outcome.exit_code)


def seconds(text: str) -> float:
    """A time given as 20m, 900s, 1h or 900.

    Raises:
        UserError: another unit, or not above 0.
    """
    unit = {"s": 1.0, "m": 60.0, "h": 3600.0}.get(text[-1:])
    try:
        value = float(text[:-1]) * unit if unit else float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise UserError(f"--budget {text!r} is no time; give 20m, 900s or 1h")
    return value


def _settings(run: Path | None, asked: dict[str, Any], flags: dict[str, Any]) -> tuple[SweepConfig, TuneOptions, Path]:
    """Settings and folder: of the tuning that is resumed, of the run named, or of file and flags."""
    given = given_values({**dict.fromkeys(_NOT_OURS), **flags})
    if flags["resume"]:
        folder = run or flags["out"]
        if folder is None:
            raise UserError("--resume needs the run folder to go on with: specpivot tune RUN --resume")
        if given or flags["config"] or asked:
            raise UserError("--resume takes its settings from the run; leave out every other flag")
        return _resumed(folder)
    if run is not None:
        if given or flags["config"]:
            raise UserError(f"tune {run} takes that run's settings; leave out --config and the flags of sweep")
        stored = {key: value for key, value in RunFolder(run).manifest.config.items() if key != "tune"}
        return make_config(stored), TuneOptions(**asked), flags["out"] or default_folder()
    config, folder = sweep_settings(flags["config"], flags["out"], False, given)
    return config, TuneOptions(**asked), folder


def _resumed(folder: Path) -> tuple[SweepConfig, TuneOptions, Path]:
    stored = dict(RunFolder(folder).manifest.config)
    if "tune" not in stored:
        raise UserError(f"{folder} is no tuning; start one with other --out, or resume it with sweep")
    try:
        options = msgspec.convert(stored.pop("tune"), TuneOptions, str_keys=True)
    except msgspec.ValidationError as error:
        raise UserError(f"{folder}/manifest.json is damaged: config.tune: {error}; restore it from a copy") from error
    return make_config(stored), options, folder
