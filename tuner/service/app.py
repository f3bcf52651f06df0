"""The aiohttp application: every request passes the door, every answer is JSON but the page and the report."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from harness.errors import UserError
from tuner.service import answers, asked
from tuner.service.api import ROUTES, V1
from tuner.service.refusal import Refusal
from tuner.service.routes import MAX_BODY_BYTES, Route, answered, body_of
from tuner.service.safety import COOKIE, LOGIN, Handler, check, is_token
from tuner.service.service import Service

logger = logging.getLogger(__name__)

HERE = Path(__file__).parent
PAGE = HERE / "page"
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self';"
    " connect-src 'self'; frame-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'self';"
    " frame-ancestors 'none'"
)
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_SAFE = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
# Names the path and reads the body; the handler stands apart, because it alone runs before the door.
# The placeholder is of no handler's type, and is never called.
_LOGIN_ROUTE = Route("POST", LOGIN, lambda: None, "Log in", None, body=(asked.Login,))  # type: ignore[arg-type,return-value]


def make_app(service: Service, spoke: Callable[[web.BaseRequest], None] = lambda _: None) -> web.Application:
    """The application of a service.

    Args:
        service: what it serves.
        spoke: told of each request whose head arrived.
    """
    app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_guarded(service, spoke)])
    for route in ROUTES:
        app.router.add_route(route.method, route.path, partial(answered, service, route))
    app.router.add_get("/", _page)
    app.router.add_get("/static/{name}", _static)
    app.router.add_get("/metrics", partial(_metrics, service))
    app.router.add_get(LOGIN, _login_page)
    app.router.add_post(LOGIN, partial(_log_in, service))
    app.on_response_prepare.append(_add_headers)
    return app


def _guarded(service: Service, spoke: Callable[[web.BaseRequest], None]) -> Any:
    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        spoke(request)
        began_s = time.perf_counter()
        try:
            check(service.door, request)
            response = await handler(request)
        except Refusal as refusal:
            response = _refused(request, refusal)
        except UserError as error:  # a damaged file, say, is a conflict: the request itself was right
            response = _said(409, str(error))
        except web.HTTPRequestEntityTooLarge:
            response = _said(413, f"the body is too long; at most {MAX_BODY_BYTES} bytes")
        except web.HTTPException as error:
            response = _said(error.status, error.reason, error.headers.get("Allow"))
        except (ConnectionError, TimeoutError):
            raise
        except Exception:
            logger.exception("%s %s failed", request.method, _template(request))
            response = _said(500, "the service failed; its log says why")
        _count(service, request, response, time.perf_counter() - began_s)
        return response

    return guard


def _count(service: Service, request: web.Request, response: web.StreamResponse, seconds: float) -> None:
    template = _template(request)
    method = request.method if request.method in _METHODS else "other"  # whatever word somebody sends
    service.figures.requests.labels(method, template, response.status).inc()
    if template != f"{V1}/events":
        service.figures.request_s.observe(seconds)


def _template(request: web.Request) -> str:
    """The route's path: bounded in number, and without what somebody sent."""
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else "none"


def _refused(request: web.Request, refusal: Refusal) -> web.Response:
    wants_page = request.method == "GET" and "text/html" in request.headers.get("Accept", "")
    if refusal.status == 401 and wants_page:
        # Relative: a proxy may offer the service below a path. A page lies at its root, a report four levels below.
        up = "../" * (request.path.count("/") - 1)
        return web.Response(status=303, headers={"Location": f"{up}{LOGIN.removeprefix('/')}"})
    return _said(refusal.status, str(refusal))


def _said(status: int, text: str, allow: str | None = None) -> web.Response:
    response = web.Response(
        body=msgspec.json.encode(answers.Error(text)), status=status, content_type="application/json"
    )
    if status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    if allow is not None:
        response.headers["Allow"] = allow
    return response


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    for name, value in _SAFE.items():
        response.headers.setdefault(name, value)
    response.headers["Server"] = "SpecPivot"
    if response.content_type == "text/html":
        response.headers.setdefault("Content-Security-Policy", PAGE_POLICY)


async def _page(request: web.Request) -> web.StreamResponse:
    return web.FileResponse(PAGE / "index.html")


async def _static(request: web.Request) -> web.StreamResponse:
    """A file of the page, by its name alone: those that are there, and no others."""
    name = request.match_info["name"]
    files = {file.name: file for file in PAGE.iterdir() if file.is_file() and not file.name.startswith(".")}
    if name not in files:
        raise Refusal(404, "the page has no such file")
    return web.FileResponse(files[name], headers={"Cache-Control": "no-cache"})


async def _metrics(service: Service, request: web.Request) -> web.Response:
    return web.Response(body=service.figures.exposition(), headers={"Content-Type": "text/plain; version=0.0.4"})


async def _login_page(request: web.Request) -> web.Response:
    nonce = secrets.token_urlsafe(16)
    policy = (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'unsafe-inline'; connect-src 'self';"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    text = (HERE / "login.html").read_text().replace("NONCE", nonce)
    return web.Response(text=text, content_type="text/html", headers={"Content-Security-Policy": policy})


async def _log_in(service: Service, request: web.Request) -> web.Response:
    given: asked.Login = await body_of(_LOGIN_ROUTE, request)
    if service.door.token is None:
        raise Refusal(409, "this service asks for no token")
    if not is_token(service.door, given.token):
        raise Refusal(401, "that is not the token")
    response = web.json_response({})
    secure = request.secure or request.headers.get("X-Forwarded-Proto") == "https"
    response.set_cookie(COOKIE, service.door.cookie, httponly=True, samesite="Strict", path="/", secure=secure)
    return response
