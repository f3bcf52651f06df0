"""Who is let in: by address, by site, by token; and what is too long or of another kind."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import pytest

from harness.errors import UserError
from tests.tuner.service.services import TOKEN, call, serving
from tuner.service.api import ROUTES
from tuner.service.app import PAGE, PAGE_POLICY
from tuner.service.routes import MAX_BODY_BYTES
from tuner.service.safety import Door, door, is_loopback

JOB = {"kind": "sweep", "sim": "no-such-preset"}  # let in, it is a 400


def asked(results: Path, method: str, path: str, token: str | None = None, body: Any = None, **how: Any) -> int:
    """The status of one request to a service."""

    async def ask() -> int:
        async with serving(results, token, public_names=["pivot.example"]) as (_, client):
            if body is not None:
                how["json"] = body
            async with client.request(method, path, allow_redirects=False, **how) as response:
                return response.status

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8700", 200),
        ("localhost", 200),
        ("[::1]:8700", 200),
        ("pivot.example", 200),
        ("evil.example:8700", 403),
        ("127.0.0.1.evil.example", 403),
        ("192.0.2.1", 403),
        ("127.0.0.1@evil.example", 403),
        ("evil.example/127.0.0.1", 403),
        ("", 403),
        ("[", 403),
    ],
)
def test_a_name_that_resolves_to_us_is_not_ours(tmp_path: Path, host: str, status: int) -> None:
    """DNS rebinding: a page of evil.example may reach this machine by that name, and is refused."""
    assert asked(tmp_path, "GET", "/api/v1/runs", headers={"Host": host}) == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 400),
        ({"Sec-Fetch-Site": "same-origin"}, 400),
        ({"Sec-Fetch-Site": "none"}, 400),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 403),
        ({"Origin": "http://SELF"}, 400),
        ({"Origin": "https://pivot.example"}, 400),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://localhost:3000"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "chrome-extension://abc"}, 403),
        ({"Origin": "http://["}, 403),
    ],
)
def test_other_sites_change_nothing(tmp_path: Path, headers: dict[str, str], status: int) -> None:
    """A browser says where a page is from; programs that are no browsers say nothing and are let in."""

    async def ask() -> int:
        async with serving(tmp_path, public_names=["pivot.example"]) as (_, client):
            own = {name: value.replace("SELF", f"{client.host}:{client.port}") for name, value in headers.items()}
            return (await call(client, "POST", "/api/v1/jobs", JOB, headers=own))[0]

    assert asyncio.run(ask()) == status


def test_a_link_may_be_followed_but_nothing_read_from_another_site(tmp_path: Path) -> None:
    """Somebody's wiki may link to the page; a script of that wiki gets nothing."""
    elsewhere = {"Sec-Fetch-Site": "cross-site"}
    assert asked(tmp_path, "GET", "/", headers=elsewhere | {"Sec-Fetch-Mode": "navigate"}) == 200
    assert asked(tmp_path, "GET", "/api/v1/runs", headers=elsewhere | {"Sec-Fetch-Mode": "no-cors"}) == 403


def test_the_token_is_asked_on_every_route_but_the_login(tmp_path: Path) -> None:
    """Every route of the table, the page, its files and the metrics; a browser is sent to log in."""

    async def ask() -> dict[str, int]:
        found = {}
        async with serving(tmp_path, TOKEN) as (_, client):
            paths = [(route.method, route.path) for route in ROUTES]
            paths += [("GET", "/"), ("GET", "/static/main.js"), ("GET", "/metrics"), ("GET", "/nothing")]
            for method, path in paths:
                async with client.request(method, path.replace("{", "").replace("}", "")) as response:
                    found[f"{method} {path}"] = response.status
            async with client.get("/", headers={"Accept": "text/html"}) as response:
                found["shown"] = response.status
                assert response.url.path == "/login"
        return found

    found = asyncio.run(ask())
    assert found.pop("shown") == 200
    assert set(found.values()) == {401}, found


@pytest.mark.parametrize("path", ["/", "/login/", "/api/v1/runs/x/report"])
def test_a_browser_is_sent_to_the_login_below_any_prefix(tmp_path: Path, path: str) -> None:
    """The address is relative: a proxy may offer the service below a path that the service does not know."""

    async def ask() -> tuple[int, str]:
        async with (
            serving(tmp_path, TOKEN) as (_, client),
            client.get(path, headers={"Accept": "text/html"}, allow_redirects=False) as response,
        ):
            return response.status, response.headers["Location"]

    status, location = asyncio.run(ask())
    assert (status, urljoin(f"https://pivot.example/below{path}", location)) == (
        303,
        "https://pivot.example/below/login",
    )


@pytest.mark.parametrize(
    "given", ["Bearer", "Bearer ", f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}x", f"Basic {TOKEN}", TOKEN, "Bearer \xe4"]
)
def test_a_wrong_token_is_no_token(tmp_path: Path, given: str) -> None:
    """Neither a part of it nor more than it nor another kind."""
    assert asked(tmp_path, "GET", "/api/v1/runs", TOKEN, headers={"Authorization": given}) == 401


