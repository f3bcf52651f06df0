"""The tuner's commands: tune (in tune_cli.py), recommend, export, apply, report, compare, serve (in service/).

People read standard error. The last line on standard output of recommend and apply is one compact JSON document;
export prints the exported text alone.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.table import Table

from harness.endpoint import Endpoint, check_url
from harness.errors import UserError
from harness.runfolder import RunFolder
from tuner import export as exports
from tuner.compare import Comparison, compare
from tuner.recommend import Objective, Recommendation, read, recommend
from tuner.replay import in_words, read_trace, replay
from tuner.service.serve_cli import serve
from tuner.texts import choice, console, last_line, share, tell
from tuner.traffic import weights_from
from tuner.tune_cli import tune, with_sweep_flags
from tuner.words import name, span

PARTIAL = 3  # finished, but some points are partial or invalid

Run = Annotated[Path, typer.Argument(help="Run folder made by sweep or tune.", show_default=False)]


def register(app: typer.Typer) -> None:
    """Mount the tuner's commands on the command line."""
    app.command("tune")(with_sweep_flags(tune))
    app.command("recommend")(recommend_command)
    app.command("export")(export_command)
    app.command("apply")(apply_command)
    app.command("report")(report_command)
    app.command("compare")(compare_command)
    app.command("serve")(serve)


def recommend_command(
    context: typer.Context,
    run: Annotated[Path | None, typer.Argument(help="Run folder made by sweep or tune.", show_default=False)] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Instead of a run: decode steps that a patched server recorded.")
    ] = None,
    latency_slack: Annotated[str, typer.Option(help="How much slower a lone user may become: 5% or 0.05.")] = "5%",
    objective_name: Annotated[
        str, typer.Option("--objective", help="score, or throughput (the literal one).")
    ] = "score",
    weights: Annotated[
        str | None, typer.Option(help="Traffic: CSV with concurrency, weight; or a server's URL.")
    ] = None,
    watch: Annotated[float, typer.Option(min=1, help="Seconds to watch that server's /metrics.")] = 60.0,
    plot: Annotated[bool, typer.Option(help="Write plots into RUN/plots.")] = True,
) -> None:
    """Recommend a threshold from measured curves, or from recorded live traffic; sends no load."""
    if (run is None) == (trace is None):
        raise UserError("give a run folder, or --trace FILE")
    if trace is not None:
        _refuse_beside_trace(context)
        recommend_from_trace(trace)
        return
    assert run is not None
    folder = RunFolder(run)
    histogram = weights_from(weights, watch) if weights else None
    found = recommend(folder, share(latency_slack), histogram, choice(objective_name, Objective, "--objective"))
    tell(found)
    if plot:
        from tuner import plots  # brings matplotlib, which most commands do not need

        files = plots.save_plots(folder, run / "plots")
        console().print(f"plots: {', '.join(str(file) for file in files if file.suffix == '.png')}", soft_wrap=True)
    last_line(found)
    if any(not row.usable for row in folder.levels()):
        raise typer.Exit(PARTIAL)


def _refuse_beside_trace(context: typer.Context) -> None:
    """A trace holds its own traffic and no curves: flags about them would be ignored."""
    given = [name for name in context.params if _given(context, name) and name != "trace"]
    flags = [f"--{name.removesuffix('_name').replace('_', '-')}" for name in given]
    if flags:
        raise UserError(f"--trace takes no {' and no '.join(flags)}; leave out what is for a run folder")


def _given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def recommend_from_trace(file: Path) -> None:
    """Replay every threshold against a step trace, and tell."""
    found = replay(read_trace(file), file.name)
    out = console()
    for line in in_words(found):
        out.print(line, soft_wrap=True, markup=False)
    for warning in found.warnings:
        out.print(f"warning: {warning}", style="yellow", soft_wrap=True)
    last_line(found)


