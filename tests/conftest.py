"""What every test leaves as it found it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import suppress

import pytest

with suppress(ImportError):  # a machine that runs the tests on SGLang alone may lack it
    from hypothesis import HealthCheck, settings

    # The same examples at every run, however slow the machine: what others would find is `make fuzz`'s to find.
    settings.register_profile(
        "repeatable", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def _signal_handlers() -> Iterator[None]:
    """An event loop that ran in this process may leave its own handler behind, which swallows a later Ctrl-C."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)