@pytest.mark.parametrize("header", [b"Authorization: Bearer \xff", b"Cookie: specpivot=\xff"])
def test_bytes_that_are_no_text_are_no_token(tmp_path: Path, header: bytes) -> None:
    """401 as for any other, in a header or a cookie."""

    async def ask() -> bytes:
        async with serving(tmp_path, TOKEN) as (_, client):
            reader, writer = await asyncio.open_connection(client.host, client.port)
            writer.write(b"GET /api/v1/runs HTTP/1.1\r\nHost: localhost\r\n" + header + b"\r\n\r\n")
            status = await reader.readline()
            writer.close()
            await writer.wait_closed()
            return status

    assert asyncio.run(ask()).split()[1] == b"401"


def test_a_token_or_the_cookie_of_a_login_lets_in(tmp_path: Path) -> None:
    """The cookie does not hold the token, no script reads it, and no other site sends it."""

    async def ask() -> tuple[list[int], str]:
        async with serving(tmp_path, TOKEN) as (_, client):
            bearer = (await call(client, "GET", "/api/v1/runs", headers={"Authorization": f"Bearer {TOKEN}"}))[0]
            async with client.post("/login", json={"token": "wrong"}) as response:
                wrong = response.status
            async with client.post("/login", json={"token": TOKEN}) as response:
                right, cookie = response.status, response.headers["Set-Cookie"]
            return [bearer, wrong, right, (await call(client, "GET", "/api/v1/runs"))[0]], cookie

    statuses, cookie = asyncio.run(ask())
    assert statuses == [200, 401, 200, 200]
    assert TOKEN not in cookie
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))


def test_a_service_without_a_token_needs_no_login(tmp_path: Path) -> None:
    """Whoever tries is told, and gets no cookie."""
    assert asked(tmp_path, "POST", "/login", body={"token": "x"}) == 409


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "pivot.example"])
def test_another_address_needs_a_token(host: str) -> None:
    """Without one it is refused before anything listens; with one, any address of ours will do, but no foreign name."""
    with pytest.raises(UserError, match="SPECPIVOT_TOKEN"):
        door(host, None)
    made = door(host, TOKEN)
    assert made.any_address
    assert host in made.names
    assert "evil.example" not in made.names


@pytest.mark.parametrize("token", ["", "two words", "\xe4", "a\n"])
def test_a_token_that_no_header_can_carry_is_refused(token: str) -> None:
    """At start, in one line, and not repeated."""
    with pytest.raises(UserError, match="printable ASCII") as caught:
        door("127.0.0.1", token)
    assert token == "" or repr(token) not in str(caught.value)


@pytest.mark.parametrize(
    ("host", "loopback"), [("127.8.8.8", True), ("::1", True), ("LOCALHOST", True), ("10.0.0.1", False)]
)
def test_what_is_loopback(host: str, loopback: bool) -> None:
    """Addresses that no other machine reaches."""
    assert is_loopback(host) is loopback


def test_a_door_does_not_show_its_token() -> None:
    """Not even in a log of it."""
    assert TOKEN not in repr(Door(frozenset(), False, TOKEN))


def test_what_is_too_long_or_of_another_kind_is_refused(tmp_path: Path) -> None:
    """413 for a long body, 400 for a form that another site could send, for half a JSON, and for keys nobody named."""

    async def ask() -> list[int]:
        async with serving(tmp_path) as (_, client):
            path, found = "/api/v1/jobs", []
            plain = {"Content-Type": "text/plain"}
            json_type = {"Content-Type": "application/json"}
            for data, headers in (
                (b" " * (MAX_BODY_BYTES + 1), json_type),
                (b'{"kind": "sweep"}', plain),
                (b'{"kind": "sweep"', json_type),
                (b"[" * 5000, json_type),
                (b"\xff", json_type),
                (b'{"kind": "sweep", "sim": "x", "more": 1}', json_type),
                (b'{"kind": "rm", "sim": "x"}', json_type),
            ):
                found.append((await call(client, "POST", path, data=data, headers=headers))[0])
            return found

    assert asyncio.run(ask()) == [413, 400, 400, 400, 400, 400, 400]


def test_pages_may_load_nothing_from_elsewhere(tmp_path: Path) -> None:
    """The page and its files come with a policy, and a name that is no file of it is not there."""

    async def ask() -> dict[str, tuple[int, str | None, str | None]]:
        found = {}
        async with serving(tmp_path) as (_, client):
            for path in ("/", "/static/index.html", "/static/..%2fapp.py", "/static/.hidden", "/nothing", "/login"):
                async with client.get(path) as response:
                    policy = response.headers.get("Content-Security-Policy")
                    found[path] = (response.status, policy, response.headers.get("X-Content-Type-Options"))
        return found

    found = asyncio.run(ask())
    assert (PAGE / "index.html").is_file()
    assert found["/"] == found["/static/index.html"] == (200, PAGE_POLICY, "nosniff")
    assert "script-src 'nonce-" in str(found["/login"][1])
    assert {found[path][0] for path in ("/static/..%2fapp.py", "/static/.hidden", "/nothing")} == {404}


def test_a_method_that_is_not_there_says_which_are(tmp_path: Path) -> None:
    """405 in JSON, with Allow."""

    async def ask() -> tuple[int, str, object]:
        async with serving(tmp_path) as (_, client), client.delete("/api/v1/runs") as response:
            return response.status, response.headers["Allow"], await response.json()

    assert asyncio.run(ask()) == (405, "GET", {"error": "Method Not Allowed"})
