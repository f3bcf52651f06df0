"""Who is let in: the address that was asked for, the site that a browser asks from, and the token.

A page of another site must not steer the service through its reader's browser. It may try by a plain request (the
Origin and Sec-Fetch-Site headers show it) or by a name of its own that suddenly resolves to this machine (the Host
header shows it). Programs that are no browsers send neither and are let in by the token alone.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from aiohttp import web

from harness.errors import UserError
from tuner.service.refusal import Refusal

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

COOKIE = "specpivot"
LOGIN = "/login"
_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class Door:
    """How the service is reached.

    Attributes:
        names: hosts that a request may be addressed to.
        any_address: whether it may be addressed to any IP address; a foreign name cannot pass for one.
        token: what must be shown; None asks for none.
        public_names: those of a proxy before it, under which its page may be open.
    """

    names: frozenset[str]
    any_address: bool
    token: str | None = field(repr=False)
    public_names: frozenset[str] = frozenset()

    @property
    def cookie(self) -> str:
        """What the cookie of someone who showed the token holds: not the token itself."""
        return hmac.new((self.token or "").encode(), b"specpivot session", hashlib.sha256).hexdigest()


def door(host: str, token: str | None, public_names: Sequence[str] = ()) -> Door:
    """How a service on `host` is reached.

    Args:
        host: the address it listens on.
        token: what must be shown.
        public_names: further names, of a proxy before it.

    Raises:
        UserError: others can reach that address, and there is no token.
    """
    if token is not None and not (token.isascii() and token.isprintable() and token and " " not in token):
        raise UserError("the token must be printable ASCII without spaces; `openssl rand -hex 32` makes one")
    public = frozenset(name.lower() for name in public_names)
    if is_loopback(host):
        return Door(_LOOPBACK_NAMES | public | {host.lower()}, False, token, public)
    if token is None:
        raise UserError(
            f"others can reach {host}: set SPECPIVOT_TOKEN (`openssl rand -hex 32` makes one), or leave --host"
        )
    names = _LOOPBACK_NAMES | public | {host.lower(), socket.gethostname().lower()}
    return Door(names, True, token, public)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches that address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def check(door: Door, request: web.Request) -> None:
    """Let a request in.

    Raises:
        Refusal: 403 from or to somewhere else, 401 without the token.
    """
    _check_host(door, request)
    _check_site(door, request)
    if door.token is not None and request.path != LOGIN and not _shows_token(door, request):
        raise Refusal(401, "the token is missing or wrong; send Authorization: Bearer TOKEN, or log in at /login")


def is_token(door: Door, token: str) -> bool:
    """Whether that is the token."""
    return door.token is not None and hmac.compare_digest(_sent(token), door.token.encode())


def _check_host(door: Door, request: web.Request) -> None:
    name = _host_name(request.headers.get("Host", ""))
    if name is None or not (name in door.names or (door.any_address and _is_address(name))):
        raise Refusal(403, "the request is addressed to another host; a proxy's name must be given with --public-name")


def _check_site(door: Door, request: web.Request) -> None:
    site = request.headers.get("Sec-Fetch-Site", "none")
    reads = request.method in ("GET", "HEAD")
    follows_link = reads and request.headers.get("Sec-Fetch-Mode") == "navigate"
    if site not in ("same-origin", "none") and not follows_link:
        raise Refusal(403, "the request comes from another site")
    origin = request.headers.get("Origin")
    if origin is not None and not _same_origin(door, request, origin):
        raise Refusal(403, "the request comes from another site")


def _same_origin(door: Door, request: web.Request, origin: str) -> bool:
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    if parts.scheme not in ("http", "https"):  # "null", or a browser's extension
        return False
    # Behind a proxy the Host header may be the proxy's choice; the page's own address then is a name we were given.
    return parts.hostname in door.public_names or parts.netloc.lower() == request.headers.get("Host", "").lower()


def _shows_token(door: Door, request: web.Request) -> bool:
    kind, _, given = request.headers.get("Authorization", "").partition(" ")
    if kind.lower() == "bearer" and is_token(door, given.strip()):
        return True
    return hmac.compare_digest(_sent(request.cookies.get(COOKIE, "")), door.cookie.encode())


def _sent(text: str) -> bytes:
    """The bytes of a header as they came: those that are no UTF-8 are surrogates in its text."""
    return text.encode(errors="surrogateescape")


def _host_name(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname if host and "@" not in host and "/" not in host else None
    except ValueError:
        return None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
