"""What would run on this machine: SGLang and its worker class, GPUs, limits of the client, and what was validated."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping

import msgspec

from harness.environment import collect_environment, installed
from harness.load import FILES_BESIDE_STREAMS
from harness.selftest import load_calibration

# Class to the SGLang releases for which an off step exists and was tried.
Releases = Mapping[str, tuple[str, ...]]
# SGLang release to what was validated of it, one line each.
Validated = Mapping[str, tuple[str, ...]]


class Finding(msgspec.Struct, frozen=True):
    """One line of the report; `remedy` is empty where nothing is wrong."""

    subject: str
    fact: str
    remedy: str = ""


class Diagnosis(msgspec.Struct, frozen=True):
    """Everything that doctor found."""

    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        return not any(finding.remedy for finding in self.findings)


def diagnose(releases: Releases, validated: Validated) -> Diagnosis:
    """Look at this machine.

    Args:
        releases: what the patched worker supports.
        validated: on what it was tried.
    """
    facts = collect_environment()
    gpus = [f"{gpu['name']} ({gpu['memory_gib']} GiB, sm{gpu['sm']})" for gpu in facts["gpus"]]
    return Diagnosis(
        (
            Finding("machine", f"{facts['cpu']}, {facts['cpu_cores']} cores, {facts['memory_gib']} GiB"),
            Finding("python", str(facts["python"])),
            Finding("GPU", ", ".join(gpus) or "none: sweep uses simulated servers unless you --attach"),
            _sglang(releases),
            *_validated(validated),
            _files(),
            _client(),
        )
    )


def _sglang(releases: Releases) -> Finding:
    version = installed("sglang")
    known = sorted({release for supported in releases.values() for release in supported})
    if version is None:
        return Finding("SGLang", f"not installed here; attach to a server, or install one of {', '.join(known)}")
    workers = [name for name, supported in releases.items() if version in supported]
    if not workers:
        return Finding("SGLang", f"{version}, for which there is no patched worker", f"install {' or '.join(known)}")
    return Finding("SGLang", f"{version}; patched worker for {_workers(version, workers)}")


def _workers(version: str, workers: list[str]) -> str:
    """Which class runs follows from the overlap scheduler; 0.5.9 has v2 behind a variable."""
    if len(workers) == 1:
        return workers[0]
    v2_by_default = version != "0.5.9"
    chosen, other = ("EAGLEWorkerV2", "EAGLEWorker") if v2_by_default else ("EAGLEWorker", "EAGLEWorkerV2")
    how = "--disable-overlap-schedule" if v2_by_default else "SGLANG_ENABLE_SPEC_V2=1"
    return f"{chosen} (default) and {other} ({how})"


def _validated(validated: Validated) -> list[Finding]:
    """What was tried of the release that is installed here, or of each."""
    version = installed("sglang")
    return [
        Finding("tried", f"{release} {line}")
        for release, lines in validated.items()
        if version in (None, release)
        for line in lines
    ]


def _files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = soft if hard == resource.RLIM_INFINITY else hard
    fact = f"{limit} open files: up to {max(0, limit - FILES_BESIDE_STREAMS)} streams per client process"
    return Finding("limits", fact, "raise it with `ulimit -n 4096`" if limit < 1024 else "")


def _client() -> Finding:
    calibration = load_calibration()
    if calibration is None:
        return Finding("client", f"not calibrated ({os.cpu_count()} cores); `specpivot selftest` does that")
    return Finding("client", f"takes in up to {calibration.max_tok_per_s:,.0f} tok/s per process")
