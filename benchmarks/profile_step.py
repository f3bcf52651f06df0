r"""Where the time of a decode step goes, stage by stage: baseline, always off and always on, beside one another.

Each state is put under the same steady load of long answers, SGLang's own profiler (/start_profile) records some steps,
and the trace is summed by stage (benchmarks.stages). Profiling slows the processor's part of a step down, so the time
in kernels counts here, and the speed of a server in a sweep. The very last line on standard output is one compact JSON
document; it grows in --out, where the traces stay, and the same command goes on with it.

    python -m benchmarks.profile_step --config results/configs/NAME.toml --model TARGET --draft DRAFT \
      --concurrency 128 --steps 20 --out results/local-profile
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import get_args

import msgspec

from benchmarks.asked import add_settings, attached, settings_of
from benchmarks.folders import begun
from benchmarks.stages import Event, Profile, Stage, profile, read_trace
from harness.config import SweepConfig, make_config
from harness.console import ConsoleReporter
from harness.endpoint import MAX_BODY_BYTES
from harness.errors import UserError
from harness.exchange import exchange
from harness.load import run_closed_loop
from harness.load_plan import LoadPlan
from harness.manifest import new_manifest, workload_of
from harness.records import PointKey, Variant
from harness.regular import replace_file
from harness.servers import Server
from harness.sweep import Keys, interruptible, opened
from harness.variants import policy_of, server_plans

VARIANTS: tuple[Variant, ...] = ("baseline", "forced_off", "eagle3")
STEADY_S, PATIENCE_S, LOOK_S, LOAD_S = 6.0, 300.0, 2.0, 3600.0
TRACES = "*TP-0*.trace.json.gz"  # of the first rank
ANSWER_TOKENS = 1536  # hardly anybody begins or ends while it is recorded, and two servers' KV caches fit a GPU


class Found(msgspec.Struct, frozen=True):
    """The document."""

    concurrency: int
    steps: int
    profiles: dict[Variant, Profile]


def settings(asked: argparse.Namespace) -> SweepConfig:
    """The sweep's settings with one load of long answers.

    Raises:
        UserError: a setting that cannot be.
    """
    document = settings_of(asked) | {"variants": asked.variants.split(","), "attach": attached(asked.attach)}
    document["concurrency"] = [asked.concurrency]
    document |= {"output_tokens": asked.output_tokens, "random_range_ratio": 0.0, "repeats": 1}
    return make_config(document)


def traced(server: Server, folder: Path, steps: int, cpu: bool) -> list[Event]:
    """Let a server that is under load record so many steps; the events of its first rank.

    Raises:
        UserError: it refused, or wrote no trace in time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob(TRACES):  # of an earlier try: it is whole at once
        old.unlink()
    body = {
        "output_dir": str(folder.resolve()),
        "num_steps": steps,
        "activities": ["CPU"] if cpu else ["CPU", "GPU"],
        "with_stack": True,
        "record_shapes": False,
    }
    headers = {"Content-Type": "application/json", **server.endpoint.headers}
    sent = json.dumps(body).encode()
    try:
        exchange(server.endpoint.url, "/start_profile", "POST", sent, headers, PATIENCE_S, MAX_BODY_BYTES)
    except (OSError, ValueError) as error:
        raise UserError(f"{server.endpoint.public_url} does not profile: {error}") from error
    return whole_trace(folder, server.endpoint.public_url)


def whole_trace(folder: Path, url: str) -> list[Event]:
    """The trace, once all of it is written: the file grows for as long as it is compressed.

    Raises:
        UserError: it is not there in time.
    """
    deadline, seen = time.monotonic() + PATIENCE_S, -1
    while time.monotonic() < deadline:
        files = sorted(folder.glob(TRACES))
        size = files[-1].stat().st_size if files else -1
        if size > 0 and size == seen:
            with suppress(UserError):
                return read_trace(files[-1])
        seen = size
        time.sleep(LOOK_S)
    raise UserError(f"{url} wrote no whole trace into {folder} within {PATIENCE_S:.0f} s")


