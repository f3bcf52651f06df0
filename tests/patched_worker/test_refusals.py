"""Which arrangement, which model: validated ones run, the others say why not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from patched_worker.refusals import ARRANGEMENTS, refuse_arrangement, refuse_model, refuse_v2
from patched_worker.settings import Refusal


def arguments(**changes: object) -> SimpleNamespace:
    """Server arguments that are fine."""
    fine = {name: wanted for name, wanted, _ in ARRANGEMENTS}
    return SimpleNamespace(**(fine | {"speculative_algorithm": "EAGLE3"} | changes))


def test_plain_arrangement_passes() -> None:
    """Nothing is refused without a reason, also where a release lacks an argument."""
    refuse_arrangement(arguments())
    refuse_arrangement(SimpleNamespace(speculative_algorithm="EAGLE"))


def test_unset_and_false_are_the_same() -> None:
    """SGLang writes both for an option that was not given."""
    refuse_arrangement(arguments(enable_lora=None))


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
        refuse_arrangement(arguments(**{name: value}))


def test_all_reasons_come_at_once() -> None:
    """Nobody should restart a server per reason."""
    with pytest.raises(Refusal, match=r"pp_size=2.*enable_pdmux=True"):
        refuse_arrangement(arguments(pp_size=2, enable_pdmux=True))


def test_models_with_more_than_a_kv_cache_are_refused() -> None:
    """Absent and empty attributes are plain models."""
    refuse_model(SimpleNamespace(mamba2_config=None, is_hybrid_swa=False))

    with pytest.raises(Refusal, match="recurrent state"):
        refuse_model(SimpleNamespace(mamba2_config={"layers": 4}))


@pytest.mark.parametrize(("topk", "plan_stream"), [(4, None), (1, "stream")])
def test_trees_and_plan_streams_are_refused_on_v2(topk: int, plan_stream: object) -> None:
    """A chain on one stream passes."""
    refuse_v2(SimpleNamespace(topk=1, plan_stream=None))

    with pytest.raises(Refusal, match="not validated"):
        refuse_v2(SimpleNamespace(topk=topk, plan_stream=plan_stream))
