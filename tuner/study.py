"""The Optuna study of a tuning: which thresholds to try live, what a crash leaves behind, and what is kept.

Ask and tell only: measuring is the caller's. The study holds the crossing, its neighbours, and a few values that Optuna
samples near them. Its best trial is the luckiest one, so it is not what is kept: the crossing stays unless another
value beats it by more than noise.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import optuna
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from harness.errors import UserError
from harness.regular import require_regular
from tuner.curves import Pivot

JOURNAL = "study.journal"  # in the run folder
LATENCY = "latency_c1"  # name of the constraint; <= 0 is feasible
BEATS_Z = 1.64  # one-sided 5 %
_BEGIN_ANEW = f"take {JOURNAL} away to begin the trials anew: what was measured is kept"
STEPS_AROUND = (1.0, 2**-0.5, 2**0.5, 0.5, 2.0)  # around the crossing


class Trial(msgspec.Struct, frozen=True):
    """A threshold that was measured live.

    Attributes:
        gain: log of its throughput over what the curves promise of the crossing, weighted over the measured levels.
        se: standard error of `gain`.
        feasible: whether the latency constraint held.
        source: crossing, neighbour, or sampler.
    """

    number: int
    threshold: int
    gain: float
    se: float
    feasible: bool
    source: str


def storage_of(where: str | Path) -> optuna.storages.BaseStorage | str:
    """The storage behind an address.

    Args:
        where: a journal file, grpc://HOST:PORT of an Optuna storage proxy, or the URL of a database
            (sqlite:///FILE, postgresql://...).

    Raises:
        UserError: the package that such a storage needs is not installed, nothing answers there, or it is damaged.
    """
    if isinstance(where, Path):
        return _journal(where)
    parts = urlsplit(where)
    try:
        if parts.scheme == "grpc":
            return _grpc(parts.hostname or "localhost", parts.port or 13000)
        return _database(where)
    except ImportError as error:
        raise UserError(f"--storage {parts.scheme}://... needs another package: {error}; install it") from error
    except Exception as error:  # each database driver has its own way to say that it cannot connect
        shown = f"{parts.scheme}://{parts.hostname or ''}{parts.path}"
        raise UserError(f"--storage {shown} cannot be used: {str(error).splitlines()[0]}") from error


def check_storage(url: str) -> str:
    """The URL, when it holds no secret: it is written into the manifest, for --resume.

    Raises:
        UserError: it does.
    """
    parts = urlsplit(url)
    if parts.password is not None or "password" in parts.query:
        raise UserError("--storage must not hold a password; give it by PGPASSWORD or ~/.pgpass")
    return url


def _journal(file: Path) -> optuna.storages.BaseStorage:
    """A journal in a run folder; what a crash has cut off at its end is cut away, as in requests.jsonl."""
    try:
        with require_regular(file).open("a+b") as journal:
            journal.seek(0)
            journal.truncate(sum(len(line) for line in journal if line.endswith(b"\n")))
        return optuna.storages.JournalStorage(JournalFileBackend(str(file)))
    except UserError:
        raise
    except Exception as error:  # Optuna lets through whatever a damaged line makes of it
        raise UserError(f"{file} cannot be used: {error!r}; {_BEGIN_ANEW}") from error


def _grpc(host: str, port: int) -> optuna.storages.BaseStorage:
    with warnings.catch_warnings():
        # Its interface may change in another Optuna; ours is pinned, and people need not be told at every start.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.storages.GrpcStorageProxy(host=host, port=port)


def _database(url: str, attempts: int = 3) -> optuna.storages.BaseStorage:
    """A database; two tuners that make its tables at the same moment get in each other's way, so it tries again."""
    for attempt in range(1, attempts + 1):
        try:
            return optuna.storages.get_storage(url)
        except Exception:
            if attempt == attempts:
                raise
            time.sleep(attempt)
    raise AssertionError("attempts is at least 1")


def open_study(storage: optuna.storages.BaseStorage | str | None, name: str, seed: int) -> optuna.Study:
    """The study of a tuning, new or continued.

    Args:
        storage: where it lives; None keeps it in memory.
        name: equal for all tuners that share it.
        seed: of the sampler.

    Raises:
        UserError: what is stored under this name is no study of a tuning.
    """
    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=len(STEPS_AROUND))
    try:
        study = optuna.create_study(
            storage=storage, study_name=name, sampler=sampler, direction="maximize", load_if_exists=True
        )
        study.get_trials(deepcopy=False)
    except Exception as error:  # as in _journal
        raise UserError(f"the study {name} cannot be used: {error!r}; {_BEGIN_ANEW}") from error
    return study


