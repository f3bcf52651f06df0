"""Starting another process of this very checkout, wherever that is done.

`python -m` looks in the working folder first, where another harness or tuner may lie, as in a second checkout.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def program(module: str) -> list[str]:
    """The command that runs one of our modules, to be given `environment()`."""
    return [sys.executable, "-P", "-m", module]


def environment(env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """These variables, with this checkout as the first place for modules."""
    return {**env, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), env.get("PYTHONPATH"))))}
