"""The server process behind an address, where it is one of this machine: what the network does not say, /proc does."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from harness.endpoint import Endpoint


def listeners(port: int) -> list[int]:
    """The processes of this machine that listen on a port, as far as we may see them."""
    return [
        connection.pid
        for connection in psutil.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and connection.laddr[1:2] == (port,) and connection.pid is not None
    ]


def is_here(endpoint: Endpoint) -> bool:
    """Whether an address leads to this machine."""
    host = urlsplit(endpoint.url).hostname or ""
    ours = {address.address.partition("%")[0] for each in psutil.net_if_addrs().values() for address in each}
    with suppress(OSError, UnicodeError):
        return any(str(found[4][0]) in ours for found in socket.getaddrinfo(host, None))
    return False


def attached_to(endpoint: Endpoint) -> psutil.Process | None:
    """The SGLang of this machine that listens at an address; None where something else listens, or we may not look."""
    parts = urlsplit(endpoint.url)
    pids: list[int] = []
    with suppress(psutil.Error, OSError):
        if is_here(endpoint):
            pids = sorted(listeners(parts.port or (443 if parts.scheme == "https" else 80)))
    for pid in pids:  # the main process comes before those that it shares its socket with
        with suppress(psutil.Error, OSError):
            process = psutil.Process(pid)
            if any("sglang" in word or "patched_worker" in word for word in process.cmdline()):
                return process
    return None


def environment_of(process: psutil.Process | None) -> tuple[dict[str, str] | None, bool]:
    """A process's environment, None where we may not look, and whether it runs in a container that is not ours.

    A container has a file system of its own, which a service in a namespace of its own, as systemd makes, has not.
    """
    with suppress(psutil.Error, OSError):
        if process is not None:
            return process.environ(), not Path(f"/proc/{process.pid}/root").samefile("/")
    return None, False
