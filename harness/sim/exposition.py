"""/metrics of the simulated server, under SGLang's names and labels.

Counters and gauges are read from the engine when scraped; the two histograms are filled once per request. As in
SGLang, generation_tokens_total grows when a request finishes, realtime_tokens_total with every step.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from harness.sim.engine import Engine
from harness.sim.progress import Request

_LATENCY_BUCKETS = (0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400)


class Metrics(Collector):
    """The registry of one server.

    Args:
        engine: whose counters.
        model: value of SGLang's model_name label.
    """

    def __init__(self, engine: Engine, model: str) -> None:
        self._engine = engine
        self._labels = {"model_name": model, "engine_type": "unified", "tp_rank": "0", "pp_rank": "0"}
        self._finished = {"prompt_tokens": 0, "generation_tokens": 0, "num_requests": 0, "num_aborted_requests": 0}
        self.in_flight = 0  # requests whose last token has not been delivered
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        self._ttft = self._histogram("time_to_first_token_seconds", "Histogram of time to first token in seconds.")
        self._e2e = self._histogram("e2e_request_latency_seconds", "Histogram of End-to-end request latency in seconds")

    def observe_arrival(self) -> None:
        self.in_flight += 1

    def observe_first_token(self, request: Request) -> None:
        self._ttft.labels(**self._labels).observe((request.first_token_s or 0.0) - request.sent_s)

    def observe_end(self, request: Request) -> None:
        """Count a request that has finished or was aborted."""
        self.in_flight -= 1
        if request.finish == "abort":
            self._finished["num_aborted_requests"] += 1
        self._finished["prompt_tokens"] += request.prompt_tokens
        self._finished["generation_tokens"] += request.generated
        self._finished["num_requests"] += 1
        self._e2e.labels(**self._labels).observe((request.finished_s or 0.0) - request.sent_s)

    def exposition(self) -> bytes:
        """The text that a scrape gets."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        engine, counters = self._engine, self._engine.counters
        for name, value in self._finished.items():
            yield self._counter(name, value)
        yield self._tokens_by_mode()
        yield self._gauge("num_running_reqs", self.in_flight - len(engine.waiting))
        yield self._gauge("num_queue_reqs", len(engine.waiting))
        yield self._gauge("cache_hit_rate", 0.0)
        yield self._gauge("num_used_tokens", engine.used_tokens)
        yield self._gauge("token_usage", engine.used_tokens / engine.limits.max_total_num_tokens)
        yield self._gauge("max_total_num_tokens", engine.limits.max_total_num_tokens)
        if engine.gate is not None:
            yield self._gauge("spec_accept_length", counters.accept_len or 0.0)

    def _tokens_by_mode(self) -> Metric:
        counters = self._engine.counters
        family = CounterMetricFamily("sglang:realtime_tokens", "Tokens by mode.", labels=[*self._labels, "mode"])
        decoded = sum(count.tokens for count in counters.by_batch.values())
        for mode, value in (("prefill_compute", counters.prompt_tokens), ("decode", decoded)):
            family.add_metric([*self._labels.values(), mode], value)
        return family

    def _counter(self, name: str, value: float) -> Metric:
        family = CounterMetricFamily(f"sglang:{name}", f"Simulated {name}.", labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _gauge(self, name: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"sglang:{name}", f"Simulated {name}.", labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _histogram(self, name: str, text: str) -> Histogram:
        labels = list(self._labels)
        return Histogram(f"sglang:{name}", text, labels, buckets=_LATENCY_BUCKETS, registry=self._registry)
