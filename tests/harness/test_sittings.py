"""Points of one sitting and of several: what is measured again, and what no longer counts as a pair."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest

from harness.records import LevelRow, PointKey, Variant
from harness.sittings import APART_S, apart, settled, started_s

BOTH: tuple[Variant, ...] = ("baseline", "eagle3")
DAY_S = 86_400.0


def row(variant: Variant, repeat: int, start_s: float, verdict: str = "ok", concurrency: int = 8) -> LevelRow:
    made = LevelRow(variant, concurrency, repeat, "done", "ok", output_tok_per_s=100.0, server_run=f"7@{start_s}")
    return msgspec.structs.replace(made, verdict=verdict)


def places(keys: Iterable[PointKey]) -> list[tuple[str, int]]:
    return sorted((key.variant, key.repeat) for key in keys)


@pytest.mark.parametrize(
    ("server_run", "seconds"),
    [("12@34.5", 34.5), ("12@34", 34.0), ("http://me@host:1", None), ("", None), ("a@", None)],
)
def test_when_a_server_started(server_run: str, seconds: float | None) -> None:
    """Told by a server that we started; unknown of one that was attached to."""
    assert started_s(msgspec.structs.replace(row("baseline", 1, 0.0), server_run=server_run)) == seconds


def test_halves_of_two_sittings_are_apart() -> None:
    """Hours lie between, not minutes, and only between usable points of the same repeat and concurrency."""
    far = APART_S + 1
    assert apart([row("baseline", 1, 0.0), row("eagle3", 1, far)]) == {(8, 1)}
    assert apart([row("baseline", 1, 0.0), row("eagle3", 1, APART_S)]) == set()
    assert apart([row("baseline", 1, 0.0), row("eagle3", 2, far), row("eagle3", 1, far, "unstable")]) == set()
    assert apart([row("baseline", 1, 0.0), row("eagle3", 1, far, concurrency=16)]) == set()


def test_a_resumed_sweep_measures_both_halves_of_a_pair_again() -> None:
    """Where one is missing and the other is of another day, or where they are of two days already."""
    now = 2 * DAY_S
    whole = [row("baseline", 1, 0.0), row("eagle3", 1, 0.0)]
    half = [row("baseline", 2, 0.0), row("eagle3", 2, 0.0, "unstable")]
    torn = [row("baseline", 3, 0.0), row("eagle3", 3, DAY_S)]
    fresh = [row("baseline", 4, now - 60)]
    found = settled([*whole, *half, *torn, *fresh], BOTH, now)
    assert places(found) == [("baseline", 1), ("baseline", 4), ("eagle3", 1)]
    assert places(settled([*whole, *half], BOTH, 60.0)) == [("baseline", 1), ("baseline", 2), ("eagle3", 1)]


def test_a_variant_that_cannot_be_measured_is_nobodys_other_half() -> None:
    """With the server of eagle3 gone for good, the baseline's points stay as they are; so do those of unknown age."""
    old = [row("baseline", 1, 0.0)]
    assert places(settled(old, ("baseline",), DAY_S)) == [("baseline", 1)]
    attached = [msgspec.structs.replace(old[0], server_run="http://127.0.0.1:30000")]
    assert places(settled(attached, BOTH, DAY_S)) == [("baseline", 1)]
