"""Every figure against a case worked out by hand."""

from typing import Any

import pytest

from harness.metrics import SLICES, level_metrics
from harness.records import RequestRecord


def request(start_s: float, ticks: tuple[int, ...] = (5000, *(1000,) * 7), **more: Any) -> RequestRecord:
    end_s = start_s + sum(ticks) * 1e-5
    fields: dict[str, Any] = {
        "variant": "eagle3",
        "concurrency": 1,
        "repeat": 1,
        "index": 0,
        "start_s": start_s,
        "end_s": end_s,
        "chunk_ticks": ticks,
        "output_tokens": len(ticks),
        "finish_reason": "length",
    }
    return RequestRecord(**fields | more)


def test_nothing_at_all() -> None:
    """A point without requests has no figures, and says so."""
    got = level_metrics([], 1.0, 3.0)
    assert (got.requests, got.errors, got.duration_s) == (0, 0, 2.0)
    assert got.output_tok_per_s is None
    assert got.ttft_p50_s is None
    assert level_metrics([request(0.0)], 2.0, 2.0).output_tok_per_s is None


def test_one_stream_of_single_tokens() -> None:
    """50 ms to the first token, then 10 ms each."""
    got = level_metrics([request(1.0)], 1.0, 2.0)
    assert got.ttft_p50_s == pytest.approx(0.05)
    assert got.tpot_p50_s == pytest.approx(0.01)
    assert got.gap_p50_s == got.gap_max_s == pytest.approx(0.01)
    assert got.e2e_p50_s == pytest.approx(0.12)
    assert got.user_tok_per_s == pytest.approx(100)
    assert got.tokens_per_chunk == 1.0
    assert got.output_tok_per_s == pytest.approx(8.0)


@pytest.mark.parametrize("cut_s", [0.0, 1e-9, 3e-9])
def test_slices_that_hold_the_same_are_not_correlated(cut_s: float) -> None:
    """Rates that differ by rounding errors alone have no slope and no autocorrelation, wherever the window is cut."""
    slice_s = 0.12345678901
    steady = [request(1.01 + i * slice_s, (500,), output_tokens=1, index=i) for i in range(SLICES)]
    got = level_metrics(steady, 1.0, 1.0 + SLICES * slice_s + cut_s)
    assert (got.window_autocorrelation, got.window_slope, got.slope_p) == (0.0, 0.0, 1.0)
    assert got.output_tok_per_s == pytest.approx(1 / slice_s)


def test_several_tokens_per_chunk() -> None:
    """Eight tokens in two chunks 40 ms apart: tpot 10 ms, gap 40 ms, four tokens per chunk."""
    got = level_metrics([request(0.0, (5000, 4000), chunk_tokens=(4, 4), output_tokens=8)], 0.0, 1.0)
    assert got.tpot_p50_s == pytest.approx(0.01)
    assert got.gap_p50_s == pytest.approx(0.04)
    assert got.tokens_per_chunk == 4.0


def test_a_large_first_chunk_does_not_flatter_tpot() -> None:
    """Tokens of the first chunk are not divided into the time after it."""
    got = level_metrics([request(0.0, (5000, 2000), chunk_tokens=(6, 2), output_tokens=8)], 0.0, 1.0)
    assert got.tpot_p50_s == pytest.approx(0.01)


def test_one_token_has_no_tpot() -> None:
    """It is left out, not counted as zero."""
    got = level_metrics([request(0.0, (5000,)), request(0.1)], 0.0, 1.0)
    assert got.tpot_p50_s == pytest.approx(0.01)
    assert level_metrics([request(0.0, (5000,))], 0.0, 1.0).tpot_p50_s is None


def test_a_stall_shows_in_the_gaps() -> None:
    """A pause of half a second is the largest gap, and hardly moves the mean."""
    got = level_metrics([request(0.0, (5000, 1000, 51000, 1000))], 0.0, 2.0)
    assert got.gap_max_s == pytest.approx(0.51)
    assert got.gap_p50_s == pytest.approx(0.01)


def test_tokens_belong_to_the_window_by_their_own_arrival() -> None:
    """A request across each edge gives the window only the tokens that arrived inside it."""
    ticks = (10_000,) * 10  # a token every 100 ms
    before, after = request(0.45, ticks), request(1.55, ticks)
    got = level_metrics([before, after], 1.0, 2.0)
    assert got.output_tok_per_s == pytest.approx(5 + 4)
    assert got.requests == 1  # the first began before the window


def test_throughput_has_an_interval_around_it() -> None:
    """A steady stream has a narrow interval, a bursty one a wide one; both hold the mean."""
    steady = level_metrics([request(0.0, (1000,) * 1000)], 0.0, 10.0)
    bursty = level_metrics([request(0.0, tuple((100_000 if i % 100 == 0 else 1) for i in range(900)))], 0.0, 10.0)
    for got in (steady, bursty):
        assert got.output_tok_per_s is not None
        assert got.output_tok_per_s_low is not None
        assert got.output_tok_per_s_high is not None
        assert got.output_tok_per_s_low < got.output_tok_per_s < got.output_tok_per_s_high
    assert steady.output_tok_per_s_low == pytest.approx(100, rel=0.01)
    assert bursty.output_tok_per_s_low < 0.8 * bursty.output_tok_per_s


