"""The simulated server's HTTP API, as a client of SGLang's sees it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import msgspec
import pytest
from aiohttp import ClientResponse
from aiohttp.test_utils import TestClient, TestServer

from harness.errors import UserError
from harness.records import Variant
from harness.sim import app
from harness.sim.app import make_app
from harness.sim.preset import Limits
from harness.sim.server import main, settings_from
from harness.sim.service import ServerSettings, Service
from patched_worker.policy import Policy
from tests.harness.sim.worlds import world

Client = TestClient[Any, Any]
T = TypeVar("T")
ROOT = Path(__file__).parents[3]


def with_server(use: Callable[[Client], Awaitable[T]], variant: Variant = "eagle3", **settings: Any) -> T:
    """Run `use` against a simulated server in this process, 20 simulated seconds per second."""
    settings = {"preset": world(), "time_scale": 20.0, "port": 1, **settings}

    async def run() -> T:
        server = TestServer(make_app(Service(ServerSettings(variant=variant, **settings))))
        async with TestClient(server) as client:
            return await use(client)

    return asyncio.run(run())


async def events(response: ClientResponse) -> list[Any]:
    """The JSON documents of a stream that ends with [DONE]."""
    assert response.headers["Content-Type"].startswith("text/event-stream")
    blocks = (await response.read()).decode().split("\n\n")
    assert blocks[-2:] == ["data: [DONE]", ""]
    return [json.loads(block.removeprefix("data: ")) for block in blocks[:-2]]


async def generate(client: Client, **body: Any) -> Any:
    async with client.post("/generate", json=body) as response:
        assert response.status == 200
        return await (events(response) if body.get("stream") else response.json())


def test_stream_is_cumulative_and_counts_tokens() -> None:
    """Each chunk repeats the text so far and says how many tokens it is; speculation brings several per chunk."""

    async def use(client: Client) -> list[Any]:
        params = {"max_new_tokens": 40, "ignore_eos": True}
        return await generate(client, input_ids=list(range(50)), sampling_params=params, stream=True)

    chunks = with_server(use)
    counts = [chunk["meta_info"]["completion_tokens"] for chunk in chunks]
    gained = [b - a for a, b in zip([0, *counts], counts, strict=False)]
    assert gained[0] == 1
    assert counts[-1] == 40
    assert max(gained) in (2, 3, 4)
    assert all(later["text"].startswith(earlier["text"]) for earlier, later in pairwise(chunks))
    assert [len(chunk["text"].split()) for chunk in chunks] == counts == [len(chunk["output_ids"]) for chunk in chunks]
    assert {chunk["meta_info"]["prompt_tokens"] for chunk in chunks} == {50}
    last = chunks[-1]["meta_info"]
    assert last["finish_reason"] == {"type": "length", "length": 40}
    assert last["spec_verify_ct"] == len(chunks) - 1
    assert last["spec_accept_length"] == pytest.approx(40 / last["spec_verify_ct"])
    assert all(chunk["meta_info"]["finish_reason"] is None for chunk in chunks[:-1])


def test_baseline_brings_one_token_per_chunk() -> None:
    """A server that cannot speculate streams token by token and says nothing of speculation."""

    async def use(client: Client) -> tuple[list[Any], Any]:
        body = {"text": "hello", "sampling_params": {"max_new_tokens": 6}, "stream": True}
        async with client.get("/server_info") as response:
            return await generate(client, **body), await response.json()

    chunks, info = with_server(use, "baseline_no_overlap")
    assert [chunk["meta_info"]["completion_tokens"] for chunk in chunks] == [1, 2, 3, 4, 5, 6]
    assert "spec_verify_ct" not in chunks[-1]["meta_info"]
    assert info["speculative_algorithm"] is None
    assert info["disable_overlap_schedule"] is True
    assert "specpivot" not in info["internal_states"][0]


def test_whole_answers_and_batches() -> None:
    """Without streaming there is one document; a list of prompts gets a list, streamed or not."""

    async def use(client: Client) -> tuple[Any, Any, Any]:
        params = {"max_new_tokens": 5}
        return (
            await generate(client, text="a prompt", sampling_params=params),
            await generate(client, input_ids=[[1], [2, 3]], sampling_params=params),
            await generate(client, text=["a", "b"], sampling_params=params, stream=True),
        )

    one, many, streamed = with_server(use)
    assert one["meta_info"]["completion_tokens"] == 5 == len(one["text"].split())
    assert [answer["meta_info"]["prompt_tokens"] for answer in many] == [1, 2]
    ends = [chunk["index"] for chunk in streamed if chunk["meta_info"]["finish_reason"]]
    assert sorted(ends) == [0, 1]


def test_openai_dialects_stream_deltas_and_usage() -> None:
    """Deltas join to the whole text, the role comes first, and usage is sent where it was asked for."""

    async def use(client: Client) -> dict[str, Any]:
        common = {"model": "m", "max_tokens": 9, "stream": True}
        every = {"include_usage": True, "continuous_usage_stats": True}
        chat = {"messages": [{"role": "user", "content": "hi there"}]}
        async with client.post("/v1/completions", json={**common, "prompt": [1, 2, 3], "stream_options": every}) as r:
            completion = await events(r)
        async with client.post("/v1/chat/completions", json={**common, **chat}) as r:
            plain = await events(r)
        async with client.post("/v1/chat/completions", json={**chat, "model": "m", "max_completion_tokens": 9}) as r:
            whole = await r.json()
        return {"completion": completion, "plain": plain, "whole": whole}

    got = with_server(use)
    *chunks, usage = got["completion"]
    assert len("".join(chunk["choices"][0]["text"] for chunk in chunks).split()) == 9
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks][-1] == 9
    assert usage["choices"] == []
    assert (usage["usage"]["prompt_tokens"], usage["usage"]["total_tokens"]) == (3, 12)
    deltas = [chunk["choices"][0]["delta"] for chunk in got["plain"]]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert len("".join(delta.get("content", "") for delta in deltas).split()) == 9
    assert got["plain"][-1]["choices"][0]["finish_reason"] == "length"
    assert all(chunk["usage"] is None for chunk in got["plain"])
    assert got["whole"]["usage"]["completion_tokens"] == 9
    assert len(got["whole"]["choices"][0]["message"]["content"].split()) == 9


def test_bad_bodies_are_refused_as_sglang_refuses_them() -> None:
    """400 and a message, in the shape of the dialect; a stream of /generate carries the error as an event."""

    async def use(client: Client) -> list[tuple[int, Any]]:
        long = {"max_new_tokens": 99_999}
        posts = [
            ("/generate", {"text": "x", "sampling_params": long}),
            ("/generate", {"sampling_params": {}}),
            ("/generate", {"text": "x", "sampling_params": {"max_new_tokens": 0}}),
            ("/generate", {"text": "x", "sampling_params": {"n": 2}}),
            ("/v1/completions", {"prompt": []}),
            ("/v1/chat/completions", {"messages": "no"}),
            ("/set_internal_state", {"server_args": 1}),
        ]
        answers = []
        for path, body in posts:
            async with client.post(path, json=body) as response:
                answers.append((response.status, await response.json()))
        async with client.post("/generate", json={"text": "x", "sampling_params": long, "stream": True}) as response:
            answers.append((response.status, await events(response)))
        return answers

    *refusals, streamed = with_server(use)
    assert [status for status, _ in refusals] == [400] * 7
    assert "maximum context length" in refusals[0][1]["error"]["message"]
    assert all(body["error"]["message"] for _, body in refusals[:4])
    assert all((body["object"], body["code"]) == ("error", 400) and body["message"] for _, body in refusals[4:])
    assert streamed[0] == 200
    assert "maximum context length" in streamed[1][0]["error"]["message"]


def test_abort_and_disconnect_free_the_server() -> None:
    """An aborted stream ends with what it had; a client that leaves is aborted; then the cache can be flushed."""

    async def use(client: Client) -> tuple[Any, int, int]:
        long = {"sampling_params": {"max_new_tokens": 4000}, "stream": True}
        async with client.post("/generate", json={**long, "text": "x", "rid": "mine"}) as response:
            await response.content.readany()
            async with client.post("/flush_cache") as busy:
                refused = busy.status
            async with client.post("/abort_request", json={"rid": "mine"}) as aborted:
                assert aborted.status == 200
            last = (await response.read()).decode().split("\n\n")[-3]
        async with client.post("/generate", json={**long, "text": "y"}) as response:
            await response.content.readany()
            response.close()
        for _ in range(3000):
            async with client.post("/flush_cache") as flushed:
                if flushed.status == 200:
                    break
            await asyncio.sleep(0.01)
        return json.loads(last.removeprefix("data: ")), refused, flushed.status

    last, refused, flushed = with_server(use, time_scale=1.0)
    assert last["meta_info"]["finish_reason"]["type"] == "abort"
    assert 0 < last["meta_info"]["completion_tokens"] < 4000
    assert (refused, flushed) == (400, 200)


def test_who_hangs_up_before_the_answer_begins_is_no_error_of_ours(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The request is given up, and nothing is logged: a client that is killed does that."""
    monkeypatch.setattr(app, "_streamed", mock.AsyncMock(side_effect=ConnectionResetError))

    async def use(client: Client) -> None:
        body = {"input_ids": [1, 2, 3], "stream": True}
        async with client.post("/generate", json=body) as response:
            await response.read()

    with_server(use)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_seventy_streams_are_consistent() -> None:
    """Many streams at once, more than there are slots for: each gets its own tokens, whole and in order."""
    preset = world(limits=Limits(32, 100_000))

    async def use(client: Client) -> list[list[Any]]:
        body = {"text": "x", "sampling_params": {"max_new_tokens": 30}, "stream": True}
        return await asyncio.gather(*(generate(client, **body) for _ in range(70)))

    for chunks in with_server(use, preset=preset, time_scale=50.0):
        counts = [chunk["meta_info"]["completion_tokens"] for chunk in chunks]
        assert counts == sorted(set(counts))
        assert counts[-1] == 30


