"""The seam between what is measured and how bytes travel.

A transport carries one request at a time per connection, stamps bytes as they arrive and hands the finished exchange
to a callback. It never looks into the body: events are parsed later, off the hot path.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Mapping
from typing import Literal, Protocol
from urllib.parse import urlsplit, urlunsplit
from urllib.request import getproxies, proxy_bypass

from harness.api import PlannedRequest
from harness.errors import UserError

monotonic = time.monotonic  # one clock for all processes of a host, unmoved by time servers

TransportName = Literal["raw", "aiohttp", "auto"]
READ_OVERHEAD_BYTES = 120  # what Python keeps beside the bytes of a stored read


class Backlog:
    """Counts what arrived, over all exchanges of a process: all reads, and the bytes that are not parsed yet."""

    __slots__ = ("reads", "unparsed_bytes")

    def __init__(self) -> None:
        self.reads = 0
        self.unparsed_bytes = 0


class Exchange:
    """One request and everything that came back, stamped on the monotonic clock.

    Attributes:
        due_s: when it was to be sent.
        sent_s: when its last byte was handed to the socket; None until then.
        end_s: when the response, or the failure, was complete.
        reads: (time, body bytes) not yet parsed.
        error, detail: class and words of a failure below the API's level.
    """

    __slots__ = (
        "backlog",
        "connected_s",
        "content_type",
        "detail",
        "due_s",
        "end_s",
        "error",
        "planned",
        "reads",
        "sent_s",
        "status",
    )

    def __init__(self, planned: PlannedRequest, due_s: float, backlog: Backlog) -> None:
        self.planned = planned
        self.due_s = due_s
        self.backlog = backlog
        self.connected_s: float | None = None
        self.sent_s: float | None = None
        self.end_s = 0.0
        self.reads: list[tuple[float, bytes]] = []
        self.status = 0
        self.content_type = b""
        self.error: str | None = None
        self.detail: str | None = None

    def add(self, now: float, body: bytes) -> None:
        self.reads.append((now, body))
        backlog = self.backlog
        backlog.reads += 1
        backlog.unparsed_bytes += len(body) + READ_OVERHEAD_BYTES

    def take(self, count: int) -> list[tuple[float, bytes]]:
        """The first `count` unparsed reads, which are the caller's from now on."""
        taken, self.reads = self.reads[:count], self.reads[count:]
        self.backlog.unparsed_bytes -= sum([len(body) for _, body in taken]) + len(taken) * READ_OVERHEAD_BYTES
        return taken


Done = Callable[[Exchange], None]


class Transport(Protocol):
    """Carries exchanges. All methods are called on the event loop's thread."""

    async def open(self, connections: int) -> None:
        """Open connections ahead of time, so that no measured request waits for one.

        Raises:
            OSError: the server cannot be reached.
        """

    def submit(self, exchange: Exchange, done: Done) -> None:
        """Send now; `done` is called once, when the exchange is complete or has failed."""

    def fail(self, exchange: Exchange, error: str, detail: str) -> None:
        """Give an exchange up: its connection is closed, and its `done` called."""

    async def close(self) -> None:
        """Close everything; exchanges still open are not called back."""


def request_url(base: str, path: str) -> str:
    """Join an API's path to a base URL, keeping the base's own path prefix.

    Raises:
        UserError: the base is no http or https URL.
    """
    parts = urlsplit(base)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UserError(f"{base!r} is no http:// or https:// URL; write it like http://HOST:PORT")
    return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/") + path, "", ""))


def untrusted(server: str, error: ssl.SSLCertVerificationError) -> str:
    """What to tell a person about a certificate."""
    return f"the certificate of {server} is not trusted: {error.verify_message}; name its CA's file in SSL_CERT_FILE"


def needs_aiohttp(url: str) -> bool:
    """Whether only the aiohttp transport can reach a URL: TLS, or a proxy set in the environment."""
    parts = urlsplit(url)
    if parts.scheme == "https":
        return True
    return "http" in getproxies() and not proxy_bypass(parts.hostname or "")


def make_transport(name: TransportName, url: str, headers: Mapping[str, str]) -> Transport:
    """The transport for a URL; "auto" is the raw one where it can reach the URL."""
    if name == "aiohttp" or (name == "auto" and needs_aiohttp(url)):
        from harness.transport_aiohttp import AiohttpTransport  # its import costs a third of a second

        return AiohttpTransport(url, headers)
    from harness.transport_raw import RawTransport

    return RawTransport(url, headers)
