"""A control as a worker has it."""

from __future__ import annotations

import pytest

from patched_worker.control import Control
from patched_worker.policy import Policy
from tests.patched_worker.test_control import DRAFT_TOKENS, IDENTITY


@pytest.fixture
def control() -> Control:
    """A control with threshold 4 and no dwell."""
    return Control(Policy.from_threshold(4, 4, 0), DRAFT_TOKENS - 1, IDENTITY)
