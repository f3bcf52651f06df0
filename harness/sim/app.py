"""SGLang's HTTP API over a simulated server, as a client of the real one sees it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import msgspec
from aiohttp import web

from harness.errors import UserError
from harness.sim import wire
from harness.sim.progress import Request
from harness.sim.requests import Body, ChatBody, CompletionBody, GenerateBody, requests_of
from harness.sim.service import Open, ServerSettings, Service

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_RENDERERS = {GenerateBody: wire.generate_chunk, CompletionBody: wire.completion_chunk, ChatBody: wire.chat_chunk}
_MAX_BODY_BYTES = 1 << 26
_EVENTS = "text/event-stream"


def make_app(service: Service) -> web.Application:
    """The application that serves `service`; its engine runs while the application does."""
    app = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=[_keys(service.settings)])
    app.cleanup_ctx.append(lambda _: _engine_running(service))
    app.on_shutdown.append(partial(_end_streams, service))
    routes: list[tuple[str, str, Handler]] = [
        ("*", "/generate", partial(_answer, service, GenerateBody)),
        ("POST", "/v1/completions", partial(_answer, service, CompletionBody)),
        ("POST", "/v1/chat/completions", partial(_answer, service, ChatBody)),
        ("GET", "/v1/models", partial(_models, service)),
        ("GET", "/health", _ok),
        ("GET", "/health_generate", _ok),
        ("GET", "/model_info", partial(_model_info, service)),
        ("GET", "/get_model_info", partial(_model_info, service)),
        ("GET", "/server_info", partial(_server_info, service)),
        ("GET", "/get_server_info", partial(_server_info, service)),
        ("GET", "/metrics", partial(_metrics, service)),
        ("*", "/flush_cache", partial(_flush_cache, service)),
        ("*", "/set_internal_state", partial(_set_internal_state, service)),
        ("POST", "/abort_request", partial(_abort_request, service)),
    ]
    for method, path, handler in routes:
        app.router.add_route(method, path, handler)
    return app


async def _engine_running(service: Service) -> AsyncIterator[None]:
    task = asyncio.create_task(service.pacer.run())
    yield
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def _end_streams(service: Service, app: web.Application) -> None:
    service.abort("")


def _keys(settings: ServerSettings) -> Any:
    """SGLang's bearer tokens: the admin key opens everything, the API key all but what changes the server."""
    admin_paths = {"/set_internal_state", "/flush_cache", "/abort_request"}

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        wanted = settings.api_key
        if request.path in admin_paths and settings.admin_api_key is not None:
            wanted = settings.admin_api_key
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        is_open = request.path in ("/health", "/health_generate", "/metrics") or request.path.startswith("/metrics")
        if wanted is None or is_open or given in {wanted, settings.admin_api_key}:
            return await handler(request)
        return web.json_response({"error": "Unauthorized"}, status=401)

    return check


# ---- answers


async def _answer(service: Service, dialect: type[Body], http: web.Request) -> web.StreamResponse:
    try:
        body = msgspec.json.decode(await http.read(), type=dialect)
    except msgspec.MsgspecError as error:
        return _error(str(error), dialect is not GenerateBody)
    try:
        requests, many = requests_of(body, service.clock.now_s())
        for request in requests:
            service.engine.check(request)
    except UserError as error:
        if dialect is GenerateBody and body.stream:
            return web.Response(body=wire.sse({"error": {"message": str(error)}}) + wire.DONE, content_type=_EVENTS)
        return _error(str(error), dialect is not GenerateBody)
    entries = [_open(service, body, request, index if many else None) for index, request in enumerate(requests)]
    try:
        if body.stream:
            return await _streamed(service, body, http, entries)
        return await _whole(service, body, entries, many)
    except (asyncio.CancelledError, ConnectionError) as gone:  # the client is
        for entry in entries:
            service.abort(entry.answer.request.rid, exactly=True)
        if isinstance(gone, ConnectionError):
            return web.Response()  # to nobody; an error would be logged as one of ours
        raise


