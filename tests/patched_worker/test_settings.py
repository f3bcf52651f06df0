"""What reaches a scheduler process through its environment, and what is refused before anything starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from patched_worker import settings
from patched_worker.autopilot import Mode, Order
from patched_worker.autopilot_decide import Bounds
from patched_worker.policy import Policy, Rung
from patched_worker.settings import Refusal, from_environ, policy_from_file, requested


def test_nothing_is_requested_without_a_policy() -> None:
    """The plugin is installed for everybody; only a policy in the environment switches it on."""
    assert not requested({"SPECPIVOT_MIN_DWELL_STEPS": "4"})
    assert requested({settings.THRESHOLD: "0"})
    assert requested({settings.POLICY_FILE: "r.json"})


def test_environment_round_trip() -> None:
    """All numbers arrive."""
    chosen = from_environ({settings.THRESHOLD: "24", settings.RESUME_AT: "12", settings.MIN_DWELL: "3"})

    assert chosen.policy == Policy.from_threshold(24, 12, 3)
    assert not chosen.allow_modified_source


@pytest.mark.parametrize(("text", "steps"), [("", None), ("1", 1), ("64", 64)])
def test_draft_sync_steps_have_bounds(text: str, steps: int | None) -> None:
    """From every step to as many as a ring of half a gigabyte holds; by default the worker knows."""
    assert from_environ({settings.THRESHOLD: "8", settings.DRAFT_SYNC_STEPS: text}).draft_sync_steps == steps


@pytest.mark.parametrize("text", ["never", "-1"])
def test_never_has_two_spellings(text: str) -> None:
    """A word for people, a number for programs."""
    assert from_environ({settings.THRESHOLD: text}).policy.threshold is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (settings.THRESHOLD, "many"),
        (settings.THRESHOLD, "-4"),
        (settings.RESUME_AT, "9"),
        (settings.MIN_DWELL, "soon"),
        *((settings.DRAFT_SYNC_STEPS, steps) for steps in ("0", "-1", "65", "4.0")),
    ],
)
def test_bad_values_are_refused_with_their_name(name: str, text: str) -> None:
    """The line names the value that was given."""
    with pytest.raises(Refusal, match=text):
        from_environ({settings.THRESHOLD: "8", name: text})


def test_policy_file_is_a_recommendation(tmp_path: Path) -> None:
    """threshold null means never disable, other keys are not ours."""
    file = tmp_path / "recommendation.json"
    file.write_text('{"schema": 1, "threshold": 24, "resume_at": 18, "min_dwell_steps": 8, "score": 0.99}')

    assert from_environ({settings.POLICY_FILE: str(file)}).policy == Policy.from_threshold(24, 18, 8)


def test_policy_file_with_a_ladder_gives_the_ladder(tmp_path: Path) -> None:
    """Its one threshold is what loses least, not what was recommended."""
    file = tmp_path / "recommendation.json"
    ladder = [{"threshold": 2, "resume_at": 1, "num_steps": 0}, {"threshold": 8, "resume_at": 6, "num_steps": None}]
    file.write_text(json.dumps({"threshold": 8, "resume_at": 6, "min_dwell_steps": 4, "ladder": ladder}))
    assert policy_from_file(file) == Policy((Rung(2, 1, 0), Rung(8, 6)), 4)


@pytest.mark.parametrize("text", ["", "[]", '{"resume_at": 3}', '{"threshold": -3}', '{"threshold": "8"}'])
def test_unusable_policy_file_is_refused(tmp_path: Path, text: str) -> None:
    """An empty, foreign or senseless file ends the start and names itself."""
    file = tmp_path / "policy.json"
    file.write_text(text)

    with pytest.raises(Refusal, match=r"policy\.json"):
        from_environ({settings.POLICY_FILE: str(file)})


def test_missing_policy_file_is_refused(tmp_path: Path) -> None:
    """Running without the policy that was asked for would be running unpatched in silence."""
    with pytest.raises(Refusal, match="FileNotFoundError"):
        from_environ({settings.POLICY_FILE: str(tmp_path / "none.json")})


def test_refusal_passes_through_handlers_of_exceptions() -> None:
    """SGLang swallows whatever a plugin raises, as long as it is an Exception."""
    assert not issubclass(Refusal, Exception)


def test_auto_starts_the_autopilot_within_its_bounds() -> None:
    """The policy is where it begins, the order what it may do."""
    chosen = from_environ({settings.THRESHOLD: "auto", settings.AUTO_MIN: "2", settings.AUTO_MAX: "96"})

    assert chosen.order == Order(Mode.AUTO, Bounds(2, 96))
    assert chosen.policy == Policy.from_threshold(32)
    assert from_environ({settings.THRESHOLD: "24"}).order is None


def test_auto_begins_at_a_recommendation_where_there_is_one(tmp_path: Path) -> None:
    """A sweep's answer is a better start than a guess."""
    file = tmp_path / "recommendation.json"
    file.write_text('{"threshold": 24}')
    chosen = from_environ({settings.THRESHOLD: "auto", settings.POLICY_FILE: str(file), settings.AUTO_DRY_RUN: "1"})

    assert chosen.policy.threshold == 24
    assert chosen.order == Order(Mode.DRY_RUN)


@pytest.mark.parametrize(
    "environ",
    [
        {settings.THRESHOLD: "8", settings.AUTO_MAX: "96"},
        {settings.THRESHOLD: "auto", settings.AUTO_MIN: "9", settings.AUTO_MAX: "8"},
        {settings.THRESHOLD: "auto", settings.AUTO_MIN: "few"},
    ],
)
def test_bounds_without_sense_are_refused(environ: dict[str, str]) -> None:
    """Bounds of nothing, and bounds that cross."""
    with pytest.raises(Refusal, match="give"):
        from_environ(environ)


def test_the_trace_file_is_a_path() -> None:
    """Named or not."""
    assert from_environ({settings.THRESHOLD: "8", settings.TRACE_FILE: "/tmp/a"}).trace_file == Path("/tmp/a")
    assert from_environ({settings.THRESHOLD: "8"}).trace_file is None