def export_command(
    run: Run,
    form: Annotated[str, typer.Option("--format", help="json, sglang, sglang-adaptive, vllm or trtllm.")] = "json",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write here instead of standard output.")
    ] = None,
    num_steps: Annotated[int | None, typer.Option(min=1, help="Draft steps, where the run does not say.")] = None,
    one_threshold: Annotated[
        bool, typer.Option("--one-threshold", help="The best single threshold instead of a ladder.")
    ] = False,
) -> None:
    """Put the recommendation into the words of the server that is to use it."""
    folder = RunFolder(run)
    wanted = choice(form, exports.Format, "--format")
    made = exports.export(_chosen(folder, one_threshold), wanted, exports.measured_server(folder, num_steps))
    for note in made.notes:
        console().print(note, soft_wrap=True, markup=False)
    if folder.manifest.source == "simulated":
        console().print("SIMULATED: this threshold comes from a simulated server", style="bold red")
    if output is None:
        sys.stdout.write(made.text)
        return
    try:
        output.write_text(made.text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {output}: {error.strerror}; give another file with -o") from error


def report_command(run: Run) -> None:
    """Write RUN/report.html: one self-contained page, the answer first."""
    from tuner import report  # see recommend

    file = report.save_report(RunFolder(run))
    console().print(f"report: {file}", soft_wrap=True, markup=False)


def apply_command(
    run: Run,
    url: Annotated[str, typer.Option(help="A running patched server.")],
    one_threshold: Annotated[
        bool, typer.Option("--one-threshold", help="The best single threshold instead of a ladder.")
    ] = False,
    api_key: Annotated[str | None, typer.Option(envvar="SPECPIVOT_API_KEY", help="bearer token")] = None,
    admin_api_key: Annotated[str | None, typer.Option(envvar="SPECPIVOT_ADMIN_API_KEY")] = None,
) -> None:
    """Set the recommended threshold or ladder on a running patched server and read it back."""
    folder = RunFolder(run)
    found = _chosen(folder, one_threshold)
    endpoint = Endpoint(check_url(url), api_key, admin_api_key)
    simulated = (endpoint.server_info() or {}).get("simulation")
    if found.source == "simulated" and not simulated:
        console().print("warning: this threshold comes from a simulated server", style="bold red")
    block = endpoint.set_policy(found.policy)
    read_back = ("threshold", "resume_at", "min_dwell", *(("rungs",) if found.ladder else ()), "policy_id", "worker")
    shown = {key: block.get(key) for key in read_back}
    held = f"a ladder of {len(found.ladder)} rungs" if found.ladder else name(found.threshold)
    console().print(f"{endpoint.public_url} now holds {held}", soft_wrap=True, markup=False)
    last_line({"url": endpoint.public_url, "run": folder.path.name, **shown})


def _chosen(run: RunFolder, one_threshold: bool) -> Recommendation:
    """What is recommended; without its ladder where one threshold is wanted."""
    found = read(run)
    return msgspec.structs.replace(found, ladder=None) if one_threshold else found


def compare_command(run_a: Run, run_b: Run) -> None:
    """Differences between two runs with intervals; refuses what must not be compared."""
    found = compare(RunFolder(run_a), RunFolder(run_b))
    out = console()
    if found.source == "simulated":
        out.print("SIMULATED: nothing below was measured", style="bold red")
    out.print(differences(found))
    for run, fit in found.pivots.items():
        out.print(f"{run}: {name(fit['threshold'])}, 90 % {span(*fit['interval'])}", soft_wrap=True, markup=False)
    for note in found.notes:
        out.print(f"differs: {note}", soft_wrap=True, markup=False)
    if found.not_shared:
        out.print(f"{found.not_shared} points are in one of the runs only", soft_wrap=True)
    last_line(found)


def differences(found: Comparison) -> Table:
    """The differences as a table for people; clear ones are bold."""
    table = Table("variant", "C", "metric", found.run_a, found.run_b, "ratio", "95 %", box=None, header_style="bold")
    for item in found.differences:
        scale, unit = (1e3, "tpot, ms") if item.metric == "tpot_p50_s" else (1.0, "tokens/s")
        interval = "one repeat" if item.low is None else f"{item.low:.3f} to {item.high:.3f}"
        cells = (f"{item.a * scale:,.2f}", f"{item.b * scale:,.2f}", f"{item.ratio:.3f}", interval)
        table.add_row(item.variant, str(item.concurrency), unit, *cells, style="bold" if item.clear else "")
    return table
