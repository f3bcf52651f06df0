"""Divergence and acceptance: exact tests by hand, waves, and a draft that got worse."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks import likeness
from benchmarks.likeness import accepted, answers, bodies, compared, diverged, verified
from harness.config import make_config
from harness.endpoint import Endpoint
from harness.errors import UserError
from harness.proof import Steps


def test_divergence_is_compared_request_by_request() -> None:
    """By hand: of 8 that diverged on one only, 7 or more by chance in 9 of 256 cases; without switches, nothing."""
    static = [True] * 10 + [True] + [False] * 7 + [False] * 2
    dynamic = [True] * 10 + [False] + [True] * 7 + [False] * 2
    found = compared(static, dynamic, switches=4)
    assert (found.answers, found.static, found.dynamic) == (20, 11, 17)
    assert (found.only_static, found.only_dynamic, found.met) == (1, 7, False)
    assert found.p == pytest.approx(9 / 256)
    assert compared(static, static, switches=4).met
    assert not compared(static, static, switches=0).met
    assert compared(dynamic, static, switches=1).p > 0.9


def steps(accept: float, batch: int = 4, count: int = 100) -> Steps:
    """A slice in which every verify step brought so many tokens per request, beside some plain steps."""
    by_batch = {(batch, "on"): (count, round(accept * batch * count), 1.0), (batch, "off"): (9, 36, 0.1)}
    return Steps(on=count, off=9, switches=0, ungated=0, by_batch=by_batch)


def test_an_equal_draft_agrees_and_a_worse_one_does_not() -> None:
    """Slices around 2.5 on both sides agree; a tenth less does not; the steps are those that speculated."""
    before = [steps(2.5 + d) for d in (-0.02, 0.01, 0.0, 0.02, -0.01)]
    same = accepted(before, [steps(2.5 + d) for d in (0.02, -0.02, 0.01, 0.0, -0.01)])
    assert (same.before, same.after, same.met) == (pytest.approx(2.5), pytest.approx(2.5), True)
    assert same.verify_steps == (500, 500)
    assert same.off_periods == 5
    worse = accepted(before, [steps(2.4 + d) for d in (-0.02, 0.01, 0.0, 0.02, -0.01)])
    assert worse.high < 0
    assert not worse.met
    steady = [steps(2.5)] * 3
    assert (accepted(steady, [steps(2.0)] * 3).met, accepted(steady, steady).met) == (False, True)
    assert verified(steps(2.0, batch=3, count=7)) == 21
    with pytest.raises(UserError, match="fewer than two"):
        accepted(before, before[:1])


@contextmanager
def echoing() -> Iterator[tuple[str, list[int]]]:
    """A server that answers with the number of its prompt tokens, and notes how many it answers at once."""
    lock, running, most = threading.Lock(), [0], [0]
    together = threading.Barrier(3)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            assert body["stream"] is False
            with lock:
                running[0] += 1
                most[0] = max(most[0], running[0])
            together.wait(30)
            with lock:
                running[0] -= 1
            reply = json.dumps({"output_ids": [len(body["input_ids"]), sum(body["input_ids"])]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *words: object) -> None:
            """Nothing on standard error."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", most
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_servers_that_do_not_fit_are_not_started(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A configuration whose servers take turns is refused before anything is written."""
    config = tmp_path / "two.toml"
    config.write_text('tp = 2\nresident = "alternate"\n')
    words = ["--config", str(config), "--model", "TARGET", "--draft", "DRAFT", "--threshold", "8"]
    assert likeness.main([*words, "--out", str(tmp_path / "out")]) == 2
    assert "up together" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_server_that_speculates_no_more_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its load has ended: its counters stand still, and a line says so."""
    still = {"steps_on": 5, "steps_off": 0, "switches": 0, "ungated": 0, "by_batch": []}
    monkeypatch.setattr(likeness, "block", lambda endpoint: still)
    monkeypatch.setattr(likeness, "SLICE_S", 0.0)
    monkeypatch.setattr(likeness, "WAIT_S", 0.05)
    with pytest.raises(UserError, match="made no verify step"):
        likeness._slice(Endpoint("http://127.0.0.1:1"))


def test_answers_come_in_waves_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three at once, never more, past any proxy; two askings give the same, request by request."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    config = make_config({"sim": "x", "variants": ["eagle3"], "input_tokens": 8, "random_range_ratio": 0.5})
    requests = bodies(config, 6)
    equal = make_config({"sim": "x", "variants": ["eagle3"]})
    limits = [json.loads(body)["sampling_params"]["max_new_tokens"] for body in bodies(equal, 16)]
    assert limits[:8] == limits[8:] == [72, 80, 88, 96, 104, 112, 120, 128]
    with echoing() as (url, most):
        first, second = (answers(Endpoint(url), requests, 3) for _ in range(2))
    assert most == [3]
    assert first == second
    assert [tokens[0] for tokens in first] == [len(json.loads(body)["input_ids"]) for body in requests]
    assert diverged(first, [*second[:5], (1, 2)]) == [False] * 5 + [True]
