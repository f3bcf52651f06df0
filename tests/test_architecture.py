"""The arrows between the packages go one way, and patched_worker loads with the standard library alone."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# what the simulation plays and the tuner replays
SHARED = {
    f"patched_worker.{name}"
    for name in (
        "policy",
        "autopilot",
        "autopilot_decide",
        "autopilot_curve",
        "autopilot_evidence",
        "steptrace",
        "switchback",
    )
}
ALLOWED = {
    "patched_worker": {"patched_worker"},
    "harness": {"harness", *SHARED},
    "tuner": {"tuner", "harness", *SHARED},
    "pairs": {"pairs", "harness"},
}
OURS = ("patched_worker", "harness", "tuner", "pairs", "specpivot")


def imported(tree: ast.Module) -> set[str]:
    """Every module of ours that a file imports."""
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    return {name for name in names if name.split(".")[0] in OURS}


def violations(package: str, source: str) -> set[str]:
    """Imports in `source` that `package` may not make."""
    allowed = ALLOWED[package]
    return {n for n in imported(ast.parse(source)) if n not in allowed and n.split(".")[0] not in allowed}


@pytest.mark.parametrize("package", ALLOWED)
def test_imports_go_one_way(package: str) -> None:
    """No module imports from a package above its own."""
    for file in (ROOT / package).rglob("*.py"):
        assert violations(package, file.read_text()) == set(), file


def test_a_wrong_arrow_is_found() -> None:
    """The check can fail: harness importing the tuner, or the worker's internals, is an error."""
    assert violations("harness", "import tuner.curves\nfrom patched_worker.control import x") == {
        "tuner.curves",
        "patched_worker.control",
    }


def test_patched_worker_needs_no_third_party_package() -> None:
    """It is imported inside SGLang's processes: nothing of ours may bring a dependency along."""
    code = "import sys, patched_worker.policy; print([m for m in ('msgspec', 'numpy', 'aiohttp') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_module_is_on_the_architecture_page() -> None:
    """docs/architecture.md names each module, and names none that is gone."""
    page = (ROOT / "docs" / "architecture.md").read_text().replace("\\", "")
    files = {f.name for package in ALLOWED for f in (ROOT / package).rglob("*.py")} - {"__init__.py"}
    named = set(re.findall(r"\b[a-z0-9_]+\.py\b", page))
    assert files - named == set()
    assert named - files - {"test_architecture.py", "specpivot.py"} == set()
