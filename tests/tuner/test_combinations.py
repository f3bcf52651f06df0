"""Which combinations of draft settings are tried, which one is kept, and when a ladder beats them all."""

from __future__ import annotations

import math

import msgspec
import pytest

from harness.config import make_config
from harness.errors import UserError
from harness.sim.preset import DEFAULT_PRESET, costs_of, load_preset
from harness.sim.server import settings_from
from harness.sim.service import ServerSettings, Service
from harness.variants import server_plans
from patched_worker.policy import Policy, Rung, to_wire
from tuner.combinations import Combination, Worth, best, ladder, wanted, worth
from tuner.curves import Pivot, Ratio
from tuner.knobs import parse_search

CONFIG = make_config({"model": "m", "draft": "d"})
LEVELS = (1, 4, 16, 64)
EVEN = dict.fromkeys(LEVELS, 1.0)


def fit(ratios: tuple[float, ...], threshold: int | None, se: float = 0.002) -> Pivot:
    """A pivot with these log ratios at LEVELS."""
    made = tuple(Ratio(c, float(c), r, r, se, 3) for c, r in zip(LEVELS, ratios, strict=True))
    return Pivot("crossover", None, threshold, (threshold, threshold), "forced_off", made)


def test_chains_have_one_token_more_than_steps() -> None:
    """SGLang takes no other number with topk 1; the settings' own combination leads."""
    made = wanted(CONFIG, parse_search("num_steps=1,3,5,draft_tokens=9"))
    assert made == (Combination(3, 1, 4), Combination(1, 1, 2), Combination(5, 1, 6))


def test_trees_take_what_their_nodes_allow() -> None:
    """One step of topk 4 has 4 nodes: 8 tokens are impossible, 5 are not."""
    assert Combination(1, 4, 8) not in wanted(CONFIG, parse_search("num_steps=1,3,topk=1,4"))
    assert Combination(3, 4, 8) in wanted(CONFIG, parse_search("num_steps=1,3,topk=1,4"))
    assert Combination(1, 4, 5) in wanted(CONFIG, parse_search("num_steps=1,topk=4,draft_tokens=5"))


def test_without_those_knobs_nothing_is_restarted() -> None:
    """Threshold and hysteresis are live."""
    assert wanted(CONFIG, parse_search("resume_at,min_dwell")) == ()


def test_the_servers_arguments_are_those_of_the_combination() -> None:
    """For SGLang, and for a simulated server, which says what it runs."""
    (*_, real) = server_plans(Combination(5, 4, 16).settings(CONFIG))
    told = dict(zip(real.command, real.command[1:], strict=False))
    assert told["--speculative-num-steps"] == "5"
    assert told["--speculative-eagle-topk"] == "4"
    assert told["--speculative-num-draft-tokens"] == "16"
    simulated = make_config({"sim": DEFAULT_PRESET})
    (*_, plan) = server_plans(Combination(1, 1, 2).settings(simulated))
    assert settings_from(plan.command[4:]).num_steps == 1
    with pytest.raises(UserError, match="chains, topk 1"):
        settings_from(server_plans(Combination(3, 4, 8).settings(simulated))[-1].command[4:])
    with pytest.raises(UserError, match="no step times for 12 draft steps"):
        settings_from(["--num-steps", "12"])


def test_wider_steps_cost_more_in_the_packaged_preset() -> None:
    """Its estimates of other widths are ordered at every batch."""
    costs = costs_of(load_preset(DEFAULT_PRESET), "eagle3")
    for batch in (1, 16, 256):
        seconds = [costs.decode_s(batch, n) for n in (0, 1, 2, 3, 5, 7)]
        assert seconds == sorted(seconds)


def test_worth_counts_levels_below_the_threshold_by_weight() -> None:
    """Above it the server is off and gains nothing over off."""
    assert worth(fit((0.4, 0.2, 0.1, -0.3), 16), EVEN).gain == pytest.approx(0.7 / 4)
    assert worth(fit((0.4, 0.2, 0.1, -0.3), 16), {1: 1.0, 64: 3.0}).gain == pytest.approx(0.1)
    assert worth(fit((0.4, 0.2, 0.1, 0.3), None), EVEN).gain == pytest.approx(1.0 / 4)
    assert worth(fit((0.4, 0.2, 0.1, -0.3), 0), EVEN) == Worth(0.0, 0.0)


