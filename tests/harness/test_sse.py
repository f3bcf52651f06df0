"""Events come out of the splitter whole, whatever the line ends and wherever the bytes were cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.sse import EventSplitter


def split(body: bytes, cuts: list[int]) -> list[tuple[bytes, bytes]]:
    splitter = EventSplitter()
    edges = [0, *sorted(cut % (len(body) + 1) for cut in cuts), len(body)]
    return [event for a, b in pairwise(edges) for event in splitter.feed(body[a:b])]


STREAM = (
    "\ufeffdata: {'a': '\U0001f600 é'}\n\n: comment\n\ndata:no space\nid: 3\n\nevent: error\ndata: one\ndata: two\n\n"
    "data\n\ndata:  two spaces\n\nretry: 5\n\ndata: [DONE]\n\n"
).encode()
EVENTS = [
    (b"", "{'a': '\U0001f600 é'}".encode()),
    (b"", b"no space"),
    (b"error", b"one\ntwo"),
    (b"", b""),
    (b"", b" two spaces"),
    (b"", b"[DONE]"),
]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@given(cuts=st.lists(st.integers(0, 400), max_size=60))
def test_any_line_end_cut_anywhere(end: bytes, cuts: list[int]) -> None:
    """All three line ends give the same events for every way of cutting the bytes."""
    assert split(STREAM.replace(b"\n", end), cuts) == EVENTS


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
def test_an_event_is_given_out_by_the_read_that_ends_it(end: bytes) -> None:
    """No event waits for the next read, whose stamp would be a gap too late."""
    splitter = EventSplitter()
    assert list(splitter.feed(b"data: x" + end)) == [(b"", b"x")]
    assert not splitter.pending


def test_an_unfinished_event_is_pending() -> None:
    """Bytes without their blank line are held and yield nothing."""
    splitter = EventSplitter()
    assert list(splitter.feed(b"data: x\n")) == []
    assert splitter.pending


def test_a_large_event_in_many_reads_is_joined_once() -> None:
    """An event of 400 KB in reads of 1 KB comes out whole."""
    splitter = EventSplitter()
    body = b"data: " + b"x" * 400_000 + b"\n\n"
    events = [e for at in range(0, len(body), 1000) for e in splitter.feed(body[at : at + 1000])]
    assert events == [(b"", b"x" * 400_000)]
