"""The servers that the service may talk to, in RESULTS/.service/servers.json: the only source of a URL."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from harness.endpoint import Endpoint, check_url
from harness.errors import UserError
from harness.records import Variant
from tuner.service.asked import NewServer
from tuner.service.names import STATE
from tuner.service.refusal import Refusal
from tuner.service.store import make_folder, write

MAX_SERVERS = 100
PATIENCE_S = 3.0
MAX_ANSWER_BYTES = 2 * 2**20  # of /server_info or /metrics; a large SGLang's are well below 1 MiB


class _File(msgspec.Struct):
    servers: list[NewServer]


class Registry:
    """Registered servers by name.

    Raises:
        UserError: servers.json is damaged.
    """

    def __init__(self, results: Path) -> None:
        self._file = make_folder(results / STATE) / "servers.json"
        self._servers = {server.name: server for server in _read(self._file)}

    def all(self) -> list[NewServer]:
        """Every server, by name."""
        return sorted(self._servers.values(), key=lambda server: server.name)

    def get(self, name: str) -> NewServer:
        """A server by its name.

        Raises:
            Refusal: there is none.
        """
        server = self._servers.get(name)
        if server is None:
            raise Refusal(404, f"there is no server {name[:100]}; register it with POST /api/v1/servers")
        return server

    def add(self, server: NewServer) -> None:
        """Register a server.

        Raises:
            Refusal: its name or URL is registered already, its URL is none, or a variable that it names is not set.
        """
        try:
            check_url(server.url)
        except UserError as error:
            raise Refusal(400, str(error)) from error
        if len(set(server.variants)) < len(server.variants):
            raise Refusal(400, "variants: one is given twice; name each one once")
        for variable in (server.api_key_env, server.admin_api_key_env):
            if variable is not None and not os.environ.get(variable):
                raise Refusal(400, f"the service has no variable {variable}; set it in its environment, then register")
        if server.name in self._servers:
            raise Refusal(409, f"a server {server.name} is registered already; give another name, or delete it first")
        address = endpoint(server).public_url
        same = next((other.name for other in self._servers.values() if endpoint(other).public_url == address), None)
        if same is not None:
            raise Refusal(409, f"{address} is registered already, as {same}; a server is measured under one name")
        if len(self._servers) >= MAX_SERVERS:
            raise Refusal(409, f"{MAX_SERVERS} servers are registered already; delete one first")
        self._save({**self._servers, server.name: server})

    def remove(self, name: str) -> None:
        """Forget a server; errors are those of `get`."""
        self.get(name)
        self._save({key: server for key, server in self._servers.items() if key != name})

    def _save(self, servers: dict[str, NewServer]) -> None:
        write(self._file, msgspec.json.format(msgspec.json.encode(_File(list(servers.values()))), indent=1) + b"\n")
        self._servers = servers


def endpoint(server: NewServer) -> Endpoint:
    """How to reach a server, with the keys of our own environment and little patience."""
    return Endpoint(
        server.url,
        _value(server.api_key_env),
        _value(server.admin_api_key_env),
        patience_s=PATIENCE_S,
        max_body_bytes=MAX_ANSWER_BYTES,
    )


def keys(server: NewServer) -> dict[str, str]:
    """The variables that give a job this server's keys."""
    found = {
        "SPECPIVOT_API_KEY": _value(server.api_key_env),
        "SPECPIVOT_ADMIN_API_KEY": _value(server.admin_api_key_env),
    }
    return {name: value for name, value in found.items() if value}


def attached(server: NewServer, variants: list[Variant]) -> dict[str, str]:
    """What a sweep attaches to, by variant.

    Raises:
        Refusal: a variant that this server does not play.
    """
    for variant in variants:
        if variant not in server.variants:
            raise Refusal(400, f"{server.name} does not play {variant}; it plays {', '.join(server.variants)}")
    return dict.fromkeys(variants, server.url)


def _value(variable: str | None) -> str | None:
    return os.environ.get(variable) if variable else None


def _read(file: Path) -> list[NewServer]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=_File).servers
    except FileNotFoundError:
        return []
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(
            f"{file} is damaged: {error}; mend it, or move it away and register the servers anew"
        ) from error