def test_the_first_is_kept_unless_beaten_by_more_than_noise() -> None:
    """With more others it takes more to beat it."""
    first = Worth(0.10, 0.01)
    assert best([first]) == 0
    assert best([first, Worth(0.2, 0.01)]) == 1
    assert best([first, Worth(0.125, 0.01)]) == 1
    assert best([first, *[Worth(0.125, 0.01)] * 9]) == 0


def test_falling_steps_by_batch_make_a_ladder() -> None:
    """Five steps win alone, one step at 16, none at 64; bands end where the curves cross."""
    fits = {5: fit((0.6, 0.2, -0.3, -0.6), 6), 1: fit((0.3, 0.25, 0.2, -0.1), 40)}
    found = ladder(fits, 1, EVEN)
    assert found is not None
    rungs, brought = found
    assert [r["num_steps"] for r in rungs] == [5, 1]
    first, last = (r["threshold"] for r in rungs)
    assert first is not None
    assert last is not None
    assert 1 <= first < 4
    assert 16 < last < 64
    assert brought.gain == pytest.approx((0.6 - 0.3) / 4)
    Policy(tuple(Rung(**r) for r in rungs))


def test_a_ladder_that_is_noise_is_none() -> None:
    """Where its gain is within its error, below half a per cent, or the same combination wins everywhere."""
    assert ladder({5: fit((0.32, 0.2, 0, -1), 16, 0.05), 1: fit((0.3, 0.25, 0.2, -0.1), 40, 0.05)}, 1, EVEN) is None
    assert ladder({5: fit((0.302, 0.2, 0, -1), 16, 1e-6), 1: fit((0.3, 0.25, 0.2, -0.1), 40, 1e-6)}, 1, EVEN) is None
    assert ladder({5: fit((0.6, 0.4, 0.3, -0.6), 30), 1: fit((0.3, 0.25, 0.2, -0.7), 30)}, 5, EVEN) is None
    assert ladder({3: fit((0.3, 0.25, 0.2, -0.1), 40)}, 3, EVEN) is None


def test_a_ladder_may_never_end() -> None:
    """Where few steps still pay at the largest batch the last rung has no end."""
    found = ladder({5: fit((0.6, 0.2, -0.3, -0.6), 6), 1: fit((0.3, 0.25, 0.2, 0.1), None)}, 1, EVEN)
    assert found is not None
    assert found[0][-1] == {"threshold": None, "resume_at": None, "num_steps": 1}


def test_steps_never_rise_with_the_batch() -> None:
    """Noise that would make more steps better at a larger batch is smoothed away."""
    fits = {5: fit((0.1, 0.5, -0.3, -0.6), 6), 1: fit((0.12, 0.2, 0.2, -0.1), 40)}
    found = ladder(fits, 1, EVEN)
    assert found is not None
    steps = [r["num_steps"] for r in found[0]]
    assert steps == sorted(steps, key=lambda n: -(n or 0))
    assert math.isclose(found[1].gain, (0.1 + 0.5 + 0.2 - 0.12 - 0.2 - 0.2) / 4)


def test_settings_change_nothing_else() -> None:
    """A combination is the same sweep on another server."""
    made = Combination(5, 1, 6).settings(CONFIG)
    assert msgspec.structs.replace(made, num_steps=None, topk=1, draft_tokens=None) == CONFIG


def test_a_simulated_server_runs_a_ladder_of_steps() -> None:
    """Set in numbers over its wire, read back rung by rung, and decided by it batch by batch."""
    rule = Policy((Rung(4, 3, 5), Rung(16, 12, 3), Rung(64, 48, 1)))
    server = Service(ServerSettings(load_preset(DEFAULT_PRESET), "dynamic", num_steps=3))
    assert server.set_internal_state(dict(to_wire(rule)))
    block = server.info()["internal_states"][0]["specpivot"]
    assert block["policy_id"] == rule.policy_id
    assert [rung["num_steps"] for rung in block["rungs"]] == [5, 3, 1]
    assert server.engine.gate is not None
    assert [server.engine.gate.decide(batch) for batch in (4, 5, 17, 65)] == [5, 3, 1, 0]
    assert not server.set_internal_state({"speculative_ladder_rungs": 3})
    assert not server.set_internal_state(dict(to_wire(Policy((Rung(4, 3, 40), Rung(8, 6, 1))))))
    assert "no step times for 40 draft steps" in (server.last_error or "")
    assert server.info()["internal_states"][0]["specpivot"]["policy_id"] == rule.policy_id
