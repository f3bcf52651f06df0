"""The commands that measure: sweep, bench, doctor, verify, selftest and serve-sim.

People read standard error; the last line on standard output is one compact JSON document.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from harness.bench_cli import WORDS_FOLLOW, bench
from harness.command import command_line, default_folder, last_line, load_libraries
from harness.config import SweepConfig, load_config, make_config
from harness.console import ConsoleReporter
from harness.doctor import Diagnosis, Releases, Validated, diagnose
from harness.environment import gpus
from harness.errors import UserError
from harness.gpus import VISIBLE
from harness.runfolder import RunFolder
from harness.selftest import save_calibration, selftest
from harness.sim.preset import DEFAULT_PRESET
from harness.sweep import Keys, run_sweep
from harness.verify import verify_run


def register(app: typer.Typer, releases: Releases, validated: Validated) -> None:
    """Add these commands to the command line.

    Args:
        app: the command line.
        releases: what the patched worker supports, for doctor.
        validated: on what it was tried, for doctor.
    """

    @app.command("doctor")
    def doctor() -> None:
        """Tell what would run here, and what is in the way."""
        report_diagnosis(diagnose(releases, validated))

    app.command("sweep")(sweep)
    app.command("bench", context_settings=WORDS_FOLLOW)(bench)
    app.command("verify")(verify)
    app.command("selftest")(selftest_command)
    app.command("serve-sim", add_help_option=False, context_settings=_PASS_THROUGH)(serve_sim)


# serve-sim's arguments are those of `python -m harness.sim.server`, which explains and checks them.
_PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True}


def report_diagnosis(diagnosis: Diagnosis) -> None:
    """Print what doctor found; exit 3 when something is in the way."""
    for finding in diagnosis.findings:
        remedy = f" -> {finding.remedy}" if finding.remedy else ""
        print(f"{finding.subject:<8} {finding.fact}{remedy}", file=sys.stderr)
    last_line(diagnosis)
    raise typer.Exit(0 if diagnosis.ok else 3)


def verify(
    run: Annotated[Path, typer.Argument(help="run folder", show_default=False)],
    write: Annotated[
        bool, typer.Option("--write", help="put recomputed figures in place of those that differ")
    ] = False,
) -> None:
    """Recompute levels.csv from requests.jsonl, and compare the token counts of client, server and worker."""
    report = verify_run(run, write)
    for problem in report.problems:
        print(problem, file=sys.stderr)
    print(f"{report.points} points recomputed, {report.token_checks} token counts compared", file=sys.stderr)
    last_line(report)
    raise typer.Exit(0 if report.ok else 3)


def selftest_command(
    seconds: Annotated[float, typer.Option(help="measuring window of each level")] = 4.0,
) -> None:
    """Calibrate this client on this machine against a bundled mock server; sweeps then know its limit."""
    load_libraries()
    report = selftest(seconds=seconds)
    for level in report.levels:
        print(
            f"C={level.concurrency:<4} ttft p50 {level.ttft_added_p50_s * 1e3:+.2f} ms, gap p99 "
            f"{level.gap_added_p99_s * 1e3:+.2f} ms, {level.cpu_us_per_token:.1f} us of CPU per token",
            file=sys.stderr,
        )
    print(f"kept in {save_calibration(report)}", file=sys.stderr)
    last_line(report)


def serve_sim(context: typer.Context) -> None:
    """Run one simulated SGLang server (see serve-sim --help)."""
    from harness.sim import server  # brings what simulates, which the other commands start as a process

    raise typer.Exit(server.main(context.args))


def sweep(
    config: Annotated[Path | None, typer.Option(help="sweep.toml; a flag given beside it wins")] = None,
    out: Annotated[Path | None, typer.Option(help="run folder, by default results/local-TIME")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="go on with the run in --out, with its own settings")
    ] = False,
    sim: Annotated[str | None, typer.Option(help="simulated servers from this preset")] = None,
    attach: Annotated[list[str] | None, typer.Option(help="VARIANT=URL of a running server; repeatable")] = None,
    model: Annotated[str | None, typer.Option(help="model path: start SGLang servers with it")] = None,
    draft: Annotated[str | None, typer.Option(help="EAGLE-3 draft model path")] = None,
    tp: Annotated[int | None, typer.Option(help="tensor-parallel size of started servers")] = None,
    worker: Annotated[str | None, typer.Option(help="EAGLE worker generation: auto, v1 (overlap off) or v2")] = None,
    num_steps: Annotated[int | None, typer.Option(help="--speculative-num-steps of started servers")] = None,
    topk: Annotated[int | None, typer.Option(help="--speculative-eagle-topk of started servers")] = None,
    draft_tokens: Annotated[int | None, typer.Option(help="--speculative-num-draft-tokens of started servers")] = None,
    server_arg: Annotated[list[str] | None, typer.Option(help="argument for every started server; repeatable")] = None,
    server_env: Annotated[list[str] | None, typer.Option(help="NAME=VALUE for every started server")] = None,
    resident: Annotated[str | None, typer.Option(help="servers up together, or alternate; default by --tp")] = None,
    variants: Annotated[str | None, typer.Option(help="comma-separated; default: all that can be measured")] = None,
    concurrency: Annotated[str | None, typer.Option(help="comma-separated requests in flight")] = None,
    repeats: Annotated[int | None, typer.Option(help="measurements of each point")] = None,
    duration: Annotated[float | None, typer.Option(help="measuring window of a point, seconds")] = None,
    warmup: Annotated[float | None, typer.Option(help="load before each window, seconds")] = None,
    threshold: Annotated[int | None, typer.Option(help="largest decode batch at which `dynamic` speculates")] = None,
    resume_at: Annotated[int | None, typer.Option(help="decode batch at which `dynamic` resumes")] = None,
    min_dwell: Annotated[int | None, typer.Option(help="decode steps off before `dynamic` may resume")] = None,
    input_tokens: Annotated[int | None, typer.Option(help="prompt tokens per request")] = None,
    output_tokens: Annotated[int | None, typer.Option(help="generated tokens per request")] = None,
    random_range_ratio: Annotated[float | None, typer.Option(help="spread of random lengths; 0 is exact")] = None,
    dataset: Annotated[str | None, typer.Option(help="random, or a dataset file")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="tokenizer folder: sends a dataset as templated ids")] = None,
    vocab_size: Annotated[int | None, typer.Option(help="random token ids stay below it")] = None,
    api: Annotated[str | None, typer.Option(help="generate, completions or chat")] = None,
    seed: Annotated[int | None, typer.Option(help="seed of the request lists")] = None,
    transport: Annotated[str | None, typer.Option(help="auto, raw or aiohttp")] = None,
    client_workers: Annotated[int | None, typer.Option(help="client processes; 0 chooses")] = None,
    time_scale: Annotated[float | None, typer.Option(help="simulated seconds per second")] = None,
    start_timeout: Annotated[float | None, typer.Option(help="seconds until a started server must be healthy")] = None,
    api_key: Annotated[str | None, typer.Option(envvar="SPECPIVOT_API_KEY", help="bearer token")] = None,
    admin_api_key: Annotated[str | None, typer.Option(envvar="SPECPIVOT_ADMIN_API_KEY")] = None,
) -> None:
    """Measure throughput and latency of each variant over a range of concurrencies."""
    given = given_values(locals())
    settings, folder = sweep_settings(config, out, resume, given)
    load_libraries()
    with ConsoleReporter() as reporter:
        if settings.sim is not None:
            reporter.say(f"warning: simulated servers (preset {settings.sim}): these are not measurements of yours")
        reporter.say(f"run folder: {folder}")
        outcome = run_sweep(settings, folder, command_line(), reporter, Keys(api_key, admin_api_key), resume)
    last_line(outcome)
    raise typer.Exit(outcome.exit_code)


def given_values(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of a sweep's settings from the values of `sweep`'s flags, those not given left out."""
    parsed = dict(flags) | {
        "attach": _pairs("--attach", flags["attach"]),
        "server_args": flags["server_arg"],
        "server_env": _pairs("--server-env", flags["server_env"]),
        "variants": _words(flags["variants"]),
        "concurrency": _numbers("--concurrency", flags["concurrency"]),
    }
    known = {field.encode_name for field in msgspec.structs.fields(SweepConfig)}
    return {name: value for name, value in parsed.items() if name in known and value is not None}


