"""Which release, which worker, which arrangement: known ones run, the others say why not."""

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


def arguments(**changes: object) -> SimpleNamespace:
    """Server arguments that are fine."""
    fine = {name: wanted for name, wanted, _ in compat.ARRANGEMENTS}
    return SimpleNamespace(**(fine | {"speculative_algorithm": "EAGLE3"} | changes))


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


def test_plain_arrangement_passes() -> None:
    """Nothing is refused without a reason, also where a release lacks an argument."""
    compat.refuse_arrangement(arguments())
    compat.refuse_arrangement(SimpleNamespace(speculative_algorithm="EAGLE"))


def test_unset_and_false_are_the_same() -> None:
    """SGLang writes both for an option that was not given."""
    compat.refuse_arrangement(arguments(enable_lora=None))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("enable_dp_attention", True),
        ("pp_size", 2),
        ("enable_multi_layer_eagle", True),
        ("disaggregation_mode", "decode"),
        ("speculative_token_map", "hot.pt"),
        ("enable_mixed_chunk", True),
        ("speculative_algorithm", "NGRAM"),
        ("speculative_algorithm", None),
    ],
)
def test_arrangements_that_were_not_validated_are_refused(name: str, value: object) -> None:
    """The line names the argument."""
    with pytest.raises(Refusal, match=name):
        compat.refuse_arrangement(arguments(**{name: value}))


def test_all_reasons_come_at_once() -> None:
    """Nobody should restart a server per reason."""
    with pytest.raises(Refusal, match=r"pp_size=2.*enable_pdmux=True"):
        compat.refuse_arrangement(arguments(pp_size=2, enable_pdmux=True))


def test_a_changed_function_is_named() -> None:
    """Everything else is as validated."""
    prints = dict(known()["0.5.16"])
    assert compat.modified(prints, "0.5.16") == []

    target = next(iter(prints))
    prints[target] = "0" * 16

    assert compat.modified(prints, "0.5.16") == [target]