def test_a_trend_is_seen() -> None:
    """Throughput that doubles over the window has a slope of about two thirds, beyond chance."""
    ticks = tuple(round(100_000 / (50 + 5 * second)) for second in range(10) for _ in range(50 + 5 * second))
    got = level_metrics([request(0.0, ticks)], 0.0, 10.0)
    assert got.window_slope == pytest.approx(2 / 3, abs=0.07)
    assert got.slope_p is not None
    assert got.slope_p < 1e-6
    assert got.window_autocorrelation is not None
    assert got.window_autocorrelation > 0.5


def test_in_flight_is_weighted_by_time() -> None:
    """Two requests, one over the whole window and one over half of it, from when they were sent."""
    whole = request(0.0, (400_000,))
    half = request(1.0, (100_000,), send_delay_s=0.5)
    got = level_metrics([whole, half], 1.0, 2.0)
    assert got.in_flight_mean == pytest.approx(1.5)
    assert got.send_delay_p99_s == pytest.approx(0.5)


def test_failures_are_counted_and_kept_out_of_latencies() -> None:
    """A failed request that touches the window is an error; its tokens did arrive."""
    bad = request(0.0, (1,) * 8, error="aborted")
    late = request(0.9, error="first_token_timeout", chunk_ticks=(), end_s=5.0)
    earlier = request(0.0, error="http_status", chunk_ticks=(), end_s=0.4)
    got = level_metrics([bad, late, earlier, request(0.5)], 0.5, 1.5)
    assert got.error_classes == {"first_token_timeout": 1}
    assert (got.requests, got.errors) == (2, 1)
    assert got.ttft_p50_s == pytest.approx(0.05)
    again = level_metrics([bad, request(0.5)], 0.0, 1.0)
    assert again.output_tok_per_s == pytest.approx(16)
    assert again.tokens_per_chunk == 1.0


def test_accept_length_is_tokens_over_verify_steps() -> None:
    """Weighted by tokens, over the requests that tell, inside the window only."""
    told = [request(1.0, verify_steps=4), request(1.0, verify_steps=2), request(0.0, verify_steps=8)]
    assert level_metrics([*told, request(1.0)], 0.5, 2.0).accept_len == pytest.approx(16 / 6)
    assert level_metrics([request(1.0)], 0.5, 2.0).accept_len is None


def test_median_tpot_has_an_interval_from_six_requests_on() -> None:
    """Five requests cannot bound their median with 95 % confidence."""
    six = [request(i * 0.1, (5000, *(1000 + i,) * 7)) for i in range(6)]
    got = level_metrics(six, 0.0, 1.0)
    assert got.tpot_p50_s_low == pytest.approx(0.01)
    assert got.tpot_p50_s_high == pytest.approx(0.01005)
    assert level_metrics(six[:5], 0.0, 1.0).tpot_p50_s_low is None


def test_cached_tokens_are_summed_over_the_point() -> None:
    """Cache hits count wherever they happen; None where the server does not say."""
    got = level_metrics([request(0.0, cached_tokens=3), request(1.0, cached_tokens=4)], 0.5, 2.0)
    assert got.cached_tokens == 7
    assert level_metrics([request(0.0)], 0.0, 2.0).cached_tokens is None


def test_row_fields_are_the_rows() -> None:
    """What goes into levels.csv has the row's names, and the rest stays out."""
    fields = level_metrics([request(0.0)], 0.0, 1.0).row_fields()
    assert fields["ttft_p50_s"] == pytest.approx(0.05)
    assert not {"slope_p", "error_classes"} & set(fields)


def test_the_order_of_records_does_not_matter() -> None:
    """Records come as requests finish; the figures are of the set."""
    records = [request(i * 0.07, (3000 + i, *(900 + 10 * i,) * 5)) for i in range(SLICES)]
    assert level_metrics(records, 0.2, 1.0) == level_metrics(records[::-1], 0.2, 1.0)


def test_every_latency_has_an_interval_around_it() -> None:
    """With enough requests both ends of each; they hold the figure, and do not depend on the records' order."""
    records = [
        request(
            i * 0.004, (4000 + 13 * (i % 97), *(900 + i * i * k % 211 for k in range(1, 9))), verify_steps=5 + i % 2
        )
        for i in range(1500)
    ]
    got = level_metrics(records, 0.0, 7.0)
    for name in ("ttft_p50_s", "ttft_p99_s", "tpot_p99_s", "gap_p50_s", "gap_p99_s", "e2e_p50_s", "e2e_p99_s"):
        low, figure, high = (getattr(got, f"{name}{end}") for end in ("_low", "", "_high"))
        assert low <= figure <= high, name
        assert low < high, name
    assert got.user_tok_per_s_low == pytest.approx(1 / (got.tpot_p50_s_high or 0))
    assert got.user_tok_per_s_high == pytest.approx(1 / (got.tpot_p50_s_low or 0))
    assert got.accept_len_low is not None
    assert got.accept_len_high is not None
    assert got.accept_len_low < (got.accept_len or 0) < got.accept_len_high
    assert level_metrics(records[::-1], 0.0, 7.0) == got


def test_one_request_bounds_nothing() -> None:
    """Its gaps are many, and all share its luck: figures without intervals."""
    got = level_metrics([request(0.0, (1000,) * 500, verify_steps=250)], 0.0, 6.0)
    assert got.gap_p50_s == pytest.approx(0.01)
    assert (got.gap_p50_s_low, got.gap_p99_s_high, got.ttft_p50_s_low, got.accept_len_low) == (None,) * 4
