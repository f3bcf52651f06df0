"""A greedy check of a server that runs on modified source, before it serves.

The same prompts are answered with speculation on, off, and switched while they run. A wrong position, slot or stale KV
shows within a few tokens; rounding may part two kernels later, so only the first tokens must agree. Runs as SGLang's
warm-up, in the thread that waits for the server; a failed check ends the server.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import urllib.request
from typing import Any

from patched_worker.autopilot import MODE_KEY, Order
from patched_worker.policy import DWELL_KEY, NEVER_DISABLE, RESUME_KEY, THRESHOLD_KEY, Policy

logger = logging.getLogger(__name__)

PROMPTS = ([11, 12, 13, 14, 15, 16, 17], [40, 30, 20, 10], [9] * 24)  # token ids: no tokenizer needed
OUTPUT_TOKENS = 48
MUST_AGREE = 8
SWITCHES = 40


class Server:
    """The HTTP calls that the check needs.

    Args:
        url: the server's own.
        api_key: sent as bearer; the admin key where there is one.
    """

    def __init__(self, url: str, api_key: str | None) -> None:
        self._url = url
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"

    def post(self, path: str, body: object) -> Any:
        """The JSON answer."""
        request = urllib.request.Request(self._url + path, json.dumps(body).encode(), self._headers)
        with urllib.request.urlopen(request, timeout=300) as response:
            return json.loads(response.read())

    def answers(self) -> list[list[int]]:
        """The output tokens of every prompt, greedy."""
        sampling = {"temperature": 0, "max_new_tokens": OUTPUT_TOKENS, "ignore_eos": True}
        outputs = self.post("/generate", {"input_ids": list(PROMPTS), "sampling_params": sampling})
        return [output["output_ids"] for output in outputs]

    def set_policy(self, threshold: int, resume_at: int = NEVER_DISABLE, dwell: int = 0) -> None:
        """Set the live policy, in the wire's numbers."""
        body = {THRESHOLD_KEY: threshold, RESUME_KEY: resume_at, DWELL_KEY: dwell}
        self.post("/set_internal_state", {"server_args": body})


def disagreement(server: Server) -> str | None:
    """Where on, off and switching part too early; None where they agree.

    Args:
        server: idle, patched.
    """
    server.set_policy(NEVER_DISABLE)
    reference = server.answers()
    server.set_policy(0)
    found = {"off": server.answers()}
    switching = threading.Thread(target=_switch, args=(server,))
    switching.start()
    found["switching"] = server.answers()
    switching.join()
    for state, answers in found.items():
        for index, (want, got) in enumerate(zip(reference, answers, strict=True)):
            if want[:MUST_AGREE] != got[:MUST_AGREE]:
                return f"prompt {index}, {state}: {got[:MUST_AGREE]} instead of {want[:MUST_AGREE]}"
    return None


def _switch(server: Server) -> None:
    for index in range(SWITCHES):
        server.set_policy(0 if index % 2 else NEVER_DISABLE)


def warmup(server_args: Any, policy: Policy, order: Order | None = None) -> bool:
    """SGLang's warm-up, followed by the check; whether the server may serve.

    Args:
        server_args: SGLang's ServerArgs.
        policy: the one that is live afterwards.
        order: the autopilot's, which setting policies has switched off.
    """
    from sglang.srt.entrypoints import http_server

    if not http_server._execute_server_warmup(server_args):
        return False
    manager, status = http_server._global_state.tokenizer_manager, http_server.ServerStatus
    manager.server_status = status.Starting
    server = Server(server_args.url(), getattr(server_args, "admin_api_key", None) or server_args.api_key)
    fault = disagreement(server)
    if fault is not None:
        logger.error("specpivot: self-check failed on modified source, %s; the server ends", fault)
        http_server.kill_process_tree(os.getpid())
        return False
    threshold = NEVER_DISABLE if policy.threshold is None else policy.threshold
    server.set_policy(threshold, policy.resume_at or NEVER_DISABLE, policy.min_dwell)
    if order is not None:
        server.post("/set_internal_state", {"server_args": {MODE_KEY: int(order.mode)}})
    manager.server_status = status.Up
    logger.warning("specpivot: self-check passed on modified source; this build was not validated")
    return True
