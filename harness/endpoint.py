"""The control plane of one server: what it is, whether it is idle, and its speculation policy.

Everything here is called between measurements, never inside a window, so plain blocking HTTP is enough. A server that
has no JSON at an endpoint is lacking it (another engine, or a proxy): the answer is None, and the caller says what is
then not verified.
"""

from __future__ import annotations

import json
import math
import ssl
import time
import urllib.parse
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from harness.errors import UserError
from harness.exchange import HttpStatus, exchange
from harness.secrets import HIDDEN, MIN_CHARS
from harness.transport import untrusted
from patched_worker.policy import DWELL_KEY, NEVER_DISABLE, RESUME_KEY, RUNGS_KEY, THRESHOLD_KEY, Policy, to_wire

MAX_BODY_BYTES = 32 * 2**20
CONTROL_TIMEOUT_S = 20.0
UNAVAILABLE_S = 0.2  # between two questions to a server that is not ready
BUSY_S = 0.05  # between two questions to one that is not idle
CONNECTIONS_PER_PROCESS, MOST_CONNECTIONS = 8, 256
POLICY_KEYS = {"threshold": THRESHOLD_KEY, "resume_at": RESUME_KEY, "min_dwell": DWELL_KEY}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server's address and how to be let in.

    Args:
        url: base URL; a path prefix is kept.
        api_key: bearer token of ordinary requests.
        admin_api_key: bearer token of /set_internal_state and /flush_cache, where the server has one.
        patience_s: the longest that any one answer may take, where that is less than usual.
        max_body_bytes: the longest answer that is read.
    """

    url: str
    api_key: str | None = field(default=None, repr=False)
    admin_api_key: str | None = field(default=None, repr=False)
    patience_s: float = math.inf
    max_body_bytes: int = MAX_BODY_BYTES

    def __post_init__(self) -> None:
        for key in (self.api_key, self.admin_api_key):
            if key is not None and not (key.isascii() and key.isprintable() and " " not in key):
                raise UserError("an API key holds a space, a line's end or what no header can carry; give it without")

    @property
    def public_url(self) -> str:
        """The URL without user, password and query, fit for logs and manifests."""
        parts = urllib.parse.urlsplit(self.url)
        host = parts.netloc.rpartition("@")[2]
        return urllib.parse.urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    def healthy(self, timeout_s: float = 5.0) -> bool:
        """Whether /health answers 200 in time."""
        try:
            self._request("/health", timeout_s=timeout_s)
        except (OSError, ValueError):
            return False
        return True

    def becomes_healthy(self, timeout_s: float = CONTROL_TIMEOUT_S) -> bool:
        """Whether /health answers 200 in time; one that says 503 is asked again, a refused connection decides at once.

        SGLang's HTTP processes (`--tokenizer-worker-num`) say 503 until each has warmed up, and which one answers is
        chance.
        """
        give_up_s = time.monotonic() + timeout_s
        while (left_s := give_up_s - time.monotonic()) > 0:
            try:
                self._request("/health", timeout_s=left_s)
                return True
            except HttpStatus as answer:
                if answer.code != HTTPStatus.SERVICE_UNAVAILABLE:
                    return False
                time.sleep(UNAVAILABLE_S)
            except (OSError, ValueError):
                return False
        return False

    def all_healthy(self, timeout_s: float) -> bool:
        """Whether /health answers 200 from each of the server's HTTP processes."""
        return self.healthy(timeout_s) and self._each(lambda: self.healthy(timeout_s))

    def http_processes(self) -> int:
        """How many processes answer at this address, as the server's arguments have it (`--tokenizer-worker-num`)."""
        number = (self.server_info() or {}).get("tokenizer_worker_num")
        return number if isinstance(number, int) and number > 1 else 1

    def _each(self, ask: Callable[[], bool]) -> bool:
        """Whether each of the HTTP processes that listen says yes.

        They share a port; so many connections at once reach all of them, but for bad luck.
        """
        processes = self.http_processes()
        asked = 1 if processes == 1 else min(CONNECTIONS_PER_PROCESS * processes, MOST_CONNECTIONS)
        with ThreadPoolExecutor(asked) as pool:
            return all(pool.map(lambda _: ask(), range(asked)))

    def require_healthy(self, flag: str, timeout_s: float = 5.0) -> None:
        """Make sure that the server answers.

        Args:
            flag: where its URL came from.
            timeout_s: how long it may take.

        Raises:
            UserError: it does not, or its certificate is not trusted.
        """
        try:
            self._request("/health", timeout_s=timeout_s)
        except ssl.SSLCertVerificationError as error:
            raise UserError(untrusted(self.public_url, error)) from None
        except (OSError, ValueError):
            where = f"{self.public_url}/health"
            raise UserError(f"no server answers at {where}; start it, or correct {flag}") from None

    def server_info(self) -> dict[str, Any] | None:
        """The JSON of /server_info (/get_server_info in older releases); None where the server lacks it."""
        for path in ("/server_info", "/get_server_info"):
            info = self._json(path)
            if info is not None:
                return info
        return None

    def metrics(self) -> dict[str, float] | None:
        """Each /metrics sample summed over its labels; None where the server lacks it."""
        try:
            text = self._request("/metrics").decode()
            samples: dict[str, float] = {}
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    if math.isfinite(sample.value):
                        samples[sample.name] = samples.get(sample.name, 0.0) + sample.value
        except (OSError, ValueError, LookupError):  # the parser raises all of them at what is not its format
            return None
        return samples or None

    def flush_when_idle(self, timeout_s: float) -> bool | None:
        """Empty the radix cache as soon as nothing runs and nothing queues.

        SGLang refuses it until then, and that is the truth: its gauges show a request that ended for up to 30 s longer,
        because a verify step sets them and an idle scheduler does not. They decide where there is no /flush_cache.

        Returns:
            True once it is idle, False when still busy or silent at the end, None when the server does not say.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                self._request("/flush_cache", method="POST", admin=True)
                return True
            except HttpStatus as answer:
                if answer.code != HTTPStatus.BAD_REQUEST:
                    return self._idle_by_gauges(deadline)
            except TimeoutError:
                pass  # a scheduler that captures a graph or compiles is busy
            except (OSError, ValueError):
                return self._idle_by_gauges(deadline)
            if time.monotonic() > deadline:
                return False
            time.sleep(BUSY_S)

    def freeze_gc(self) -> bool:
        """Let SGLang's processes stop collecting what is there by now; False where the server lacks it.

        An HTTP process that is asked hands it on to scheduler and detokenizer, not to the others of its kind.
        """
        return self._each(lambda: self._done("/freeze_gc"))

    def set_policy(self, policy: Policy) -> dict[str, Any]:
        """Set the switching policy of a patched server and read it back.

        Returns:
            The `specpivot` block of the first internal state, after the change.

        Raises:
            UserError: the server is not patched, refused the values, or does not report them.
        """
        try:
            values = to_wire(policy)
        except ValueError as error:
            raise UserError(f"this policy cannot be set live: {error}; start the server with it") from error
        expected: dict[str, Any] = {name: values[key] for name, key in POLICY_KEYS.items() if key in values}
        if RUNGS_KEY in values:
            expected["policy_id"] = policy.policy_id  # names every number of every rung
        elif expected["resume_at"] == NEVER_DISABLE:
            del expected["resume_at"]
        kind = "ladder" if RUNGS_KEY in values else "threshold"
        block = self.set_numbers(values, kind)
        must_show = {"threshold", "policy_id"} & expected.keys()
        if any(block.get(name, None if name in must_show else sent) != sent for name, sent in expected.items()):
            reason = block.get("last_error") or f"it reports { {name: block.get(name) for name in expected} }"
            raise UserError(f"{self.public_url} refused {kind} {expected.get(kind, policy.policy_id)}: {reason}")
        return block

    def set_numbers(self, values: Mapping[str, int], kind: str) -> dict[str, Any]:
        """Send numbers to a patched server, whatever it makes of them.

        Args:
            values: by their keys on the wire.
            kind: what they are, for the message.

        Returns:
            The `specpivot` block of the first internal state, afterwards.

        Raises:
            UserError: the server does not answer, or is not patched.
        """
        body = json.dumps({"server_args": dict(values)}).encode()
        try:
            self._request("/set_internal_state", method="POST", body=body, admin=True)
        except (OSError, ValueError) as error:
            raise UserError(f"{self.public_url} did not take the {kind}: {error}") from error
        block = specpivot_block(self.server_info())
        if block is None:
            raise UserError(f"{self.public_url} is no patched server; start it with `python -m patched_worker`")
        return block

    def _idle_by_gauges(self, deadline: float) -> bool | None:
        """As `flush_when_idle`, of a server without it."""
        while True:
            samples = self.metrics()
            if samples is None or "sglang:num_running_reqs" not in samples:
                return None
            if not samples["sglang:num_running_reqs"] and not samples.get("sglang:num_queue_reqs"):
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(BUSY_S)

    def _done(self, path: str) -> bool:
        try:
            self._request(path, method="POST", admin=True)
        except (OSError, ValueError):
            return False
        return True

    def _json(self, path: str) -> dict[str, Any] | None:
        try:
            document = msgspec.json.decode(self._request(path))
        except (OSError, ValueError, RecursionError, msgspec.DecodeError):
            return None
        return document if isinstance(document, dict) else None

    def _request(
        self,
        path: str,
        method: str = "GET",
        body: bytes | None = None,
        timeout_s: float = CONTROL_TIMEOUT_S,
        admin: bool = False,
    ) -> bytes:
        """The body of a success, without our keys; errors are those of `exchange`."""
        timeout_s = min(timeout_s, self.patience_s)
        key = (self.admin_api_key or self.api_key) if admin else self.api_key
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        content = exchange(self.url, path, method, body, headers, timeout_s, self.max_body_bytes)
        return self._without_keys(content)

    def _without_keys(self, content: bytes) -> bytes:
        """What a server says, without our keys: SGLang's /server_info repeats them among its arguments."""
        for key in (self.api_key, self.admin_api_key):
            if key is not None and len(key) >= MIN_CHARS:
                content = content.replace(key.encode(), HIDDEN.encode())
        return content


