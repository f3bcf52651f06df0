"""What may stand between the client and a server: a TLS terminator with a path prefix, and an HTTP proxy."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

TLS = Path(__file__).parent / "tls"  # a CA, and a server's certificate and key, of the tests' own, valid until 2120
CA = TLS / "ca.pem"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextmanager
def tls_terminator(upstream: str, prefix: str = "") -> Iterator[str]:
    """https in front of a server that speaks http; paths must begin with `prefix`, which the server does not see."""
    address = urlsplit(upstream)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection(address.hostname, address.port)
        async with _answers(there, writer):
            while True:
                (method, path, version), rest = await _request(reader)
                if not path.startswith(prefix.encode() + b"/"):
                    writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
                    return
                there[1].write(b" ".join((method, path[len(prefix) :], version)) + rest)

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "server.pem")
    with _serving(serve, context) as port:
        yield f"https://127.0.0.1:{port}{prefix}"


@contextmanager
def http_proxy(asked: list[str], refuses: bool = False) -> Iterator[str]:
    """A forward proxy for http URLs and, by CONNECT, for https ones; `asked` gets "METHOD target" of each request."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        (method, target, version), rest = await _request(reader)
        asked.append(f"{method.decode()} {target.decode()}")
        if refuses:
            writer.write(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n")
            return
        url = urlsplit(target.decode() if method != b"CONNECT" else f"//{target.decode()}")
        there = await asyncio.open_connection(url.hostname, url.port)
        async with _answers(there, writer):
            if method == b"CONNECT":
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                await _pump(reader, there[1])
            while True:
                there[1].write(b" ".join((method, urlsplit(target).path, version)) + rest)
                (method, target, version), rest = await _request(reader)
                asked.append(f"{method.decode()} {target.decode()}")

    with _serving(serve) as port:
        yield f"http://127.0.0.1:{port}"


@asynccontextmanager
async def _answers(there: Streams, back: asyncio.StreamWriter) -> AsyncIterator[None]:
    """Passes on what a server answers, until the block ends."""
    task = asyncio.create_task(_pump(there[0], back))
    try:
        yield
    finally:
        there[1].close()
        task.cancel()


async def _pump(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(1 << 16):
            to.write(data)
            await to.drain()
    to.close()


async def _request(reader: asyncio.StreamReader) -> tuple[list[bytes], bytes]:
    """The three words of a request line, and everything after them."""
    head = await reader.readuntil(b"\r\n\r\n")
    line, _, fields = head.partition(b"\r\n")
    lengths = [field[15:] for field in fields.lower().split(b"\r\n") if field.startswith(b"content-length:")]
    body = await reader.readexactly(int(lengths[0])) if lengths else b""
    return line.split(b" "), b"\r\n" + fields + body


@contextmanager
def _serving(serve: Serve, context: ssl.SSLContext | None = None) -> Iterator[int]:
    """Serve on a free port of 127.0.0.1, from an event loop in a thread of its own; yields the port."""
    loop = asyncio.new_event_loop()
    writers: set[asyncio.StreamWriter] = set()

    async def quietly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.add(writer)
        with suppress(OSError, asyncio.IncompleteReadError):
            await serve(reader, writer)
        writer.close()

    async def end() -> None:
        server.close()
        await asyncio.sleep(0)  # whoever was let in has begun
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in writers:  # of those that were cancelled, too
            writer.transport.abort()
        await asyncio.sleep(0.01)  # some turns of the loop, in which they are closed

    server = loop.run_until_complete(asyncio.start_server(quietly, "127.0.0.1", 0, ssl=context))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        asyncio.run_coroutine_threadsafe(end(), loop).result(200)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