@contextmanager
def under_load(server: Server, config: SweepConfig, variant: Variant) -> Iterator[None]:
    """A closed loop on the server, steady when the block begins and ended with it."""
    plan = LoadPlan(
        url=server.endpoint.url,
        api=config.api,
        headers=server.endpoint.headers,
        concurrency=config.max_concurrency,
        warmup_s=STEADY_S / 2,
        duration_s=LOAD_S,
        workers=config.client_workers,
    )
    key, stop = PointKey(variant, config.max_concurrency, 1), threading.Event()
    requests = workload_of(config, under_way=False).requests(config.max_concurrency, 1)
    load = threading.Thread(target=run_closed_loop, args=(plan, requests, key, 1, lambda records: None, None, stop))
    load.start()
    try:
        time.sleep(STEADY_S)
        yield
    finally:
        stop.set()
        load.join()


def measure(config: SweepConfig, out: Path, steps: int, cpu: bool) -> Found:
    """A profile of every variant; those that OUT/profiles.json holds by now are not taken again.

    Raises:
        UserError: the folder is of another load, or a variant has no server or no trace; the others are in the file.
    """
    file, run = out / "profiles.json", out / "run"
    found = Found(config.max_concurrency, steps, {})
    if file.exists():
        found = msgspec.json.decode(file.read_bytes(), type=Found)
        if (found.concurrency, found.steps) != (config.max_concurrency, steps):
            raise UserError(f"{file} is of another --concurrency or --steps; give another --out")
    plans = [plan for plan in server_plans(config) if not found.profiles.keys() >= set(plan.variants)]
    made = new_manifest(config, ("benchmarks.profile_step", *sys.argv[1:]), under_way=False)
    with (
        ConsoleReporter() as reporter,
        interruptible() as stop,
        begun(run, made) as writer,
    ):
        for phase in [plans] * bool(plans) if config.together else [[plan] for plan in plans]:
            with opened(config, phase, writer, workload_of(config), reporter, Keys(), stop) as bench:
                for variant, server in bench.servers.items():
                    if variant not in found.profiles and not stop.is_set():
                        reporter.say(f"profiling {steps} steps of {variant}")
                        found.profiles[variant] = profiled(server, config, variant, out, steps, cpu)
                        replace_file(file, msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    missing = [variant for variant in config.variants if variant not in found.profiles]
    if missing:
        raise UserError(f"no profile of {', '.join(missing)}; see {run}, then give the same command again")
    return found


def profiled(server: Server, config: SweepConfig, variant: Variant, out: Path, steps: int, cpu: bool) -> Profile:
    """The profile of a server under load, in the state of a variant; errors are those of `traced`."""
    policy = policy_of(variant, config)
    server.endpoint.flush_when_idle(PATIENCE_S)
    if policy is not None and server.patched:
        server.endpoint.set_policy(policy)
    with under_load(server, config, variant):
        events = traced(server, out / variant, steps, cpu)
    return profile(events)


def table(found: dict[Variant, Profile], steps: int) -> str:
    """Milliseconds per step by stage, a column per variant, as Markdown."""
    head = ["ms per step", *found]
    stages = [stage for stage in get_args(Stage) if any(stage in one.stages for one in found.values())]
    rows = [[stage, *(f"{one.stages.get(stage, 0.0) / steps * 1e3:.3f}" for one in found.values())] for stage in stages]
    rows.append(["all kernels", *(f"{sum(one.stages.values()) / steps * 1e3:.3f}" for one in found.values())])
    rows.append(["no kernel", *(f"{one.idle_s / steps * 1e3:.3f}" for one in found.values())])
    rows.append(["kernels, number", *(f"{sum(one.counts.values()) / steps:.0f}" for one in found.values())])
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_settings(parser)
    parser.add_argument("--attach", action="append", metavar="VARIANT=URL", help="servers that run already, here")
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--concurrency", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=ANSWER_TOKENS)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--cpu", action="store_true", help="the servers run on a CPU")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args(arguments)
    try:
        found = measure(settings(asked), asked.out, asked.steps, asked.cpu)
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(table(found.profiles, found.steps), file=sys.stderr)
    print(msgspec.json.encode(found).decode())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
