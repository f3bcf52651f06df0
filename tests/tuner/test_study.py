"""The study: what a crash leaves behind is put right, and luck does not win."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from harness.errors import UserError
from tests.tuner.runs import rows
from tuner.curves import Pivot, pivot
from tuner.study import STEPS_AROUND, Trial, enqueue, keep, open_study, recover, search_range, storage_of


def fit() -> Pivot:
    found = pivot(rows())
    assert found is not None
    return found


def trial(threshold: int, gain: float, se: float = 0.01, feasible: bool = True) -> Trial:
    return Trial(0, threshold, gain, se, feasible, "sampler")


def test_interrupted_trials_are_queued_again(tmp_path: Path) -> None:
    """After a crash the running trial is FAIL, its value comes next, and another tuner's trial is untouched."""
    journal = tmp_path / "study.journal"
    dead = open_study(storage_of(journal), "s", 1)
    dead.enqueue_trial({"threshold": 37}, user_attrs={"source": "crossing"})
    mine, other = dead.ask(), dead.ask()
    mine.set_user_attr("tuner", "me")
    other.set_user_attr("tuner", "another")
    assert mine.suggest_int("threshold", 1, 64, log=True) == 37
    other.suggest_int("threshold", 1, 64, log=True)

    study = open_study(storage_of(journal), "s", 1)
    assert recover(study, "me") == 1
    assert [t.state for t in study.trials[:2]] == [TrialState.FAIL, TrialState.RUNNING]
    again = study.ask()
    assert again.suggest_int("threshold", 1, 64, log=True) == 37
    assert again.user_attrs["source"] == "crossing"
    assert recover(study, "nobody") == 0


def test_a_trial_that_died_before_it_had_a_value_is_only_failed() -> None:
    """There is nothing to queue again."""
    study = open_study(None, "s", 1)
    study.ask().set_user_attr("tuner", "me")
    assert recover(study, "me") == 1
    assert [t.state for t in study.trials] == [TrialState.FAIL]


def test_enqueue_is_idempotent() -> None:
    """Resuming does not queue the crossing and its neighbours twice."""
    study = open_study(None, "s", 1)
    enqueue(study, fit())
    once = len(study.trials)
    enqueue(study, fit())
    assert len(study.trials) == once <= len(STEPS_AROUND)
    low, high = search_range(fit())
    values = [t.system_attrs["fixed_params"]["threshold"] for t in study.trials]
    assert values[0] == fit().threshold
    assert all(low <= value <= high for value in values)


def test_keep_needs_more_than_noise() -> None:
    """A lucky trial within noise loses; a clear one wins; an infeasible one never does."""
    crossing = fit().threshold
    assert crossing is not None
    assert keep(fit(), []) == (crossing, False)
    assert keep(fit(), [trial(crossing, 0.0), trial(50, 0.02)]) == (crossing, False)
    assert keep(fit(), [trial(crossing, 0.0), trial(50, 0.04)]) == (50, True)
    assert keep(fit(), [trial(crossing, 0.0), trial(50, 0.04, feasible=False)]) == (crossing, False)


def test_keep_charges_switching_to_both() -> None:
    """Where the live crossing itself falls short of its curves, a trial that does not is the better one."""
    crossing = fit().threshold
    assert crossing is not None
    assert keep(fit(), [trial(crossing, -0.06), trial(50, 0.0)]) == (50, True)


def test_a_shared_database_is_one_study(tmp_path: Path) -> None:
    """Two tuners on one storage see each other's trials."""
    url = f"sqlite:///{tmp_path / 'study.db'}"
    one, two = open_study(storage_of(url), "s", 1), open_study(storage_of(url), "s", 2)
    asked = one.ask()
    asked.suggest_int("threshold", 1, 8)
    one.tell(asked, 1.0)
    assert [t.value for t in two.trials] == [1.0]


@pytest.mark.parametrize("url", ["nosuch://x", "sqlite:////no/such/folder/study.db"])
def test_a_storage_that_cannot_be_used_is_one_line(url: str) -> None:
    """The message names the storage and hides nothing behind a traceback."""
    with pytest.raises(UserError, match="--storage"):
        storage_of(url)


def test_constraint_is_what_optuna_filters_by() -> None:
    """An infeasible trial is never Optuna's best, however high its value."""
    study = open_study(None, "s", 1)
    for value, excess in ((9.0, 0.2), (1.0, 0.0)):
        asked = study.ask({"threshold": optuna.distributions.IntDistribution(1, 8)})
        asked.set_constraint("latency_c1", excess)
        study.tell(asked, value)
    assert study.best_value == 1.0
