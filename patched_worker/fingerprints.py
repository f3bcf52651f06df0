"""Fingerprints of SGLang's functions: the hash of a function's syntax tree, without comments, docstrings and layout.

Read from the source file, so nothing of SGLang has to be imported. `fingerprints.json` holds those of the releases
that were validated; `python -m patched_worker.fingerprints VERSION SITE_PACKAGES` records a further one.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

KNOWN_FILE = Path(__file__).with_name("fingerprints.json")
MISSING = "missing"

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def site_of(package: str) -> Path:
    """The directory that holds an installed package, found without importing it.

    Raises:
        ModuleNotFoundError: it is not installed.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(package)
    return Path(next(iter(spec.submodule_search_locations))).parent


def fingerprint(site: Path, target: str) -> str:
    """Sixteen hex digits for `package.module:Class.method`; `missing` where there is no such thing.

    Args:
        site: the directory that holds the package.
        target: module and qualified name.
    """
    module, qualname = target.split(":")
    file = site.joinpath(*module.split(".")).with_suffix(".py")
    if not file.is_file():
        return MISSING
    node = _find(_tree(file), qualname.split("."))
    return MISSING if node is None else hashlib.sha256(_normal(node).encode()).hexdigest()[:16]


def fingerprints(site: Path, targets: Iterable[str]) -> dict[str, str]:
    """Target to fingerprint."""
    return {target: fingerprint(site, target) for target in targets}


def known() -> dict[str, dict[str, str]]:
    """SGLang version to target to the fingerprint that was validated."""
    table: dict[str, dict[str, str]] = json.loads(KNOWN_FILE.read_text())
    return table


def digest(prints: dict[str, str]) -> str:
    """Twelve hex digits for a whole set of fingerprints."""
    return hashlib.sha256(json.dumps(prints, sort_keys=True).encode()).hexdigest()[:12]


@cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def _find(tree: ast.Module, names: list[str]) -> Function | None:
    body: list[ast.stmt] = tree.body
    found: Function | None = None
    for name in names:
        matches = [node for node in body if isinstance(node, Function) and node.name == name]
        if not matches:
            return None
        found = matches[-1]  # the last definition is the one that counts
        body = found.body
    return found


def _normal(node: ast.AST) -> str:
    """The syntax tree as text, the same under every Python: `ast.dump` is not (3.12 adds a field, 3.13 drops some)."""
    return json.dumps(_shape(node))


def _shape(value: object) -> object:
    if isinstance(value, list):
        return [_shape(one) for one in value]
    if not isinstance(value, ast.AST):
        return repr(value)
    fields = dict(ast.iter_fields(value))
    if isinstance(value, Function) and ast.get_docstring(value, clean=False) is not None:
        fields["body"] = value.body[1:] or [ast.Pass()]
    if isinstance(value, ast.JoinedStr):  # 3.12 ends some with an empty string
        fields["values"] = [one for one in value.values if not (isinstance(one, ast.Constant) and one.value == "")]
    return [type(value).__name__, {name: _shape(one) for name, one in fields.items() if one is not None and one != []}]


def record(version: str, site: Path, targets: Iterable[str]) -> None:
    """Write a release's fingerprints into the table of known ones."""
    table = known() | {version: fingerprints(site, sorted(targets))}
    KNOWN_FILE.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    from patched_worker.compat import touched

    record(sys.argv[1], Path(sys.argv[2]), touched(sys.argv[1]))
