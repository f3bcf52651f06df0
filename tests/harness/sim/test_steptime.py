"""Step-time tables."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.sim.steptime import StepTable, TaxTable

TABLE = StepTable((1, 4, 64), (0.005, 0.006, 0.012))


def test_measured_sizes_are_returned_exactly() -> None:
    """A measured size gives back its own seconds, not an interpolation's rounding of them."""
    assert [TABLE.at(size) for size in TABLE.sizes] == list(TABLE.seconds)


def test_power_law_is_met_between_its_points() -> None:
    """Step times that grow as a power of the size are a straight line in log-log, and found exactly."""
    power = StepTable((1, 4, 64), tuple(0.005 * size**0.3 for size in (1, 4, 64)))
    assert power.at(16) == pytest.approx(0.005 * 16**0.3)
    assert power.at(200) == pytest.approx(0.005 * 200**0.3)


@pytest.mark.parametrize(("fixed_s", "each_s"), [(0.005, 0.00003), (0.007, 0.00012)])
def test_fixed_plus_proportional_time_is_met_from_a_few_sizes(fixed_s: float, each_s: float) -> None:
    """From 1, 4, 16, 64, 256 the usual bend (a fixed part, then one in proportion) is found within 1.5 percent."""
    sizes = (1, 4, 16, 64, 256)
    table = StepTable(sizes, tuple(fixed_s + each_s * size for size in sizes))
    for size in (2, 8, 32, 128):
        assert table.at(size) == pytest.approx(fixed_s + each_s * size, rel=0.015)


@given(st.floats(1, 1e5), st.floats(1, 1e5))
def test_rising_table_stays_monotone_and_sublinear_outside(a: float, b: float) -> None:
    """A larger size never costs less, and beyond the table never more than in proportion."""
    low, high = min(a, b), max(a, b)
    assert TABLE.at(low) <= TABLE.at(high) * (1 + 1e-12)
    if low >= TABLE.sizes[-1]:
        assert TABLE.at(high) <= TABLE.at(low) * high / low * (1 + 1e-12)


def test_extrapolation_is_never_cheaper_than_the_last_size() -> None:
    """Where measured times fall with size (noise), the table goes on flat instead of towards nothing."""
    assert StepTable((1, 2), (0.006, 0.005)).at(1000) == 0.005


@pytest.mark.parametrize(
    ("sizes", "seconds"),
    [((), ()), ((1, 2), (0.1,)), ((2, 1), (0.1, 0.1)), ((0,), (0.1,)), ((1,), (0.0,)), ((1,), (math.nan,))],
)
def test_unfit_tables_are_refused(sizes: tuple[int, ...], seconds: tuple[float, ...]) -> None:
    """Empty, uneven, unsorted and non-positive tables raise."""
    with pytest.raises(ValueError, match=r"table needs|sizes must rise|step times must"):
        StepTable(sizes, seconds)


def test_tax_is_linear_in_log_batch_and_constant_outside() -> None:
    """The tax halfway in log is the mean; outside it keeps the end's value, negative ones too."""
    tax = TaxTable((1, 64), (0.2, -0.1))
    assert tax.at(8) == pytest.approx(0.05)
    assert (tax.at(0.5), tax.at(1000)) == (0.2, -0.1)


def test_tax_of_a_whole_step_is_refused() -> None:
    """A tax of -1 would make steps free."""
    with pytest.raises(ValueError, match="greater than -1"):
        TaxTable((1,), (-1.0,))
