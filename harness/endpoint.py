"""The control plane of one server: what it is, whether it is idle, and its speculation policy.

Everything here is called between measurements, never inside a window, so plain blocking HTTP is enough. A server that
has no JSON at an endpoint is lacking it (another engine, or a proxy): the answer is None, and the caller says what is
then not verified.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from harness.errors import UserError
from patched_worker.policy import NEVER_DISABLE, Policy

MAX_BODY_BYTES = 32 * 2**20
CONTROL_TIMEOUT_S = 20.0
POLICY_KEYS = {
    "threshold": "speculative_disable_batch_threshold",
    "resume_at": "speculative_resume_batch_threshold",
    "min_dwell": "speculative_min_dwell_steps",
}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server's address and how to be let in.

    Args:
        url: base URL; a path prefix is kept.
        api_key: bearer token of ordinary requests.
        admin_api_key: bearer token of /set_internal_state and /flush_cache, where the server has one.
    """

    url: str
    api_key: str | None = field(default=None, repr=False)
    admin_api_key: str | None = field(default=None, repr=False)

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
                    samples[sample.name] = samples.get(sample.name, 0.0) + sample.value
        except (OSError, ValueError):
            return None
        return samples or None

    def flush_cache(self) -> bool:
        """Empty the radix cache; False where the server lacks it or refused because it was busy."""
        try:
            self._request("/flush_cache", method="POST", admin=True)
        except (OSError, ValueError):
            return False
        return True

    def freeze_gc(self) -> bool:
        """Let SGLang's processes stop collecting what is there by now; False where the server lacks it."""
        try:
            self._request("/freeze_gc", method="POST", admin=True)
        except (OSError, ValueError):
            return False
        return True

    def set_policy(self, policy: Policy) -> dict[str, Any]:
        """Set the switching policy of a patched server and read it back.

        Returns:
            The `specpivot` block of the first internal state, after the change.

        Raises:
            UserError: the server is not patched, refused the values, or does not report them.
        """
        threshold = NEVER_DISABLE if policy.threshold is None else policy.threshold
        values: dict[str, int] = {POLICY_KEYS["threshold"]: threshold, POLICY_KEYS["min_dwell"]: policy.min_dwell}
        if policy.threshold and policy.resume_at:
            values[POLICY_KEYS["resume_at"]] = policy.resume_at
        body = json.dumps({"server_args": values}).encode()
        try:
            self._request("/set_internal_state", method="POST", body=body, admin=True)
        except (OSError, ValueError) as error:
            raise UserError(f"{self.public_url} did not take the threshold: {_reason(error)}") from error
        block = specpivot_block(self.server_info())
        if block is None:
            raise UserError(f"{self.public_url} is no patched server; start it with `python -m patched_worker`")
        if block.get("threshold") != threshold:
            reason = block.get("last_error") or f"it still reports threshold {block.get('threshold')}"
            raise UserError(f"{self.public_url} refused threshold {threshold}: {reason}")
        return block

    def wait_idle(self, timeout_s: float) -> bool | None:
        """Wait until nothing runs and nothing queues.

        Returns:
            True when idle, False when still busy at the end, None when the server does not say.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            samples = self.metrics()
            if samples is None or "sglang:num_running_reqs" not in samples:
                return None
            if not samples["sglang:num_running_reqs"] and not samples.get("sglang:num_queue_reqs"):
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)

    def _json(self, path: str) -> dict[str, Any] | None:
        try:
            document = json.loads(self._request(path))
        except (OSError, ValueError, RecursionError):
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
        key = (self.admin_api_key or self.api_key) if admin else self.api_key
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        address = self.url.rstrip("/") + path
        request = urllib.request.Request(address, data=body, method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=timeout_s) as response:
            content: bytes = response.read(MAX_BODY_BYTES + 1)
        if len(content) > MAX_BODY_BYTES:
            raise ValueError(f"{path} answered more than {MAX_BODY_BYTES} bytes")
        return content


def check_url(url: str) -> str:
    """The URL, when it is one that can be measured.

    Raises:
        UserError: not an http(s) URL with a host.
    """
    try:
        parts = urllib.parse.urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable:
        raise UserError(f"{url!r} is no server URL; give one such as http://127.0.0.1:30000")
    return url


def internal_states(info: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The per-scheduler states in a /server_info document."""
    states = (info or {}).get("internal_states")
    return [state for state in states if isinstance(state, dict)] if isinstance(states, list) else []


def specpivot_block(info: dict[str, Any] | None) -> dict[str, Any] | None:
    """The patched worker's own report in a /server_info document; None where the server is not patched."""
    for state in internal_states(info):
        block = state.get("specpivot")
        if isinstance(block, dict):
            return block
    return None


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code}; is --admin-api-key right?" if error.code in (401, 403) else f"HTTP {error.code}"
    if isinstance(error, urllib.error.URLError):
        return str(error.reason)
    return str(error)
