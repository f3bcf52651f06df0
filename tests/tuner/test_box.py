"""A plan for several GPUs is the sum of its replicas, and its figures say that it is simulated."""

from __future__ import annotations

import pytest

from harness.sim.preset import load_preset
from tuner.box import Box, plan
from tuner.box_plots import capacity, pivots
from tuner.virtual import Load

LEVELS = (1, 8, 128)


@pytest.fixture(scope="module")
def box() -> Box:
    preset = load_preset("h200-llama31-8b-accept-1.8-illustrative")
    return plan(preset, 4, LEVELS, Load(duration_s=3.0), repeats=1)


def test_even_routing_is_so_many_replicas(box: Box) -> None:
    """A multiple of the replicas gives that many times one replica; a rest goes to some of them."""
    for place, level in enumerate(LEVELS):
        rate = box.curves["baseline"][place].tok_per_s
        assert box.throughput("baseline", 4 * level) == pytest.approx(4 * rate)
    assert box.throughput("baseline", 1) == pytest.approx(box.curves["baseline"][0].tok_per_s)
    assert box.throughput("baseline", 0) == 0


def test_random_routing_costs_where_replicas_saturate(box: Box) -> None:
    """One request goes to one replica either way; more of them meet by chance, which a concave curve punishes."""
    assert box.throughput("baseline", 1, "random") == pytest.approx(box.throughput("baseline", 1))
    assert box.throughput("baseline", 4, "random") < box.throughput("baseline", 4)


def test_dynamic_follows_the_better_side(box: Box) -> None:
    """Below the pivot it is eagle3, far above it forced_off."""
    assert box.fit.shape == "crossover"
    assert box.throughput("dynamic", 4) == pytest.approx(box.throughput("eagle3", 4), rel=0.02)
    assert box.throughput("dynamic", 512) == pytest.approx(box.throughput("forced_off", 512), rel=0.03)


def test_figures_are_marked_and_labelled(box: Box) -> None:
    """Both say that nothing was measured, and carry units."""
    for made in (capacity(box, [4, 32, 256]), pivots([box])):
        assert any("SIMULATED" in text.get_text() for text in made.texts)
        assert "throughput" in made.axes[0].get_ylabel() or "requests" in made.axes[0].get_ylabel()
        assert made.axes[0].get_xlabel()
