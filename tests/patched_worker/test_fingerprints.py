"""A function's fingerprint changes with what it does and with nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from patched_worker.fingerprints import MISSING, digest, fingerprint, fingerprints, known, site_of

SOURCE = '''
class Worker:
    """Runs."""

    def draft(self, batch):
        """Propose."""
        return batch + 1  # one more

def helper(x):
    return x
'''
TARGET = "pkg.worker:Worker.draft"


def site(folder: Path, source: str) -> Path:
    """A directory with one package of one module."""
    package = folder / "pkg"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "worker.py").write_text(source)
    return folder


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("  # one more", ""),
        ('"""Propose."""', '"""Something else altogether."""'),
        ("return x", "return 2 * x"),
        ("batch + 1", "(batch\n            + 1)"),
    ],
)
def test_comments_docstrings_layout_and_neighbours_do_not_count(tmp_path: Path, old: str, new: str) -> None:
    """A release that only rewords itself needs no validation."""
    changed = SOURCE.replace(old, new)
    assert changed != SOURCE

    assert fingerprint(site(tmp_path / "a", SOURCE), TARGET) == fingerprint(site(tmp_path / "b", changed), TARGET)


@pytest.mark.parametrize(("old", "new"), [("batch + 1", "batch + 2"), ("self, batch", "self, batch, extra=None")])
def test_body_and_signature_count(tmp_path: Path, old: str, new: str) -> None:
    """What is called and what it does are both part of it."""
    changed = SOURCE.replace(old, new)

    assert fingerprint(site(tmp_path / "a", SOURCE), TARGET) != fingerprint(site(tmp_path / "b", changed), TARGET)


@pytest.mark.parametrize("target", ["pkg.worker:Worker.verify", "pkg.worker:Draft.draft", "pkg.none:Worker.draft"])
def test_what_is_not_there_is_missing(tmp_path: Path, target: str) -> None:
    """A renamed function is a change too."""
    assert fingerprint(site(tmp_path, SOURCE), target) == MISSING


def test_class_fingerprint_covers_its_methods(tmp_path: Path) -> None:
    """A class that is subclassed is fingerprinted as a whole."""
    changed = SOURCE.replace("batch + 1", "batch")

    a = fingerprints(site(tmp_path / "a", SOURCE), ["pkg.worker:Worker", "pkg.worker:helper"])
    b = fingerprints(site(tmp_path / "b", changed), ["pkg.worker:Worker", "pkg.worker:helper"])

    assert a["pkg.worker:Worker"] != b["pkg.worker:Worker"]
    assert a["pkg.worker:helper"] == b["pkg.worker:helper"]
    assert digest(a) != digest(b)


def test_installed_package_is_found_without_importing_it() -> None:
    """A package that is not there is said by name."""
    assert (site_of("patched_worker") / "patched_worker" / "policy.py").is_file()
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        site_of("no_such_package")


def test_recorded_releases_lack_nothing() -> None:
    """A recorded fingerprint that is `missing` would accept any release that lost the function."""
    assert known()
    assert all(value != MISSING for prints in known().values() for value in prints.values())


VARIED = '''
@decorated(1, *rest)
async def varied(a: int = 1, /, *b: str, c: "C | None" = None, **d: object) -> dict[str, int]:
    """Many kinds of syntax."""
    total = {**d, f"{a!r:>{len(b)}} and" " more": [x async for x in b if x is not None]}
    match a:
        case [1, *others] | {"k": others} if (n := len(others)) > 1:
            return lambda y, *, z=0: y ** -z
        case C(x=0):
            pass
    try:
        del total[1:2, ...]
    except* ValueError as error:
        raise error from None
    async with a as b, c: yield b"\\x00" + 1j
'''


def test_fingerprint_does_not_depend_on_the_python(tmp_path: Path) -> None:
    """Recorded under one, compared under another: the value was the same under 3.11, 3.12 and 3.13."""
    assert fingerprint(site(tmp_path, VARIED), "pkg.worker:varied") == "ffc8929547c8c576"