def check_url(url: str) -> str:
    """The URL, when it is one that can be measured.

    Raises:
        UserError: not an http(s) URL with a host, or one that carries a secret, which would be written down.
    """
    try:
        parts = urllib.parse.urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
        secret = "@" in parts.netloc or bool(parts.query or parts.fragment)
    except ValueError:
        usable = secret = False
    if secret:
        raise UserError("a server URL must not hold a password or a query; give keys by SPECPIVOT_API_KEY")
    if not usable or not url.isprintable() or " " in url:
        raise UserError(f"{url!r} is no server URL; give one such as http://127.0.0.1:30000")
    return url


def internal_states(info: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The per-scheduler states in a /server_info document."""
    states = (info or {}).get("internal_states")
    return [state for state in states if isinstance(state, dict)] if isinstance(states, list) else []


def specpivot_block(info: dict[str, Any] | None) -> dict[str, Any] | None:
    """The patched worker's own report in a /server_info document; None where the server is not patched.

    Its threshold is -1 where it never disables, as in a request: the worker itself says null then.
    """
    for state in internal_states(info):
        block = state.get("specpivot")
        if isinstance(block, dict):
            never = "threshold" in block and block["threshold"] is None
            return block | {"threshold": NEVER_DISABLE} if never else block
    return None
