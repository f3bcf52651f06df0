"""What is registered of a server: bounded, checked, and its keys kept out of it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from harness.errors import UserError
from tests.tuner.service.services import call, serving, simulating
from tests.tuner.service.test_servers import BOX, register, state
from tuner.service.asked import NewServer
from tuner.service.refusal import Refusal
from tuner.service.registry import MAX_SERVERS, Registry, attached, endpoint, keys


@pytest.mark.parametrize(
    ("changes", "status", "why"),
    [
        ({"url": "file:///etc/passwd"}, 400, "no server URL"),
        ({"url": "http://user:hush@127.0.0.1:9"}, 400, "must not hold a password"),
        ({"url": "http://127.0.0.1:9?x=hush"}, 400, "must not hold a password"),
        ({"url": ""}, 400, "cannot be used"),
        ({"name": "../box"}, 400, "cannot be used"),
        ({"name": "sim:x"}, 400, "cannot be used"),
        ({"variants": ["eagle4"]}, 400, "cannot be used"),
        ({"variants": ["eagle3", "eagle3"]}, 400, "given twice"),
        ({"admin_api_key_env": "SPECPIVOT_TOKEN"}, 400, "cannot be used"),
        ({"admin_api_key_env": "AWS_SECRET_ACCESS_KEY"}, 400, "cannot be used"),
        ({"api_key_env": "SPECPIVOT_API_KEY_NOT_SET"}, 400, "no variable SPECPIVOT_API_KEY_NOT_SET"),
        ({"api_key": "hush"}, 400, "cannot be used"),
        ({}, 409, "registered already"),
        ({"name": "again", "url": BOX["url"]}, 409, "registered already, as box"),
        ({"name": "again", "url": "http://127.0.0.1:9/prefix"}, 409, "registered already, as box"),
    ],
)
def test_what_cannot_be_registered(tmp_path: Path, changes: dict[str, Any], status: int, why: str) -> None:
    """Not a URL, a secret in it, a variable that is not for keys, or a server that is registered under another name."""

    async def scenario() -> tuple[int, Any]:
        async with serving(tmp_path) as (_, client):
            assert (await register(client))[0] == 201
            return await register(client, **({"name": "new", "url": "http://127.0.0.1:8"} | changes if changes else {}))

    found, answer = asyncio.run(scenario())
    assert (found, why in answer["error"]) == (status, True), answer
    assert "hush" not in answer["error"]


def test_the_registry_is_bounded_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    """A limit that a script in a loop meets; and no start with half a list."""
    registry = Registry(tmp_path)
    for number in range(MAX_SERVERS):
        registry._servers[f"s{number}"] = NewServer(f"s{number}", f"http://127.0.0.1:{number + 1}")
    with pytest.raises(Refusal, match="servers are registered already"):
        registry.add(NewServer("more", "http://127.0.0.1:9999"))
    (tmp_path / ".service" / "servers.json").write_text('{"servers": [{"name": ')
    with pytest.raises(UserError, match=r"servers\.json is damaged"):
        Registry(tmp_path)


def test_keys_come_from_the_environment_and_are_shown_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The registration names a variable: what it holds goes to the server and to its jobs, and into no file."""
    monkeypatch.setenv("SPECPIVOT_API_KEY_BOX", "hush-api")
    monkeypatch.setenv("SPECPIVOT_ADMIN_API_KEY_BOX", "hush-admin")
    named = {"api_key_env": "SPECPIVOT_API_KEY_BOX", "admin_api_key_env": "SPECPIVOT_ADMIN_API_KEY_BOX"}

    async def scenario() -> str:
        async with (
            simulating(api_key="hush-api", admin_api_key="hush-admin") as url,
            serving(tmp_path) as (service, client),
        ):
            shown = [await register(client, url=url, **named)]
            await state(client, "box", "up")
            shown.append(await call(client, "POST", "/api/v1/servers/box/apply", {"threshold": 5}))
            assert (shown[-1][0], shown[-1][1]["agrees"]) == (200, True)
            assert keys(service.registry.get("box")) == {
                "SPECPIVOT_API_KEY": "hush-api",
                "SPECPIVOT_ADMIN_API_KEY": "hush-admin",
            }
            return json.dumps(shown) + repr(endpoint(service.registry.get("box")))

    assert "hush" not in asyncio.run(scenario())
    assert "hush" not in "".join(file.read_text() for file in tmp_path.rglob("*") if file.is_file())


def test_a_server_plays_what_it_was_registered_for() -> None:
    """Nothing else is measured on it."""
    server = NewServer("box", "http://127.0.0.1:9", ("baseline",))
    assert attached(server, ["baseline"]) == {"baseline": "http://127.0.0.1:9"}
    with pytest.raises(Refusal, match="does not play eagle3"):
        attached(server, ["eagle3"])
