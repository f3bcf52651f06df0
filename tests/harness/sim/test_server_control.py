"""The control plane of a simulated server: its policy, its metrics, its keys, and that it is simulated."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from patched_worker.policy import Policy
from tests.harness.sim.test_server import Client, generate, with_server


def test_policy_is_set_live_and_shown() -> None:
    """A threshold set over the wire gates the next steps; -1 never disables; a refusal changes nothing and is shown."""

    async def use(client: Client) -> list[Any]:
        async def block() -> Any:
            async with client.get("/get_server_info") as response:
                return (await response.json())["internal_states"][0]["specpivot"]

        async def put(**values: Any) -> Any:
            body = {"server_args": {f"speculative_{key}": value for key, value in values.items()}}
            async with client.post("/set_internal_state", json=body) as response:
                return await response.json()

        seen = [await block()]
        assert await put(disable_batch_threshold=0) == [True]
        await generate(client, text="x", sampling_params={"max_new_tokens": 8})
        seen.append(await block())
        assert await put(disable_batch_threshold=8, resume_batch_threshold=9) == [False]
        seen.append(await block())
        assert await put(disable_batch_threshold=8, min_dwell_steps=3) == [True]
        seen.append(await block())
        return seen

    start, off, refused, set_ = with_server(use)
    assert (start["threshold"], start["steps_on"], start["by_batch"]) == (None, 0, [])
    assert (off["threshold"], off["steps_on"], off["steps_off"]) == (0, 0, 7)
    [row] = off["by_batch"]
    assert (row["batch"], row["state"], row["steps"], row["tokens"]) == (1, "off", 7, 7)
    assert row["seconds"] == pytest.approx(7 * 0.005)
    assert "resume_at is 9" in refused["last_error"]
    assert {**refused, "last_error": None} == off
    assert (set_["threshold"], set_["resume_at"], set_["min_dwell"], set_["last_error"]) == (8, 6, 3, None)


def test_baseline_takes_no_threshold() -> None:
    """A server that is not patched refuses the patched worker's keys."""

    async def use(client: Client) -> Any:
        body = {"server_args": {"speculative_disable_batch_threshold": 4}}
        async with client.post("/set_internal_state", json=body) as response:
            return await response.json()

    assert with_server(use, "baseline") == [False]


def test_metrics_hold_sglangs_names_and_the_clients_tokens() -> None:
    """What clients were given is what /metrics counts, by SGLang's names, readable by prometheus_client's parser."""

    async def use(client: Client) -> str:
        bodies = [{"text": "x", "sampling_params": {"max_new_tokens": n}, "stream": bool(n % 2)} for n in range(1, 9)]
        await asyncio.gather(*(generate(client, **body) for body in bodies))
        async with client.get("/metrics") as response:
            return await response.text()

    families = {family.name: family for family in text_string_to_metric_families(with_server(use))}
    assert families["sglang:generation_tokens"].samples[0].value == sum(range(1, 9))
    assert families["sglang:num_requests"].samples[0].value == 8
    assert families["sglang:num_running_reqs"].samples[0].value == 0
    modes = {sample.labels["mode"]: sample.value for sample in families["sglang:realtime_tokens"].samples}
    assert modes == {"prefill_compute": 8, "decode": sum(range(8))}
    counts = [s for s in families["sglang:time_to_first_token_seconds"].samples if s.name.endswith("_count")]
    assert counts[0].value == 8


def test_simulation_is_declared() -> None:
    """/server_info says that this is a simulation, of which preset and at which time scale; the models are named."""

    async def use(client: Client) -> tuple[Any, Any, list[int]]:
        async with client.get("/server_info") as info, client.get("/v1/models") as models:
            documents = await info.json(), await models.json()
        paths = ("/health", "/health_generate", "/get_model_info", "/model_info")
        return *documents, [(await client.get(path)).status for path in paths]

    info, models, statuses = with_server(use, "dynamic", policy=Policy.from_threshold(5))
    assert info["simulation"]["time_scale"] == 20.0
    assert info["simulation"]["preset"] == "test"
    assert info["internal_states"][0]["specpivot"]["threshold"] == 5
    assert info["version"] == "0.5.12.post1"
    assert models["data"][0]["id"] == "model"
    assert statuses == [200] * 4


def test_keys_guard_the_server() -> None:
    """With an API key requests need it; with an admin key what changes the server needs that one."""

    async def use(client: Client) -> list[int]:
        asked = [
            ("/v1/models", None),
            ("/v1/models", "k"),
            ("/flush_cache", "k"),
            ("/flush_cache", "a"),
            ("/health", None),
        ]
        statuses = []
        for path, key in asked:
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            async with client.get(path, headers=headers) as response:
                statuses.append(response.status)
        return statuses

    assert with_server(use, api_key="k", admin_api_key="a") == [401, 200, 401, 200, 200]