def _open(service: Service, body: Body, request: Request, index: int | None) -> Open:
    told: dict[str, Any] = {"index": index}
    if not isinstance(body, GenerateBody):
        options = body.stream_options
        told |= {"model": body.model, "stream_usage": bool(options and options.continuous_usage_stats)}
    return Open(service.answer(request, **told), _RENDERERS[type(body)], asyncio.get_running_loop().create_future())


async def _streamed(service: Service, body: Body, http: web.Request, entries: list[Open]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": f"{_EVENTS}; charset=utf-8", "Cache-Control": "no-cache"})
    response.enable_chunked_encoding()
    await response.prepare(http)  # its headers are on the wire before the first chunk, which does not pass by it
    for entry in entries:
        entry.transport = http.transport
        service.submit(entry)
    await asyncio.gather(*(entry.done for entry in entries))
    last = b""
    if not isinstance(body, GenerateBody) and body.stream_options and body.stream_options.include_usage:
        kind = "text_completion" if isinstance(body, CompletionBody) else "chat.completion.chunk"
        last = wire.usage_chunk([entry.answer for entry in entries], kind, [entry.tokens for entry in entries])
    await response.write(last + wire.DONE)
    await response.write_eof()
    return response


async def _whole(service: Service, body: Body, entries: list[Open], many: bool) -> web.Response:
    for entry in entries:
        service.submit(entry)
    await asyncio.gather(*(entry.done for entry in entries))
    answers, tokens = [entry.answer for entry in entries], [entry.tokens for entry in entries]
    if isinstance(body, CompletionBody):
        return _json(wire.completion_whole(answers, tokens))
    if isinstance(body, ChatBody):
        return _json(wire.chat_whole(answers[0], tokens[0]))
    whole = [wire.generate_whole(answer, count) for answer, count in zip(answers, tokens, strict=True)]
    return _json(whole if many else whole[0])


# ---- everything else


async def _models(service: Service, http: web.Request) -> web.Response:
    preset = service.settings.preset
    card = {"id": preset.model, "object": "model", "created": int(service.started_at), "owned_by": "sglang"}
    card |= {"root": preset.model, "parent": None, "max_model_len": preset.limits.context_length}
    return _json({"object": "list", "data": [card]})


async def _ok(http: web.Request) -> web.Response:
    return web.Response()


async def _model_info(service: Service, http: web.Request) -> web.Response:
    model = service.settings.preset.model
    return _json({"model_path": model, "tokenizer_path": model, "is_generation": True, "weight_version": "default"})


async def _server_info(service: Service, http: web.Request) -> web.Response:
    return _json(service.info())


async def _metrics(service: Service, http: web.Request) -> web.Response:
    return web.Response(body=service.metrics.exposition(), headers={"Content-Type": "text/plain; version=0.0.4"})


async def _flush_cache(service: Service, http: web.Request) -> web.Response:
    if service.flush_cache():
        return web.Response(text="Cache flushed.\n")
    return web.Response(text="Flush cache failed: requests are running or waiting.\n", status=400)


class _InternalState(msgspec.Struct):
    server_args: dict[str, Any]


async def _set_internal_state(service: Service, http: web.Request) -> web.Response:
    try:
        update = msgspec.json.decode(await http.read(), type=_InternalState)
    except msgspec.MsgspecError as error:
        return _error(str(error), True)
    return _json([service.set_internal_state(update.server_args)])


class _Abort(msgspec.Struct):
    rid: str | None = None
    abort_all: bool = False


async def _abort_request(service: Service, http: web.Request) -> web.Response:
    try:
        order = msgspec.json.decode(await http.read(), type=_Abort)
    except msgspec.MsgspecError as error:
        return _error(str(error), True)
    if order.abort_all or order.rid:
        service.abort("" if order.abort_all else order.rid or "")
    return web.Response()


def _json(body: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), content_type="application/json")


def _error(message: str, openai: bool) -> web.Response:
    body: dict[str, Any] = {"error": {"message": message}}
    if openai:
        body = {"object": "error", "message": message, "type": "BadRequestError", "param": None, "code": 400}
    return web.Response(body=msgspec.json.encode(body), status=400, content_type="application/json")
