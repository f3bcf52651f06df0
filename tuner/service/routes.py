"""What a route is, and how a request becomes a handler's arguments. The table itself is in api.py.

The table says everything that openapi.json says, so the two cannot part.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from aiohttp import web

from tuner.service.asked import Nothing
from tuner.service.refusal import Refusal
from tuner.service.service import Service

MAX_BODY_BYTES = 64 * 1024
BODY_S = 10.0
JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Query:
    """A parameter after the question mark."""

    name: str
    schema: dict[str, Any]
    required: bool = False


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path.

    Attributes:
        handler: gets the service, the request, and the body where there is one.
        answer: the type of a success, or the schema of one that is no JSON.
        status: of a success.
        refusals: what it may answer otherwise, beyond what every route may.
        body: the type of what is sent; several where one of them is to be sent.
        media: of a success.
    """

    method: Literal["GET", "POST", "DELETE"]
    path: str
    handler: Callable[..., Awaitable[Any]]
    summary: str
    answer: Any
    status: int = 200
    refusals: tuple[int, ...] = ()
    body: tuple[Any, ...] = ()
    query: tuple[Query, ...] = ()
    media: str = JSON


async def answered(service: Service, route: Route, request: web.Request) -> web.StreamResponse:
    """What the route's handler says to a request, as a response.

    Raises:
        Refusal: the body is none that the route takes, or the handler says no.
    """
    arguments = [await body_of(route, request)] if route.body else []
    found = await route.handler(service, request, *arguments)
    if isinstance(found, web.StreamResponse):
        return found
    content = found if isinstance(found, bytes) else msgspec.json.encode(found)
    return web.Response(body=content, status=route.status, content_type=JSON)


async def body_of(route: Route, request: web.Request) -> Any:
    """The request's body as one of the route's types.

    Raises:
        Refusal: it is not JSON, says so not, has another form, or does not come in time.
    """
    if request.content_type != JSON:  # a plain form of another site cannot send this type
        raise Refusal(400, f"send Content-Type: {JSON}")
    try:
        async with asyncio.timeout(BODY_S):
            content = await request.read()
    except TimeoutError:
        raise Refusal(400, f"the body did not arrive within {BODY_S:.0f} s") from None
    if not content and route.body == (Nothing,):
        return Nothing()
    try:
        document = msgspec.json.decode(content)
        return msgspec.convert(document, _type_for(document, route.body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal(400, f"the body cannot be used: {error}") from error


def _type_for(document: Any, types: tuple[Any, ...]) -> Any:
    """The type whose required keys are there; the last one where none fits, for its message."""
    for kind in types[:-1]:
        needed = {field.encode_name for field in msgspec.structs.fields(kind) if field.required}
        if isinstance(document, dict) and needed <= document.keys():
            return kind
    return types[-1]


def number(request: web.Request, name: str, default: int, low: int, high: int) -> int:
    """A whole number after the question mark.

    Raises:
        Refusal: it is none, or out of bounds.
    """
    text = request.query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 10 and low <= int(text) <= high):
        raise Refusal(400, f"{name}: give a whole number from {low} to {high}")
    return int(text)


def word(request: web.Request, name: str, allowed: tuple[str, ...], default: str) -> str:
    """One of some words after the question mark.

    Raises:
        Refusal: another one.
    """
    text = request.query.get(name, default)
    if text not in allowed:
        raise Refusal(400, f"{name}: give one of {', '.join(allowed)}")
    return text
