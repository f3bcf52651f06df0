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


def test_between_sizes_is_a_power_law() -> None:
    """Halfway between two sizes in log lies the geometric mean of their seconds."""
    assert TABLE.at(16) == pytest.approx(math.sqrt(0.006 * 0.012))


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