def test_process_says_when_it_is_ready_and_stops_on_sigterm() -> None:
    """The command prints one line with its URL when it listens, and exits with 0 on SIGTERM."""
    command = [sys.executable, "-m", "harness.sim.server", "--variant", "baseline", "--port", "0"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env={**os.environ})
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("simulated baseline server ready at http://127.0.0.1:")
        process.send_signal(signal.SIGTERM)
        assert process.wait(200) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--preset", "none"], "no preset none"),
        (["--variant", "eagle9"], "unknown variant eagle9"),
        (["--time-scale", "0"], "--time-scale is 0"),
        (["--threshold", "-7"], "threshold is -7"),
        (["--noise", "-1"], "give sigmas"),
        (["--host", "192.0.2.1", "--port", "0"], "cannot listen on 192.0.2.1"),
    ],
)
def test_bad_command_line_is_one_line(arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Bad input exits with 2 and one line that names it."""
    assert main(arguments) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert complaint in line


def test_command_line_sets_policy_and_limits() -> None:
    """Threshold, slots and KV tokens of the command line reach the settings."""
    line = "--threshold 12 --min-dwell 3 --max-running-requests 48 --max-total-tokens 5000 --noise 0.02"
    settings = settings_from(line.split())
    assert settings.policy == Policy.from_threshold(12, min_dwell=3)
    assert settings.preset.limits.max_running_requests == 48
    assert settings.preset.limits.max_total_num_tokens == 5000
    assert settings.noise.step_sigma == 0.02
    assert msgspec.structs.asdict(settings)["variant"] == "dynamic"
    with pytest.raises(UserError):
        settings_from(["--threshold", "3", "--resume-at", "4"])
