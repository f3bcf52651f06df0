"""Requests by aiohttp: for TLS, and for the proxies that the environment names.

Slower than harness.transport_raw (docs/load-generator.md has the figures), so it is chosen only where that cannot
reach the server. Reads whole buffers, never lines: an event may be larger than any line limit.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping

import aiohttp

from harness.transport import Done, Exchange, monotonic, untrusted

_READ_BUFFER_BYTES = 1 << 20


class AiohttpTransport:
    """See harness.transport.Transport."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._url = url
        self._headers = {"Accept": "text/event-stream", "Content-Type": "application/json"} | dict(headers)
        self._session: aiohttp.ClientSession | None = None
        self._running: dict[Exchange, tuple[asyncio.Task[None], Done]] = {}

    async def open(self, connections: int) -> None:
        """Open the session; its connections are opened by the first requests, which belong to the warm-up."""
        timeout = aiohttp.ClientTimeout(total=None, connect=None, sock_read=None)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=timeout,
            trust_env=True,
            auto_decompress=False,
            read_bufsize=_READ_BUFFER_BYTES,
            trace_configs=[_stamps()],
        )

    def submit(self, exchange: Exchange, done: Done) -> None:
        task = asyncio.get_running_loop().create_task(self._run(exchange, done))
        self._running[exchange] = (task, done)

    def fail(self, exchange: Exchange, error: str, detail: str) -> None:
        if exchange not in self._running:
            return
        task, done = self._running.pop(exchange)
        exchange.error, exchange.detail, exchange.end_s = error, detail, monotonic()
        task.cancel()
        done(exchange)

    async def close(self) -> None:
        tasks = [task for task, _ in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    async def _run(self, exchange: Exchange, done: Done) -> None:
        try:
            await self._exchange(exchange)
        except aiohttp.ClientConnectorCertificateError as error:
            exchange.error, exchange.detail = "connect_failed", str(error)
            if isinstance(error.certificate_error, ssl.SSLCertVerificationError):
                exchange.detail = untrusted(f"{error.host}:{error.port}", error.certificate_error)
        except (aiohttp.ClientConnectorError, aiohttp.ClientHttpProxyError) as error:
            exchange.error, exchange.detail = "connect_failed", str(error)
        except aiohttp.ClientPayloadError as error:
            exchange.error, exchange.detail = "connection_lost", str(error)
        except (aiohttp.ClientConnectionError, OSError) as error:
            exchange.error, exchange.detail = "connection_lost", str(error) or type(error).__name__
        except aiohttp.ClientError as error:
            exchange.error, exchange.detail = "malformed", str(error)
        if self._running.pop(exchange, None) is not None:
            exchange.end_s = monotonic()
            done(exchange)

    async def _exchange(self, exchange: Exchange) -> None:
        assert self._session is not None
        body = exchange.planned.body
        async with self._session.post(
            self._url, data=body, headers=self._headers, trace_request_ctx=exchange, allow_redirects=False
        ) as response:
            exchange.status = response.status
            exchange.content_type = response.headers.get("Content-Type", "").encode()
            async for data in response.content.iter_any():
                exchange.add(monotonic(), data)


def _stamps() -> aiohttp.TraceConfig:
    """Stamps the moments inside aiohttp that a record needs."""

    async def connected(session: object, context: object, params: object) -> None:
        exchange = getattr(context, "trace_request_ctx", None)
        if isinstance(exchange, Exchange):
            exchange.connected_s = monotonic()

    async def sent(session: object, context: object, params: object) -> None:
        exchange = getattr(context, "trace_request_ctx", None)
        if isinstance(exchange, Exchange):
            exchange.sent_s = monotonic()

    trace = aiohttp.TraceConfig()
    trace.on_connection_create_end.append(connected)
    trace.on_connection_reuseconn.append(connected)
    trace.on_request_chunk_sent.append(sent)
    return trace