def recover(study: optuna.Study, mine: str) -> int:
    """Tell this tuner's trials that a crash left running FAIL, and put their values back into the queue.

    Ask and tell has no heartbeat, and a sampler takes a running trial for a real one: do this before asking.

    Args:
        study: the study.
        mine: the tuner's name, as in its trials' "tuner" attribute; other tuners' trials are left alone.

    Returns:
        How many trials were recovered.
    """
    stale = [
        t for t in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)) if t.user_attrs.get("tuner") == mine
    ]
    for trial in stale:
        study.tell(trial.number, state=TrialState.FAIL)
        if trial.params:
            study.enqueue_trial(trial.params, user_attrs={"source": trial.user_attrs.get("source", "sampler")})
    return len(stale)


def search_range(fit: Pivot) -> tuple[int, int]:
    """Thresholds that the study looks at: a factor of four around the crossing, inside what was measured."""
    top = max(1, math.ceil(fit.ratios[-1].batch))
    if fit.threshold is None:
        return max(1, top // 4), top
    centre = max(1, fit.threshold)
    return max(1, centre // 4), min(top, 4 * centre)


def enqueue(study: optuna.Study, fit: Pivot) -> None:
    """Queue the crossing and its neighbours; values that were tried or queued before are skipped."""
    low, high = search_range(fit)
    centre = high if fit.threshold is None else fit.threshold
    for factor in STEPS_AROUND:
        value = round(centre * factor)
        if low <= value <= high:
            source = "crossing" if factor == 1 else "neighbour"
            study.enqueue_trial({"threshold": value}, user_attrs={"source": source}, skip_if_exists=True)


def trials_of(study: optuna.Study) -> tuple[Trial, ...]:
    """The study's complete trials, oldest first, whichever tuner measured them."""
    return tuple(_trial(t) for t in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)) if _judged(t))


def keep(fit: Pivot, trials: Sequence[Trial]) -> tuple[int | None, bool]:
    """The crossing, unless a feasible trial beats it live by more than noise; and whether one did.

    The opponent is the crossing's own live trials where there are any, so that what switching itself costs counts for
    both; else what the curves promise.
    """
    own = [t for t in trials if t.threshold == fit.threshold]
    base_gain = sum(t.gain for t in own) / len(own) if own else 0.0
    base_variance = sum(t.se**2 for t in own) / len(own) ** 2 if own else 0.0
    best, margin = fit.threshold, 0.0
    for trial in trials:
        ahead = trial.gain - base_gain - BEATS_Z * math.sqrt(trial.se**2 + base_variance)
        if trial.feasible and ahead > margin:
            best, margin = trial.threshold, ahead
    return best, best != fit.threshold


def _judged(trial: FrozenTrial) -> bool:
    gain, se = trial.user_attrs.get("gain"), trial.user_attrs.get("se")
    numbers = all(isinstance(value, int | float) and math.isfinite(value) for value in (gain, se))
    return numbers and isinstance(trial.params.get("threshold"), int)


def _trial(trial: FrozenTrial) -> Trial:
    return Trial(
        number=trial.number,
        threshold=trial.params["threshold"],
        gain=trial.user_attrs["gain"],
        se=trial.user_attrs["se"],
        feasible=all(value <= 0 for value in trial.constraints.values()),
        source=trial.user_attrs.get("source", "sampler"),
    )
