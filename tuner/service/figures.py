"""What Prometheus learns of the service itself at /metrics; a registry of its own, so that tests do not share one."""

from __future__ import annotations

from collections import Counter as Counted
from collections.abc import Callable, Iterable, Iterator
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tuner.service.answers import Job, JobState, Server, ServerState


class Figures:
    """Counters that the service moves, and gauges that are read when they are asked for."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self.requests = Counter(
            "specpivot_service_requests",
            "Requests answered, by route and status.",
            ["method", "route", "status"],
            registry=self._registry,
        )
        self.request_s = Histogram(
            "specpivot_service_request_seconds",
            "Time to answer a request; a stream of events is not one.",
            buckets=(0.005, 0.02, 0.1, 0.5, 2.0, 10.0),
            registry=self._registry,
        )
        self.events = Counter("specpivot_service_events", "Events published.", ["event"], registry=self._registry)
        self.listeners = Gauge(
            "specpivot_service_listeners", "Connections that follow events.", registry=self._registry
        )

    def watch(self, jobs: Callable[[], Iterable[Job]], servers: Callable[[], Iterable[Server]]) -> None:
        """Report jobs and servers too."""
        self._registry.register(_Now(jobs, servers))

    def exposition(self) -> bytes:
        """The text that a scrape gets."""
        return generate_latest(self._registry)


class _Now(Collector):
    def __init__(self, jobs: Callable[[], Iterable[Job]], servers: Callable[[], Iterable[Server]]) -> None:
        self._jobs = jobs
        self._servers = servers

    def collect(self) -> Iterator[Metric]:
        states = Counted(job.state for job in self._jobs())
        family = GaugeMetricFamily("specpivot_service_jobs", "Jobs by state.", labels=["state"])
        for state in get_args(JobState):
            family.add_metric([state], states[state])
        yield family
        yield from self._of_servers(list(self._servers()))

    def _of_servers(self, servers: list[Server]) -> Iterator[Metric]:
        family = GaugeMetricFamily("specpivot_server_state", "1 for the server's state.", labels=["server", "state"])
        for server in servers:
            for state in get_args(ServerState):
                family.add_metric([server.name, state], float(server.state == state))
        yield family
        for name, text in _SERVER_GAUGES.items():
            gauge = GaugeMetricFamily(f"specpivot_server_{name}", text, labels=["server"])
            for server in servers:
                value = getattr(server, name)
                if value is not None:
                    gauge.add_metric([server.name], float(value))
            yield gauge


_SERVER_GAUGES = {
    "threshold": "Largest decode batch that speculates; absent where nothing is disabled or the server is not patched.",
    "batch": "Mean decode batch between the last two looks.",
    "speculating": "Whether most steps between the last two looks speculated.",
    "accept_len": "Tokens per verify step between the last two looks.",
    "tok_per_s": "Output tokens per second between the last two looks.",
}