def sweep_settings(
    config: Path | None, out: Path | None, resume: bool, given: dict[str, Any]
) -> tuple[SweepConfig, Path]:
    """The sweep's settings and folder: from the run itself when resuming, else from file and flags."""
    if resume:
        return _resumed(config, out, given)
    values = _merged(load_config(config) if config else {}, given)
    if not {"sim", "attach", "model"} & values.keys():
        if gpus():
            raise UserError("say what to measure: --model with --draft, --attach VARIANT=URL, or --sim PRESET")
        values["sim"] = DEFAULT_PRESET
    return make_config(values), out or default_folder()


def _resumed(config: Path | None, out: Path | None, given: dict[str, Any]) -> tuple[SweepConfig, Path]:
    """What the run says of itself; only on which GPUs its servers run may be said anew, as others may be free now."""
    if out is None:
        raise UserError("--resume needs --out, the run folder to go on with")
    env = given.get("server_env", {})
    if config or given.keys() - {"server_env"} or env.keys() - {VISIBLE}:
        raise UserError(
            "--resume takes its settings from the run; leave out --config and every other flag, except for"
            f" --server-env {VISIBLE}=GPU"
        )
    stored = make_config(RunFolder(out).manifest.config)
    return msgspec.structs.replace(stored, server_env=stored.server_env | env), out


def _merged(file: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Flags over file keys; arguments and variables of servers add up instead."""
    merged = file | given
    if "server_args" in file and "server_args" in given:
        merged["server_args"] = [*file["server_args"], *given["server_args"]]
    if "server_env" in file and "server_env" in given:
        merged["server_env"] = file["server_env"] | given["server_env"]
    return merged


def _words(text: str | None) -> list[str] | None:
    return None if text is None else [word.strip() for word in text.split(",") if word.strip()]


def _numbers(flag: str, text: str | None) -> list[int] | None:
    words = _words(text)
    try:
        return None if words is None else [int(word) for word in words]
    except ValueError:
        raise UserError(f"{flag} {text!r}: give whole numbers, such as {flag} 1,2,4,8") from None


def _pairs(flag: str, items: list[str] | None) -> dict[str, str] | None:
    if not items:
        return None
    pairs = [item.partition("=") for item in items]
    for name, equals, value in pairs:
        if not (name and equals and value):
            raise UserError(f"{flag} {name!r}: give it as NAME=VALUE")
    return {name: value for name, _, value in pairs}


def run(app: typer.Typer) -> None:
    """Run the command line: one line for bad input, exit code 2; 130 when interrupted twice."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # outside of a sweep it ends a command as Ctrl-C does
    try:
        if not all(_is_text(word) for word in sys.argv):
            raise UserError("an argument is not valid UTF-8; rename the file or give another name")
        try:
            app()
        finally:
            _exit_undisturbed()
    except UserError as error:
        print(f"specpivot: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("specpivot: interrupted; what was measured is in the run folder, --resume goes on", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _exit_undisturbed() -> None:
    """Ignore further signals: they would kill Python while it ends, and hide the exit code that tells what happened."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _is_text(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True
