"""The socket, and limits on who holds it: how many connections there may be, and how long one may stay silent.

aiohttp limits the lengths of a request's lines and waits for the next request of a connection only so long, but for
the first one without end. A connection that has not sent a whole request head in time is hung up on here.
"""

from __future__ import annotations

import asyncio
import socket

from aiohttp import web

from harness.errors import UserError

HEAD_S = 10.0
MAX_CONNECTIONS = 256


def bound(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        UserError: the address cannot be had.
    """
    if not 0 <= port <= 65535:  # getaddrinfo would take it modulo 65536
        raise UserError(f"--port {port}: give 0 (any that is free) to 65535")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, proto, _, address = found[0]
        listener = socket.socket(family, kind, proto)
    except OSError as error:
        raise _no_address(host, port, error) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise _no_address(host, port, error) from error
    return listener


def _no_address(host: str, port: int, error: OSError) -> UserError:
    return UserError(f"cannot listen on {host} port {port}: {error}; give another --host or --port")


class Doorkeeper:
    """Makes the protocol of each connection, and hangs up on those that stay silent.

    Args:
        server: aiohttp's, from a runner that was set up.
        head_s: how long a request's head may take.
        most: connections at a time.
    """

    def __init__(self, server: web.Server, head_s: float = HEAD_S, most: int = MAX_CONNECTIONS) -> None:
        self._server = server
        self._head_s = head_s
        self._most = most
        self._silent: dict[asyncio.BaseProtocol, asyncio.TimerHandle] = {}

    def __call__(self) -> asyncio.BaseProtocol:
        if len(self._server.connections) >= self._most:
            return _Refused()
        protocol = self._server()
        self._silent[protocol] = asyncio.get_running_loop().call_later(self._head_s, self._hang_up, protocol)
        return protocol

    def spoke(self, request: web.BaseRequest) -> None:
        """A whole head arrived on this request's connection."""
        timer = self._silent.pop(request.protocol, None)
        if timer is not None:
            timer.cancel()

    def _hang_up(self, protocol: web.RequestHandler) -> None:
        del self._silent[protocol]
        if protocol.transport is not None:
            protocol.transport.abort()


class _Refused(asyncio.Protocol):
    """One connection too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()
