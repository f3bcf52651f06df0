"""`specpivot bench`: one running server, one load, a run folder and a table.

Flags are named as `sglang.bench_serving` and `vllm bench serve` name them, beside the names that `sweep` has.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Annotated, Any, cast, get_args

import msgspec
import typer

from harness.command import command_line, default_folder, last_line, load_libraries
from harness.config import SweepConfig
from harness.console import ConsoleReporter
from harness.errors import UserError
from harness.openload import Arrival, Arrivals, check_arrivals
from harness.openloop import OpenMetrics, Slo
from harness.records import LevelRow
from harness.single import Asked, BenchReport, run_bench
from harness.sweep import Keys

OPEN_LOOP_CONCURRENCY = 1024  # the most in flight where nothing else is said
# Words that follow --goodput KEY:VALUE, as the other tools take them.
WORDS_FOLLOW = {"allow_extra_args": True}
_SHARED = {field.encode_name for field in msgspec.structs.fields(SweepConfig)} - {"model"}  # here it is a name
_LIMITS = {"ttft": "ttft_s", "tpot": "tpot_s", "gap": "gap_max_s", "e2e": "e2e_s", "e2el": "e2e_s"}


def bench(
    context: typer.Context,
    url: Annotated[str, typer.Option("--url", "--base-url", help="the running server", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="run folder, by default results/local-TIME")] = None,
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", "--max-concurrency", help="requests in flight; the most, in an open loop"),
    ] = None,
    request_rate: Annotated[float | None, typer.Option(help="open loop: requests per second")] = None,
    arrival: Annotated[str, typer.Option(help="constant, poisson, or gamma with --burstiness")] = "poisson",
    burstiness: Annotated[float, typer.Option(help="shape of the gamma: 1 is Poisson, below 1 bursts")] = 1.0,
    ramp: Annotated[str | None, typer.Option(help="A,B,SECONDS: a rate that goes from A to B")] = None,
    burst: Annotated[str | None, typer.Option(help="RATE,BURST_RATE,EVERY_S,LENGTH_S: regular bursts")] = None,
    trace: Annotated[str | None, typer.Option(help="Mooncake JSON lines, BurstGPT or Azure CSV to replay")] = None,
    trace_speedup: Annotated[float, typer.Option(help="divides the trace's times")] = 1.0,
    drop_after: Annotated[float | None, typer.Option(help="open loop: drop what is so many seconds late")] = None,
    goodput: Annotated[
        list[str] | None, typer.Option(help="limits in ms that a good request keeps to: ttft:500 tpot:50 e2e:9000")
    ] = None,
    duration: Annotated[float | None, typer.Option(help="measuring window, seconds; by default 20, or a trace")] = None,
    warmup: Annotated[float | None, typer.Option(help="load before it, seconds; by default 5, or 0 of a trace")] = None,
    input_tokens: Annotated[int | None, typer.Option("--input-tokens", "--random-input-len")] = None,
    output_tokens: Annotated[int | None, typer.Option("--output-tokens", "--random-output-len")] = None,
    random_range_ratio: Annotated[float | None, typer.Option(help="spread of random lengths; 0 is exact")] = None,
    dataset: Annotated[
        str | None, typer.Option("--dataset", "--dataset-path", help="random, or a dataset file")
    ] = None,
    tokenizer: Annotated[str | None, typer.Option(help="tokenizer folder: sends a dataset as templated ids")] = None,
    vocab_size: Annotated[int | None, typer.Option(help="random token ids stay below it")] = None,
    api: Annotated[str | None, typer.Option(help="generate, completions or chat")] = None,
    model: Annotated[str, typer.Option(help="model name that an OpenAI API is given")] = "default",
    seed: Annotated[int | None, typer.Option(help="seed of requests and arrivals")] = None,
    transport: Annotated[str | None, typer.Option(help="auto, raw or aiohttp")] = None,
    client_workers: Annotated[int | None, typer.Option(help="client processes; 0 chooses")] = None,
    api_key: Annotated[str | None, typer.Option(envvar="SPECPIVOT_API_KEY", help="bearer token")] = None,
    admin_api_key: Annotated[str | None, typer.Option(envvar="SPECPIVOT_ADMIN_API_KEY")] = None,
) -> None:
    """Measure one running server under one load: closed by --concurrency, or open by a rate, ramp, burst or trace."""
    given = {name: value for name, value in locals().items() if name in _SHARED and value is not None}
    arrivals = Arrivals(
        rate=None if request_rate == math.inf else request_rate,
        arrival=cast(Arrival, _one_of("--arrival", arrival, get_args(Arrival))),
        burstiness=burstiness,
        ramp=_floats("--ramp", ramp, 3),
        burst=_floats("--burst", burst, 4),
        trace=trace,
        trace_speedup=trace_speedup,
    )
    asked = Asked(arrivals, model, drop_after, limits_of([*(goodput or ()), *context.args]))
    settings = load_settings(given, asked)
    folder = out or default_folder()
    load_libraries()
    with ConsoleReporter() as reporter:
        reporter.say(f"run folder: {folder}")
        report = run_bench(url, settings, asked, folder, command_line(), reporter, Keys(api_key, admin_api_key))
    for line in table(report):
        print(line, file=sys.stderr)
    last_line(report)
    raise typer.Exit(report.exit_code)


def load_settings(given: dict[str, Any], asked: Asked) -> dict[str, Any]:
    """Keys of SweepConfig for the load.

    Raises:
        UserError: no load, two of them, or a flag that does not go with it.
    """
    arrivals = asked.arrivals
    check_arrivals(arrivals)
    settings = dict(given)
    if not arrivals.open_loop and "concurrency" not in given:
        raise UserError("say the load: --concurrency N, or one of --request-rate, --ramp, --burst and --trace")
    if asked.drop_after_s is not None and not (arrivals.open_loop and 0 <= asked.drop_after_s < math.inf):
        raise UserError("--drop-after: give seconds, 0 or more, and an open loop: a closed one is never late")
    settings["concurrency"] = [given.get("concurrency", OPEN_LOOP_CONCURRENCY)]
    if arrivals.trace is not None:
        if given.get("api") == "chat" or "dataset" in given:
            raise UserError("--trace sends token ids of the recorded lengths; leave --dataset and --api chat out")
        settings = {"warmup": 0.0, "duration": arrivals.trace_s} | settings
    return settings


def limits_of(words: list[str]) -> Slo:
    """Limits given as KEY:MILLISECONDS.

    Raises:
        UserError: an unknown key, or no time.
    """
    limits: dict[str, float] = {}
    for word in " ".join(words).split():
        key, _, value = word.partition(":")
        try:
            limit_s = float(value) / 1000
        except ValueError:
            limit_s = 0.0
        if key not in _LIMITS or not 0 < limit_s < math.inf:
            raise UserError(f"{word!r} is no limit; give --goodput ttft:500 tpot:50 e2e:9000 gap:100, in ms")
        limits[_LIMITS[key]] = limit_s
    return Slo(**limits)


def _floats(flag: str, text: str | None, count: int) -> Any:
    if text is None:
        return None
    try:
        numbers = tuple(float(word) for word in text.split(","))
    except ValueError:
        numbers = ()
    if len(numbers) != count:
        raise UserError(f"{flag} {text!r}: give {count} numbers with commas between")
    return numbers


def _one_of(flag: str, word: str, known: tuple[str, ...]) -> str:
    if word not in known:
        raise UserError(f"{flag} {word!r}: give one of {', '.join(known)}")
    return word


def table(report: BenchReport) -> list[str]:
    """The result as lines for people."""
    row = report.point
    if row is None:
        return []
    lines = [f"requests    {row.requests} in {row.duration_s:.1f} s, {row.errors} failed"]
    if report.open is not None:
        lines += _open_lines(report.open, row.dropped or 0)
    spread = f" ({row.output_tok_per_s_low:,.0f} to {row.output_tok_per_s_high:,.0f})" if _has_interval(row) else ""
    lines.append(f"output      {_number(row.output_tok_per_s, 1)} tok/s{spread}")
    lines.append(f"{'ms':<22}{'p50':>10} {'95 %':<22}{'p99':>10} {'95 %'}")
    lines += [_latency_line(*latency, row) for latency in _latencies(report, row)]
    if report.goodput is not None:
        share = "-" if report.goodput.share is None else f"{report.goodput.share:.1%}"
        lines.append(f"goodput     {report.goodput.good_per_s:.2f}/s, {share} of the requests kept to all limits")
    return lines


def _latency_line(name: str, p50: float | None, p99: float | None, row: LevelRow) -> str:
    """A closed loop's latencies have intervals in the row; those of an open loop's schedule have none."""
    figures = ((p50, _interval(row, f"{name}_p50_s")), (p99, _interval(row, f"{name}_p99_s")))
    return f"{name:<22}" + " ".join(f"{_number(value, 1e3):>10} {words:<21}" for value, words in figures).rstrip()


def _interval(row: LevelRow, column: str) -> str:
    low, high = getattr(row, f"{column}_low", None), getattr(row, f"{column}_high", None)
    return "" if low is None and high is None else f"({_number(low, 1e3)} to {_number(high, 1e3)})"


def _open_lines(figures: OpenMetrics, dropped: int) -> list[str]:
    rates = f"{figures.offered_per_s:.2f}/s due, {figures.achieved_per_s:.2f}/s answered"
    return [f"open loop   {rates}, {figures.late} late, {dropped} dropped"]


def _latencies(report: BenchReport, row: LevelRow) -> list[tuple[str, float | None, float | None]]:
    both = report.open
    inner = [("tpot", row.tpot_p50_s, row.tpot_p99_s), ("gap", row.gap_p50_s, row.gap_p99_s)]
    if both is None:
        return [("ttft", row.ttft_p50_s, row.ttft_p99_s), *inner, ("e2e", row.e2e_p50_s, row.e2e_p99_s)]
    return [
        ("ttft from schedule", both.ttft_scheduled_p50_s, both.ttft_scheduled_p99_s),
        ("ttft from send", both.ttft_sent_p50_s, both.ttft_sent_p99_s),
        *inner,
        ("e2e from schedule", both.e2e_scheduled_p50_s, both.e2e_scheduled_p99_s),
        ("e2e from send", both.e2e_sent_p50_s, both.e2e_sent_p99_s),
    ]


def _has_interval(row: LevelRow) -> bool:
    return row.output_tok_per_s_low is not None and row.output_tok_per_s_high is not None


def _number(value: float | None, factor: float) -> str:
    return "-" if value is None else f"{value * factor:,.2f}"
