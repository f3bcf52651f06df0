"""The words of --search."""

from __future__ import annotations

import pytest

from harness.errors import UserError
from tuner.knobs import parse_search, ranks_hysteresis


def test_numbers_belong_to_the_name_before_them() -> None:
    """Names alone, names with values, and the threshold that is always there."""
    assert parse_search("resume_at,min_dwell") == {"threshold": (), "resume_at": (), "min_dwell": ()}
    assert parse_search("threshold, num_steps=1,3,5,topk=1") == {"threshold": (), "num_steps": (1, 3, 5), "topk": (1,)}


def test_sglangs_own_names_are_taken() -> None:
    """With and without dashes."""
    assert parse_search("--speculative-num-steps=2,speculative_eagle_topk=4,dwell=0") == {
        "threshold": (),
        "num_steps": (2,),
        "topk": (4,),
        "min_dwell": (0,),
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("speed", "'speed' is unknown"),
        ("", "'' is unknown"),
        ("threshold=4", "come from the measured curves"),
        ("4", "come from the measured curves"),
        ("num_steps=0", "from 1 to 4096"),
        ("num_steps=two", "from 1 to 4096"),
        ("min_dwell=5000", "from 0 to 4096"),
        ("num_steps=\u00b2", "from 1 to 4096"),
        ("num_steps=1,\u00b2", "'\u00b2' is unknown"),
    ],
)
def test_what_cannot_be_searched_is_refused(text: str, says: str) -> None:
    """In one line that names the word."""
    with pytest.raises(UserError, match=says):
        parse_search(text)


def test_hysteresis_is_asked_by_either_of_its_knobs() -> None:
    """The threshold alone does not."""
    assert ranks_hysteresis(parse_search("min_dwell"))
    assert not ranks_hysteresis(parse_search("threshold,num_steps"))
