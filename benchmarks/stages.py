"""A torch profiler's trace of a server, summed by stage of a decode step.

A kernel belongs to the stage whose Python functions were running when it was launched; a replayed CUDA graph is one
launch, so all of its kernels do. Functions are known by name, in SGLang 0.5.9 to 0.5.23 and in the patched worker. On a
CPU, whose traces have no kernels, the outermost operators stand for them: enough to see that the stages are found.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from harness.errors import UserError

Stage = Literal["catch_up", "draft_extend", "draft", "sample", "target", "verify", "off_step", "worker", "scheduler"]
# The first that any running function matches: what is special comes before what contains it.
_STAGES: tuple[tuple[Stage, re.Pattern[str]], ...] = (
    ("catch_up", re.compile(r"off_step\.py\(\d+\): _catch_up$")),
    ("draft_extend", re.compile(r": \w*draft_extend\w*$")),
    ("draft", re.compile(r"(eagle|draft)\w*\.py\(\d+\): draft(_forward)?$")),
    ("sample", re.compile(r"model_runner\.py\(\d+\): sample$|sampler\.py\(\d+\): forward$")),
    ("target", re.compile(r"model_runner\.py\(\d+\): forward$")),
    ("verify", re.compile(r": verify$|: eagle_sample$")),
    ("off_step", re.compile(r"patched_worker/(off_step|eagle_v1)\.py\(\d+\): run$")),
    ("worker", re.compile(r"(eagle|tp)_worker\w*\.py\(\d+\): ")),
    ("scheduler", re.compile(r"")),
)
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCH = ("cuda_runtime", "cuda_driver")
US = 1e-6
Event = dict[str, Any]


class Profile(msgspec.Struct, frozen=True):
    """A trace in seconds.

    Attributes:
        device: "gpu", or "cpu" where operators stand for kernels.
        stages: time in kernels, by stage.
        counts: kernels, by stage.
        kernels: time of the longest kernels, by name.
        span_s: from the first kernel's start to the last one's end.
        busy_s: part of it in which a kernel ran, whichever stream.
    """

    device: Literal["gpu", "cpu"]
    stages: dict[Stage, float]
    counts: dict[Stage, int]
    kernels: dict[str, float]
    span_s: float
    busy_s: float

    @property
    def idle_s(self) -> float:
        return self.span_s - self.busy_s


def read_trace(file: Path) -> list[Event]:
    """The complete events of a trace.

    Raises:
        UserError: it is no trace.
    """
    try:
        text = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        events: list[Event] = json.loads(text)["traceEvents"]
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file} is no profiler's trace: {error!r}; profile again") from error
    return [event for event in events if event.get("ph") == "X"]


def profile(events: Iterable[Event], longest: int = 12) -> Profile:
    """Sum a trace by stage.

    Args:
        events: of `read_trace`.
        longest: how many kernels are named.

    Raises:
        UserError: nothing ran while it was taken.
    """
    by_kind: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        by_kind[str(event.get("cat"))].append(event)
    kernels = [event for kind in _DEVICE for event in by_kind[kind]]
    launches = [event for kind in _LAUNCH for event in by_kind[kind]] if kernels else _outermost(by_kind["cpu_op"])
    stage_of = _stages(by_kind["python_function"], launches)
    if kernels:
        of_launch = {_correlation(event): stage for event, stage in zip(launches, stage_of, strict=True)}
        work = [(event, of_launch.get(_correlation(event), "scheduler")) for event in kernels]
    else:
        work = list(zip(launches, stage_of, strict=True))
    if not work:
        raise UserError("the trace holds no work: the server was idle; profile it under load")
    stages, counts = dict[Stage, float](), dict[Stage, int]()
    names: dict[str, float] = defaultdict(float)
    for event, stage in work:
        stages[stage] = stages.get(stage, 0.0) + event["dur"] * US
        counts[stage] = counts.get(stage, 0) + 1
        names[str(event["name"])] += event["dur"] * US
    top = sorted(names, key=lambda name: -names[name])[:longest]
    spans = sorted((event["ts"] * US, (event["ts"] + event["dur"]) * US) for event, _ in work)
    end_s = max(end for _, end in spans)
    return Profile(
        device="gpu" if kernels else "cpu",
        stages={stage: stages[stage] for stage, _ in _STAGES if stage in stages},
        counts={stage: counts[stage] for stage, _ in _STAGES if stage in counts},
        kernels={name: names[name] for name in top},
        span_s=end_s - spans[0][0],
        busy_s=_covered(spans),
    )


def _correlation(event: Mapping[str, Any]) -> Any:
    return event.get("args", {}).get("correlation")


def _covered(spans: Iterable[tuple[float, float]]) -> float:
    """Length of the union of intervals that are sorted by their start."""
    total, reached = 0.0, float("-inf")
    for start, end in spans:
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _outermost(operators: Iterable[Event]) -> list[Event]:
    """Those that run inside no other of their thread."""
    found: list[Event] = []
    reached: dict[tuple[Any, Any], float] = {}
    for event in sorted(operators, key=lambda event: (event["ts"], -event["dur"])):
        thread = (event["pid"], event["tid"])
        if event["ts"] >= reached.get(thread, float("-inf")):
            found.append(event)
            reached[thread] = event["ts"] + event["dur"]
    return found


def _stages(functions: Iterable[Event], launches: list[Event]) -> list[Stage]:
    """The stage of each launch, by the functions of its thread that ran at its start."""
    lines: dict[tuple[Any, Any], list[tuple[float, float, int]]] = defaultdict(list)
    for event in functions:
        lines[event["pid"], event["tid"]].append((event["ts"], -event["dur"], _rank(str(event["name"]))))
    asked: dict[tuple[Any, Any], list[int]] = defaultdict(list)
    for number, event in enumerate(launches):
        asked[event["pid"], event["tid"]].append(number)
    found = [len(_STAGES) - 1] * len(launches)
    for thread, numbers in asked.items():
        numbers.sort(key=lambda number: launches[number]["ts"])
        moments = (launches[number]["ts"] for number in numbers)
        for number, rank in zip(numbers, _ranks_at(sorted(lines[thread]), moments), strict=True):
            found[number] = rank
    return [_STAGES[rank][0] for rank in found]


def _ranks_at(functions: list[tuple[float, float, int]], moments: Iterable[float]) -> Iterator[int]:
    """The best rank among the functions that run at each moment; both are sorted."""
    running: list[tuple[float, int]] = []  # end, best rank of it and its callers
    at = 0
    for moment in moments:
        while at < len(functions) and functions[at][0] <= moment:
            start, negative, rank = functions[at]
            while running and running[-1][0] <= start:
                running.pop()
            running.append((start - negative, min(rank, running[-1][1] if running else len(_STAGES) - 1)))
            at += 1
        while running and running[-1][0] <= moment:
            running.pop()
        yield running[-1][1] if running else len(_STAGES) - 1


def _rank(name: str) -> int:
    return next(rank for rank, (_, pattern) in enumerate(_STAGES) if pattern.search(name))
