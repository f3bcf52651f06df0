"""A rate, a ramp, bursts or a trace become requests with times; what cannot be a load is refused in one line."""

from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from harness.arrivals import burst, constant, gamma, poisson, ramp
from harness.errors import UserError
from harness.openload import Arrivals, TimedWorkload, check_arrivals

TRACE = """\
{"timestamp": 0, "input_length": 600, "output_length": 4, "hash_ids": [0, 9]}
{"timestamp": 2000, "input_length": 30, "output_length": 5, "hash_ids": [1]}
"""


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"rate": 5.0, "arrival": "constant"}, constant(5.0)),
        ({"rate": 5.0}, poisson(5.0, 7)),
        ({"rate": 5.0, "arrival": "gamma", "burstiness": 0.5}, gamma(5.0, 0.5, 7)),
        ({"ramp": (1.0, 9.0, 4.0)}, ramp(1.0, 9.0, 4.0, 7)),
        ({"burst": (1.0, 9.0, 4.0, 1.0), "arrival": "constant"}, burst(1.0, 9.0, 4.0, 1.0)),
    ],
)
def test_requests_carry_the_schedules_times(given: dict[str, Any], expected: Any) -> None:
    """Each kind of arrival, with the workload's own requests and its seed."""
    work = TimedWorkload(seed=7, arrivals=Arrivals(**given))
    planned = list(islice(work.requests(4, 1), 20))
    assert [each.due_s for each in planned] == list(islice(expected, 20))
    assert [each.body for each in planned] == [
        each.body for each in islice(TimedWorkload(seed=7).requests(4, 1), 20)
    ]  # fmt: skip


def test_a_closed_loop_has_no_times() -> None:
    """Without arrivals it is the workload that it was."""
    (planned,) = islice(TimedWorkload().requests(1, 1), 1)
    assert (planned.due_s, Arrivals().open_loop, Arrivals().trace_s) == (None, False, None)


def test_a_trace_brings_times_and_lengths(tmp_path: Path) -> None:
    """Sped up, described by its name and without lengths of ours, and its shared blocks are expected in the cache."""
    file = tmp_path / "trace"
    file.write_text(TRACE)
    work = TimedWorkload(arrivals=Arrivals(trace=str(file), trace_speedup=4.0))
    planned = list(work.requests(1, 1))
    assert [(each.due_s, each.prompt_tokens, each.output_tokens) for each in planned] == [(0.0, 600, 4), (0.5, 30, 5)]
    said = work.describe((1,), 1)
    assert (said.dataset, said.input_tokens, said.output_tokens) == (str(file), None, None)
    assert work.shares_prefix
    assert work.arrivals.trace_s == pytest.approx(0.501)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"rate": 1.0, "trace": "x"}, "only one of"),
        ({"rate": 0.0}, "--request-rate"),
        ({"rate": float("nan")}, "--request-rate"),
        ({"rate": 1.0, "burstiness": 2.0}, "--arrival gamma"),
        ({"rate": 1.0, "arrival": "gamma", "burstiness": -1.0}, "--burstiness"),
        ({"ramp": (1.0, 2.0, 3.0), "arrival": "gamma"}, "constant or poisson"),
        ({"ramp": (1.0, 0.0, 3.0)}, "--ramp A,B,SECONDS"),
        ({"burst": (1.0, 5.0, 2.0, 3.0)}, "LENGTH_S below EVERY_S"),
        ({"rate": 1.0, "trace_speedup": 2.0}, "needs --trace"),
        ({"trace": "x", "trace_speedup": 0.0}, "--trace-speedup"),
    ],
)
def test_what_cannot_be_a_load_is_refused(given: dict[str, Any], words: str) -> None:
    """One line that names the flag."""
    with pytest.raises(UserError, match=words):
        check_arrivals(Arrivals(**given))


@pytest.mark.parametrize("start", [0.0, 5.0, 40.0])
def test_every_ramp_that_is_let_through_can_be_drawn(start: float) -> None:
    """From nothing, level, and downwards."""
    arrivals = Arrivals(ramp=(start, 5.0, 2.0), arrival="constant")
    check_arrivals(arrivals)
    times = list(islice(arrivals.due_s(1), 200))
    assert times == sorted(times)
