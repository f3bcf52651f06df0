"""Reads fed together say what the same reads say one by one, however the stream was cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.api import Api
from harness.mock_streams import DONE, Ask, Timing, event, events, sse
from harness.mock_streams import Chunk as MockChunk
from harness.stream import StreamReader

APIS: tuple[Api, ...] = ("generate", "completions", "chat")
EDGES = (b"", b"\n", b"\r\n", b": ping\n\n", b"event: error\n", b"data: [DONE]\n\n", b"data: {\n\n", b"data: 1,2\n\n")


def told(reader: StreamReader) -> tuple[object, ...]:
    return (
        reader.arrivals,
        reader.completion_tokens,
        reader.finish_reason,
        reader.terminated,
        reader.error,
        reader.degenerate(),
    )


@pytest.mark.parametrize("api", APIS)
@given(
    cuts=st.lists(st.integers(0, 40), max_size=30),
    fine=st.lists(st.integers(0, 9000), max_size=6),
    odd=st.lists(st.tuples(st.integers(0, 40), st.sampled_from(EDGES)), max_size=3),
)
def test_together_or_one_by_one(api: Api, cuts: list[int], fine: list[int], odd: list[tuple[int, bytes]]) -> None:
    """Whole events, several in a read, cut events and odd ones between them: the same arrivals, counts and errors."""
    pieces = [*events(Ask(api, 5, 40), Timing()), DONE]
    for at, text in odd:
        pieces.insert(at, text)
    stream = b"".join(pieces)
    starts = [sum(map(len, pieces[:cut])) for cut in cuts]
    edges = sorted({0, len(stream), *starts, *(cut % len(stream) for cut in fine)})
    reads = [(float(number), stream[a:b]) for number, (a, b) in enumerate(pairwise(edges))]
    together, alone = StreamReader(api), StreamReader(api)
    together.feed_all(reads)
    for read in reads:
        alone.feed(*read)
    assert told(together) == told(alone)


def test_a_read_of_two_events_beside_one_of_half() -> None:
    """As many events as reads, but not one in each: every event has the time of the read that ended it."""
    one, two, three = (sse(event(Ask("generate", 5, 4), MockChunk(n, 1))) for n in (1, 2, 3))
    reader = StreamReader("generate")
    reader.feed_all([(1.0, one + two + three[:9]), (2.0, three[9:20]), (3.0, three[20:])])
    assert reader.arrivals == [(1.0, 1), (1.0, 1), (3.0, 1)]
