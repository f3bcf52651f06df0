"""Which release, which worker: known ones run, the others say why not."""

from __future__ import annotations

import importlib.metadata
from types import SimpleNamespace

import pytest

from patched_worker import compat, eagle_v1, eagle_v2
from patched_worker.fingerprints import known
from patched_worker.settings import Refusal


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """An installed SGLang of any version."""
    installed = SimpleNamespace(version="0.5.16")
    monkeypatch.setattr(importlib.metadata, "version", lambda name: installed.version)
    return installed


def worker(name: str, module: str = "sglang.srt.speculative.some_worker") -> type:
    """A class that SGLang might have chosen."""
    return type(name, (), {"__module__": module})


def test_every_release_has_recorded_fingerprints_for_all_it_touches() -> None:
    """Otherwise a validated release would refuse itself."""
    for version in compat.VERSIONS:
        assert set(compat.touched(version)) == set(known()[version]), version


@pytest.mark.parametrize(("name", "module"), [("EAGLEWorker", eagle_v1), ("EAGLEWorkerV2", eagle_v2)])
def test_worker_class_decides_the_generation(release: SimpleNamespace, name: str, module: object) -> None:
    """Each of SGLang's two workers has its module."""
    release.version = "0.5.12.post1"

    assert compat.generation_of(worker(name)) is module


def test_v1_is_refused_where_it_was_removed(release: SimpleNamespace) -> None:
    """The class can exist in a fork of a release in which nobody validated it."""
    with pytest.raises(Refusal, match=r"EAGLEWorker of SGLang 0\.5\.16"):
        compat.generation_of(worker("EAGLEWorker"))


@pytest.mark.parametrize(
    "chosen", [worker("MultiLayerEagleWorkerV2"), worker("EAGLEWorkerV2", module="elsewhere.plugin")]
)
def test_other_workers_are_refused_by_name(release: SimpleNamespace, chosen: type) -> None:
    """Also another plugin's class that happens to have the right name."""
    with pytest.raises(Refusal, match=chosen.__name__):
        compat.generation_of(chosen)


def test_unknown_release_is_refused_with_the_known_ones(release: SimpleNamespace) -> None:
    """The remedy is an installable version."""
    release.version = "0.5.99"

    with pytest.raises(Refusal, match=r"0\.5\.99.*0\.5\.16"):
        compat.sglang_version()


def test_a_changed_function_is_named() -> None:
    """Everything else is as validated."""
    prints = dict(known()["0.5.16"])
    assert compat.modified(prints, "0.5.16") == []

    target = next(iter(prints))
    prints[target] = "0" * 16

    assert compat.modified(prints, "0.5.16") == [target]
