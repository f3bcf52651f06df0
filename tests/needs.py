"""Programs from outside PyPI that some tests need: without them those tests are skipped, but never in CI."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

REQUIRE_ALL = "SPECPIVOT_TESTS_REQUIRE_ALL"  # .ci/run sets it: there a skipped test would hide a fault


def lacking(remedy: str) -> NoReturn:
    """End a test whose program is not installed.

    Args:
        remedy: the program and how to install it, one line.
    """
    if os.environ.get(REQUIRE_ALL):
        pytest.fail(f"needs {remedy}", pytrace=False)
    pytest.skip(f"needs {remedy}")
