"""One simulated server behind the HTTP layer: its engine, its open answers and what it reports of itself."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import scipy.interpolate  # noqa: F401  the first step needs it, and real time does not wait for an import

from harness.errors import UserError
from harness.records import Variant
from harness.sim.exposition import Metrics
from harness.sim.noise import NO_NOISE, Noise
from harness.sim.pacing import Clock, Pacer
from harness.sim.policy_wire import specpivot_block
from harness.sim.predict import make_engine
from harness.sim.preset import Preset
from harness.sim.progress import Request, Step
from harness.sim.wire import Answer, ChunkRenderer, Words
from patched_worker.autopilot import Order, ordered, without_order
from patched_worker.policy import Policy, updated
from patched_worker.steptrace import Trace

# A client that reads this slowly gets the tokens of several steps in one chunk, as from SGLang.
MAX_UNSENT_BYTES = 1 << 20


class ServerSettings(msgspec.Struct, frozen=True):
    """How one simulated server is run.

    Attributes:
        variant: what it plays; eagle3, dynamic and forced_off are one patched server with another initial policy.
        policy: the initial policy of a patched server; None is the variant's own.
        time_scale: simulated seconds per second of the wall clock.
        seed, noise, num_steps, order: see the engine.
        trace_file: where decode steps are recorded; None: nowhere.
    """

    preset: Preset
    variant: Variant
    policy: Policy | None = None
    time_scale: float = 1.0
    seed: int = 0
    noise: Noise = NO_NOISE
    num_steps: int | None = None
    host: str = "127.0.0.1"
    port: int = 0
    api_key: str | None = None
    admin_api_key: str | None = None
    order: Order | None = None
    trace_file: Path | None = None


@dataclass(slots=True, eq=False)
class Open:
    """A request in progress.

    Attributes:
        transport: where chunks go, None for an answer in one piece.
        tokens: how many it has by now, `sent` of them in chunks.
        done: set when the last token is there.
    """

    answer: Answer
    render: ChunkRenderer
    done: asyncio.Future[None]
    transport: asyncio.WriteTransport | None = None
    tokens: int = 0
    sent: int = 0

    def advance(self, tokens: int) -> None:
        """Take more tokens, and pass them on in one chunk (framed here: a coroutine for each costs too much)."""
        self.tokens += tokens
        transport, ended = self.transport, self.answer.finish_reason is not None
        if transport is None or transport.is_closing():
            return
        if transport.get_write_buffer_size() > MAX_UNSENT_BYTES and not ended:
            return
        chunk = self.render(self.answer, self.sent, self.tokens)
        self.sent = self.tokens
        transport.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))

    def end(self) -> None:
        if not self.done.done():
            self.done.set_result(None)


class Service:
    """See the module.

    Args:
        settings: how to run it.
    """

    def __init__(self, settings: ServerSettings) -> None:
        preset = settings.preset
        self.settings = settings
        steps = settings.num_steps or preset.acceptance.num_steps
        self._trace = Trace(settings.trace_file, {"num_steps": steps}) if settings.trace_file is not None else None
        self.engine = make_engine(
            preset,
            settings.variant,
            settings.policy,
            settings.seed,
            settings.noise,
            settings.num_steps,
            settings.order,
            self._trace,
        )
        self.clock = Clock(settings.time_scale)
        self.metrics = Metrics(self.engine, preset.model)
        self.pacer = Pacer(self.engine, self.clock, self._deliver)
        self.words = Words(preset.limits.context_length)
        self.last_error: str | None = None
        self.started_at = time.time()
        self._open: dict[Request, Open] = {}
        self._served = 0

    def close(self) -> None:
        """The server ends: the rest of its trace is written."""
        if self._trace is not None:
            self._trace.close()

    # ---- requests

    def answer(self, request: Request, **told: Any) -> Answer:
        """An empty answer to `request`; `told` are further fields of Answer."""
        drafts = self.engine.num_steps if self.engine.gate is not None else 0
        self._served += 1
        return Answer(request, self.words, self.words.place(self._served), drafts, created=int(time.time()), **told)

    def submit(self, entry: Open) -> None:
        """Queue the request of an answer.

        Raises:
            UserError: it never fits.
        """
        self.pacer.submit(entry.answer.request)
        self._open[entry.answer.request] = entry
        self.metrics.observe_arrival()

    def abort(self, rid: str, exactly: bool = False) -> None:
        """End the requests whose id starts with `rid` ("" is all), or is just that."""
        for request in self.engine.abort(lambda r: r.rid == rid if exactly else r.rid.startswith(rid)):
            entry = self._open.pop(request)
            request.generated = entry.tokens  # the step in progress is not delivered any more
            entry.answer.finish_reason = {"type": "abort", "message": "Abort request.", "status_code": None}
            self.metrics.observe_end(request)
            entry.advance(0)
            entry.end()

    def _deliver(self, step: Step) -> None:
        for request, tokens in zip(step.requests, step.tokens.tolist(), strict=True):
            entry = self._open.get(request)
            if entry is None:
                continue  # aborted while the step ran
            if step.kind == "prefill":
                self.metrics.observe_first_token(request)
            if request.finish == "length":
                entry.answer.finish_reason = {"type": "length", "length": request.output_tokens}
                del self._open[request]
                self.metrics.observe_end(request)
            entry.advance(tokens)
            if request.finish == "length":
                entry.end()

    # ---- control

    def set_internal_state(self, update: dict[str, Any]) -> bool:
        """Change the policy of a patched server; whether it was taken. A refusal changes nothing."""
        gate = self.engine.gate
        if gate is None:
            return not update
        try:
            order, rest = ordered(gate, update), without_order(update)
            policy = updated(gate.policy, rest)
            for steps in {rung.num_steps for rung in policy.rungs}:
                self.engine.costs.decode_s(1, steps or 0)  # refuses a width that no table tells of
        except (ValueError, OverflowError, UserError) as error:
            self.last_error = f"refused {update}: {error}"
            return False
        self.last_error = None
        if rest:
            self.engine.set_policy(policy)
        if order is not None:
            self.engine.command(order)
        return True

    def flush_cache(self) -> bool:
        """Whether there was nothing running or waiting; there is no cache to flush."""
        return not self._open

    def info(self) -> dict[str, Any]:
        """The document at /server_info: server arguments, internal states, version, and the `simulation` block."""
        arguments = self._arguments()
        block = specpivot_block(self.engine, self.settings.preset, self.last_error)
        state = {**arguments, "effective_max_running_requests_per_dp": self.engine.limits.max_running_requests}
        state |= {"memory_usage": {"token_capacity": self.engine.limits.max_total_num_tokens}}
        if self.engine.counters.accept_len is not None:
            state["avg_spec_accept_length"] = self.engine.counters.accept_len
        if block is not None:
            state["specpivot"] = block
        version = self.settings.preset.sglang_version
        return {**arguments, "internal_states": [state], "version": version, "simulation": self._simulation()}

    def _simulation(self) -> dict[str, Any]:
        """What makes this server not a measurement; its own durations are in simulated seconds throughout."""
        settings = self.settings
        return {
            "preset": settings.preset.name,
            "origin": settings.preset.origin,
            "variant": settings.variant,
            "time_scale": settings.time_scale,
            "seed": settings.seed,
            "noise": msgspec.structs.asdict(settings.noise),
            "slipped_s": self.clock.slipped_s,
            "pid": os.getpid(),
            "start_time": self.started_at,
        }

    def _arguments(self) -> dict[str, Any]:
        preset, limits, patched = self.settings.preset, self.engine.limits, self.engine.gate is not None
        no_overlap = self.settings.variant == "baseline_no_overlap" or (patched and preset.patched.worker == "v1")
        drafts = self.engine.num_steps
        return {
            "status": "ready",
            "model_path": preset.model,
            "served_model_name": preset.model,
            "host": self.settings.host,
            "port": self.settings.port,
            "tp_size": 1,
            "dp_size": 1,
            "random_seed": self.settings.seed,
            "context_length": limits.context_length,
            "max_running_requests": limits.max_running_requests,
            "max_total_num_tokens": limits.max_total_num_tokens,
            "max_req_input_len": limits.context_length - 1,
            "chunked_prefill_size": limits.chunked_prefill_size,
            "enable_mixed_chunk": False,
            "page_size": 1,
            "disable_radix_cache": True,
            "schedule_policy": "fcfs",
            "attention_backend": "simulated",
            "disable_cuda_graph": False,
            "disable_overlap_schedule": no_overlap,
            "enable_metrics": True,
            "speculative_algorithm": "EAGLE3" if patched else None,
            "speculative_draft_model_path": preset.draft if patched else None,
            "speculative_num_steps": drafts if patched else None,
            "speculative_eagle_topk": 1 if patched else None,
            "speculative_num_draft_tokens": drafts + 1 if patched else None,
        }
