r"""Does switching change what a server says, or how well its draft foresees it? For pairs whose weights mean something.

Answers: waves of requests, greedy, so many at once that each wave begins above the threshold and ends below it. They
are asked of the baseline, of static EAGLE-3 and of the switching server; an answer has diverged when its tokens differ
from the baseline's. In half precision some do on any server whose batches differ, so the claim is that switching does
not make it more: an exact test on the requests that diverged on one of the two only.

Acceptance: under a steady load speculation runs for --verify-steps steps of the server, before it has been off under
that load, then for as many in periods that each follow an off period. A position of the draft's KV that off steps left
wrong would stay so as long as its request lives. Slices of seconds give the interval. The last line is JSON.

    python -m benchmarks.likeness --config results/configs/h200-0.5.16-v2-pair-code.toml \
      --model results/local-pair/target --draft results/local-pair/draft --threshold 24 --out results/local-likeness
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from scipy import stats

from benchmarks.asked import add_settings, attached, require_players, settings_of
from benchmarks.profile_step import under_load
from harness.config import SweepConfig, make_config
from harness.console import ConsoleReporter
from harness.endpoint import MAX_BODY_BYTES, Endpoint, specpivot_block
from harness.errors import UserError
from harness.exchange import exchange
from harness.manifest import new_manifest, workload_of
from harness.proof import Steps, steps_between
from harness.records import Variant
from harness.regular import replace_file
from harness.runfolder import RunWriter
from harness.servers import Server
from harness.sweep import Keys, interruptible, opened
from harness.variants import server_plans
from patched_worker.policy import Policy

VARIANTS: tuple[Variant, ...] = ("baseline", "eagle3", "forced_off", "dynamic")
RISK, CONFIDENCE = 0.05, 0.95
ANSWER_TIMEOUT_S, WAIT_S = 600.0, 120.0
SLICE_S, OFF_S = 2.0, 2.0
LENGTHS = 8  # of answers, so that a wave thins out
Tokens = tuple[int, ...]


class Divergence(msgspec.Struct, frozen=True):
    """How many answers differ from the baseline's.

    Attributes:
        only_static, only_dynamic: that diverged on one of the two only.
        p: of so many more with switching, if it made no difference.
        switches: of the switching server meanwhile.
    """

    answers: int
    static: int
    dynamic: int
    only_static: int
    only_dynamic: int
    p: float
    switches: int
    met: bool


class Acceptance(msgspec.Struct, frozen=True):
    """Accept lengths before and after off periods.

    Attributes:
        before, after: tokens per request and verify step.
        low, high: 95 % interval of after less before.
        verify_steps: of the server, before and after.
        off_periods: between the slices of the second part.
    """

    before: float
    after: float
    low: float
    high: float
    verify_steps: tuple[int, int]
    off_periods: int
    met: bool


def diverged(baseline: Sequence[Tokens], other: Sequence[Tokens]) -> list[bool]:
    """Which answers differ."""
    return [one != two for one, two in zip(baseline, other, strict=True)]


def compared(static: Sequence[bool], dynamic: Sequence[bool], switches: int) -> Divergence:
    """Static EAGLE-3 and the switching server, request by request."""
    more = sum(d and not s for s, d in zip(static, dynamic, strict=True))
    fewer = sum(s and not d for s, d in zip(static, dynamic, strict=True))
    p = float(stats.binomtest(more, more + fewer, alternative="greater").pvalue) if more + fewer else 1.0
    counts = len(static), sum(static), sum(dynamic), fewer, more
    return Divergence(*counts, p=p, switches=switches, met=p >= RISK and switches > 0)


def accepted(before: Sequence[Steps], after: Sequence[Steps]) -> Acceptance:
    """Accept lengths of the slices of both parts, and whether they agree.

    Raises:
        UserError: too few slices speculated.
    """
    parts = [[one for one in of if one.accept_len is not None] for of in (before, after)]
    if min(map(len, parts)) < 2:
        raise UserError("fewer than two slices of a part speculated; raise --verify-steps or the load")
    values = [np.array([one.accept_len for one in of], dtype=float) for of in parts]
    low = high = float(values[1].mean() - values[0].mean())
    if any(np.ptp(of) for of in values):  # otherwise that is all of the interval
        span = stats.ttest_ind(values[1], values[0], equal_var=False).confidence_interval(CONFIDENCE)
        low, high = float(span.low), float(span.high)
    means = [_mean(of) for of in parts]
    steps = tuple(sum(one.on for one in of) for of in parts)
    return Acceptance(means[0], means[1], low, high, (steps[0], steps[1]), len(parts[1]), low <= 0.0 <= high)


def verified(steps: Steps) -> int:
    """Verify steps of a request."""
    return sum(batch * count for (batch, state), (count, _, _) in steps.by_batch.items() if state == "on")


def _mean(parts: Sequence[Steps]) -> float:
    return sum((one.accept_len or 0.0) * verified(one) for one in parts) / sum(map(verified, parts))


# ---- on servers


def bodies(config: SweepConfig, count: int) -> list[bytes]:
    """The requests, each answered in one piece, from half as long as the data set says to as long.

    Off steps bring every request of a wave one token: answers of one length would end together, and the batch would
    never be below the threshold.
    """
    found, whole = [], workload_of(config, under_way=False)
    for index, planned in enumerate(islice(whole.requests(config.max_concurrency, 1), count)):
        body = json.loads(planned.body) | {"stream": False}
        sampling = body["sampling_params"]
        sampling["max_new_tokens"] = math.ceil(
            sampling["max_new_tokens"] * (LENGTHS + index % LENGTHS + 1) / LENGTHS / 2
        )
        found.append(json.dumps(body).encode())
    return found


def answers(endpoint: Endpoint, requests: Sequence[bytes], at_once: int) -> list[Tokens]:
    """Output tokens, asked in waves: the next one begins when all of one have ended."""
    found: list[Tokens] = []
    with ThreadPoolExecutor(at_once) as pool:
        for wave in _waves(requests, at_once):
            found += pool.map(lambda body: _answer(endpoint, body), wave)
    return found


def _waves(requests: Sequence[bytes], at_once: int) -> Iterator[Sequence[bytes]]:
    yield from (requests[first : first + at_once] for first in range(0, len(requests), at_once))


def _answer(endpoint: Endpoint, body: bytes) -> Tokens:
    headers = {"Content-Type": "application/json", **endpoint.headers}
    reply = exchange(endpoint.url, "/generate", "POST", body, headers, ANSWER_TIMEOUT_S, MAX_BODY_BYTES)
    return tuple(json.loads(reply)["output_ids"])


def block(endpoint: Endpoint) -> dict[str, Any]:
    """The worker's counters.

    Raises:
        UserError: it has none.
    """
    found = specpivot_block(endpoint.server_info())
    if found is None:
        raise UserError(f"{endpoint.public_url} is no patched server; start it with `python -m patched_worker`")
    return found


def divergence(baseline: Server, patched: Server, config: SweepConfig, count: int, at_once: int) -> Divergence:
    """Ask all three."""
    requests = bodies(config, count)
    wanted = answers(baseline.endpoint, requests, at_once)
    endpoint = patched.endpoint
    endpoint.set_policy(Policy.from_threshold(None))
    static = diverged(wanted, answers(endpoint, requests, at_once))
    endpoint.flush_when_idle(WAIT_S)
    endpoint.set_policy(config.dynamic_policy)
    before = block(endpoint)
    dynamic = diverged(wanted, answers(endpoint, requests, at_once))
    return compared(static, dynamic, steps_between(before, block(endpoint)).switches)


def acceptance(server: Server, config: SweepConfig, steps: int) -> Acceptance:
    """Speculate for so many verify steps, then for as many after off periods, under one steady load.

    Raises:
        UserError: the server has stopped speculating, as when its load has ended.
    """
    endpoint = server.endpoint
    on, off = Policy.from_threshold(None), Policy.from_threshold(0)
    endpoint.flush_when_idle(WAIT_S)
    endpoint.set_policy(on)
    before: list[Steps] = []
    after: list[Steps] = []
    with under_load(server, config, "dynamic"):
        while sum(one.on for one in before) < steps:
            before.append(_slice(endpoint))
        while sum(one.on for one in after) < steps:
            endpoint.set_policy(off)
            time.sleep(OFF_S)
            endpoint.set_policy(on)
            after.append(_slice(endpoint))
    return accepted(before, after)


def _slice(endpoint: Endpoint) -> Steps:
    begun, deadline = block(endpoint), time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        time.sleep(SLICE_S)
        found = steps_between(begun, block(endpoint))
        if found.on:
            return found
    raise UserError(f"{endpoint.public_url} made no verify step in {WAIT_S:.0f} s; see its log and the load's words")


def _written(out: Path, document: dict[str, Any]) -> bytes:
    """The document, which is on disk as far as it is known."""
    text = msgspec.json.encode(document)
    replace_file(out / "likeness.json", msgspec.json.format(text, indent=1) + b"\n")
    return text


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_settings(parser)
    parser.add_argument("--attach", action="append", metavar="VARIANT=URL", help="servers that run already")
    parser.add_argument("--threshold", type=int, required=True)
    parser.add_argument("--answers", type=int, default=512)
    parser.add_argument("--verify-steps", type=int, default=6000)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args(arguments)
    try:
        document = settings_of(asked) | {"variants": list(VARIANTS), "attach": attached(asked.attach)}
        document["threshold"] = asked.threshold
        config = make_config(document | {"concurrency": [2 * asked.threshold]})
        if not config.together:
            raise UserError("answers are compared on servers that are up together; give a --config whose servers fit")
        plans = server_plans(config)
        made = new_manifest(config, ("benchmarks.likeness", *sys.argv[1:]), under_way=False)
        with (
            ConsoleReporter() as reporter,
            interruptible() as stop,
            RunWriter.create(asked.out, made) as writer,
            opened(config, plans, writer, workload_of(config), reporter, Keys(), stop) as bench,
        ):
            require_players(bench.servers, VARIANTS, asked.out)
            patched = bench.servers["dynamic"]
            reporter.say(f"asking for {asked.answers} answers of each of three")
            apart = divergence(bench.servers["baseline"], patched, config, asked.answers, config.max_concurrency)
            text = _written(asked.out, {"source": writer.manifest.source, "divergence": apart})
            reporter.say(f"{apart.static} diverged with static EAGLE-3, {apart.dynamic} with {apart.switches} switches")
            foreseen = acceptance(patched, config, asked.verify_steps)
            text = _written(asked.out, {"source": writer.manifest.source, "divergence": apart, "acceptance": foreseen})
            reporter.say(f"accept length {foreseen.before:.3f} before and {foreseen.after:.3f} after off periods")
    except (UserError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(text.decode())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
