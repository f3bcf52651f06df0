"""Python environments that run unmodified SGLang wheels on a CPU, one per release, built once and cached.

What all releases share (torch, triton and sixty small packages) lies in one virtual environment; each release adds
a folder with its own wheel and what it pins differently, put before it on PYTHONPATH. The cache key is a digest of
the pins and of this Python, so that changed pins build anew. Needs pip and a package index that has the wheels;
where the index offers a CUDA build of torch only, that one serves as well (larger, nothing of it is used).

    python -m tests.sglang_cpu.environments [RELEASE...]
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

RELEASES = ("0.5.9", "0.5.12.post1", "0.5.16", "0.5.23")
TORCH = "torch==2.13.0"
TRITON = "triton==3.6.0"  # its interpreter runs what is left of the Triton kernels
PINS = Path(__file__).parent / "requirements"
SHIMS = Path(__file__).parent / "shims"


@dataclass(frozen=True, slots=True)
class Environment:
    """One release, ready to run.

    Attributes:
        python: the interpreter to start.
        path: folders for PYTHONPATH, first to last.
    """

    release: str
    python: Path
    path: tuple[Path, ...]


def build(release: str) -> Environment:
    """The environment of a release, built if it is not in the cache.

    Raises:
        subprocess.CalledProcessError: pip failed; its output has been shown.
    """
    shared_pins, own_pins = PINS / "base.lock", PINS / f"{release}.lock"
    base = _cache() / f"base-{_digest(shared_pins.read_text(), TORCH, TRITON, sys.version, sys.platform)}"
    packages = base / f"{release}-{_digest(own_pins.read_text())}"
    with _locked(base):
        if not _complete(base):
            _start_anew(base)
            _run(sys.executable, "-m", "venv", str(base / "venv"))
            _pip(base, "-r", str(shared_pins), "--no-deps")
            _pip(base, TORCH)
            _pip(base, TRITON, "--no-deps")
            _mark_complete(base)
        if not _complete(packages):
            _start_anew(packages)
            _pip(base, "-r", str(own_pins), "--no-deps", "--target", str(packages))
            _mark_complete(packages)
    return Environment(release, base / "venv" / "bin" / "python", (SHIMS / "cpu", SHIMS, packages))


def _cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "specpivot" / "sglang-cpu"


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def _complete(folder: Path) -> bool:
    return (folder / "complete").exists()


def _mark_complete(folder: Path) -> None:
    (folder / "complete").touch()


def _start_anew(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


@contextmanager
def _locked(base: Path) -> Iterator[None]:
    """One builder at a time: two test runs may start together."""
    base.parent.mkdir(parents=True, exist_ok=True)
    with base.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _pip(base: Path, *arguments: str) -> None:
    _run(str(base / "venv" / "bin" / "python"), "-m", "pip", "install", "-qq", "--no-compile", *arguments)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


def main(releases: list[str]) -> None:
    for release in releases or RELEASES:
        started = time.monotonic()
        environment = build(release)
        print(f"sglang {release}: {environment.path[-1]} ({time.monotonic() - started:.0f} s)", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
