"""Streams, good and broken, become the right record: played from the mock's scripts without a socket."""

import pytest

from harness.api import Api, PlannedRequest
from harness.client import ERRORS, make_record, read_on, spread
from harness.http1 import MalformedResponse, ResponseFramer
from harness.metrics import level_metrics
from harness.mock_modes import MODES
from harness.mock_streams import Ask, Timing
from harness.records import PointKey, RequestRecord
from harness.stream import StreamReader
from harness.transport import Backlog, Exchange

APIS: tuple[Api, ...] = ("generate", "completions", "chat")
ZERO_S = 1000.0
TIMING = Timing()


def record(
    mode: str, api: Api = "generate", tokens: int = 8, timing: Timing = TIMING, planned_tokens: int | None = -1
) -> RequestRecord:
    """Play a mode through framer, reader and record, as a transport would; its pings end after 20 steps."""
    backlog = Backlog()
    planned = PlannedRequest(7, b"{}", 5, tokens if planned_tokens == -1 else planned_tokens)
    exchange = Exchange(planned, ZERO_S, backlog)
    framer, now = ResponseFramer(), ZERO_S
    for (wait_s, data), _ in zip(MODES[mode](Ask(api, 5, tokens), timing), range(400), strict=False):
        now += wait_s
        try:
            body = framer.feed(data) if data is not None else b""
        except MalformedResponse as error:
            exchange.error, exchange.detail = "malformed", str(error)
            break
        if body:
            exchange.add(now, body)
    exchange.end_s = now
    exchange.status = framer.status
    exchange.content_type = framer.headers.get(b"content-type", b"")
    if exchange.error is None and not framer.done and not framer.end_of_stream():
        exchange.error = "connection_lost"
    stream = StreamReader(api)
    while read_on(exchange, stream, 3):
        pass
    assert backlog.unparsed_bytes == 0
    return make_record(exchange, stream, PointKey("eagle3", 4, 2), 3, 1, ZERO_S)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    "mode", ["plain", "crlf", "cr", "no_space", "ping", "split", "empty_first", "counted_body", "close_ends", "big"]
)
def test_well_formed_streams_are_successes(mode: str, api: Api) -> None:
    """Every framing that servers use gives a success with the server's token count, on all three APIs."""
    got = record(mode, api)
    assert (got.error, got.error_detail) == (None, None)
    assert (got.output_tokens, got.prompt_tokens, got.finish_reason) == (8, 5, "length")
    assert sum(tokens for _, tokens in got.arrivals()) == 8
    assert got.tokens_exact


@pytest.mark.parametrize("api", APIS)
def test_arrivals_are_those_of_the_bytes(api: Api) -> None:
    """ttft and gaps are the script's, to a tick."""
    got = record("plain", api)
    assert got.chunk_ticks == (5000, *(1000,) * 7)
    assert got.chunk_tokens is None
    assert (got.start_s, got.end_s, got.index, got.worker, got.attempt) == (0.0, 0.12, 7, 1, 3)


@pytest.mark.parametrize("api", APIS)
def test_chunks_of_several_tokens(api: Api) -> None:
    """Two chunks of four tokens are eight tokens, four each."""
    got = record("plain", api, timing=Timing(0.05, 0.04, 4))
    assert (got.chunk_ticks, got.chunk_tokens, got.output_tokens) == ((5000, 4000), (4, 4), 8)


def test_role_and_usage_chunks_are_no_tokens() -> None:
    """The role chunk does not start the answer; a final usage chunk counts it, marked as not exact per chunk."""
    got = record("role", "chat")
    assert got.error is None
    assert got.chunk_ticks == (5000, *(1000,) * 7)
    assert (got.output_tokens, got.tokens_exact) == (8, False)


def test_usage_at_the_end_is_spread_over_the_chunks() -> None:
    """Where chunks do not say how many tokens they bring, the sum is still the server's."""
    got = record("role", "chat", timing=Timing(0.05, 0.04, 3))
    assert (got.chunk_tokens, got.output_tokens) == ((2, 3, 3), 8)
    assert spread(8, 3) == [2, 3, 3]


def test_reasoning_is_output() -> None:
    """A reasoning model's first reasoning token is its first token."""
    got = record("reasoning", "chat")
    assert (got.error, got.chunk_ticks[0]) == (None, 5000)


@pytest.mark.parametrize("api", APIS)
def test_one_token_and_no_token(api: Api) -> None:
    """One token is one chunk; no token at all is only right where the length is free, and has no first token."""
    assert record("plain", api, tokens=1).chunk_ticks == (5000,)
    free = record("no_token", api, planned_tokens=None)
    assert (free.error, free.output_tokens, free.chunk_ticks, free.finish_reason) == (None, 0, (), "stop")
    assert level_metrics([free], 0.0, 1.0).ttft_p50_s is None
    assert record("no_token", api).error == "output_tokens"
    assert record("plain", tokens=0).error == "no_finish_reason"


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("mode", "error"),
    [
        ("error_event", "error_event"),
        ("abort", "aborted"),
        ("early_stop", "output_tokens"),
        ("clean_close", "unterminated"),
        ("drop", "connection_lost"),
        ("http_503", "http_status"),
        ("not_a_stream", "not_a_stream"),
        ("no_http", "malformed"),
        ("no_json", "malformed"),
        ("other_prompt", "prompt_tokens"),
    ],
)
def test_failures_have_their_own_class(mode: str, error: str, api: Api) -> None:
    """What other clients count as success is an error here, with a class and its real duration."""
    got = record(mode, api)
    assert got.error == error
    assert error in ERRORS
    assert got.end_s > 0 or mode == "no_http"


def test_tokens_before_a_failure_are_kept() -> None:
    """Three tokens came before the abort, and are counted with the failed request."""
    assert record("abort").output_tokens == 3


def test_status_and_words_of_a_refusal_are_kept() -> None:
    """The body of a 503 explains itself in the record."""
    got = record("http_503")
    assert got.status_code == 503
    assert got.error_detail == 'status 503: {"error":"queue is full"}'


def test_early_stop_is_right_where_the_length_is_free() -> None:
    """Three tokens with a stop are a success when no number was asked for."""
    got = record("early_stop", planned_tokens=None)
    assert (got.error, got.output_tokens, got.finish_reason) == (None, 3, "stop")


def test_verify_steps_and_cached_tokens_are_the_servers() -> None:
    """What the native API says of speculation and cache is in the record."""
    assert record("verify").verify_steps == 4
    assert record("cached").cached_tokens == 5


@pytest.mark.parametrize("api", APIS)
def test_degenerate_output_is_noticed(api: Api) -> None:
    """A long answer of one repeated token is remarked on; an ordinary one is not."""
    assert record("degenerate", api, tokens=128).degenerate
    assert not record("plain", api, tokens=128).degenerate


def test_cumulative_ids_are_read_once() -> None:
    """A server that repeats all ids in each event (SGLang's default) is read as well as one that does not."""
    stream = StreamReader("generate")
    for n in range(1, 65):
        finish = '{"type":"length"}' if n == 64 else "null"
        ids = ",".join(["9"] * n)
        meta = f'{{"finish_reason":{finish},"prompt_tokens":5,"completion_tokens":{n}}}'
        stream.feed(float(n), f'data: {{"output_ids":[{ids}],"meta_info":{meta}}}\n\n'.encode())
    assert stream.degenerate()
    assert stream.completion_tokens == 64
