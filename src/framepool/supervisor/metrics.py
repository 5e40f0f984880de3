"""The figures for Prometheus: taken from a snapshot when they are asked for, so that nobody counts twice.

Needs the extra `console`, for `prometheus-client`. Served on loopback unless the configuration says otherwise.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any
from wsgiref.simple_server import WSGIServer

from framepool.config import SupervisorConfig
from framepool.errors import ConfigurationError
from framepool.supervisor.streams import Health
from framepool.supervisor.supervisor import Supervisor

try:
    from prometheus_client import CollectorRegistry, start_http_server
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError:
    raise ConfigurationError(
        "supervisor.metrics_port needs prometheus-client: pip install 'framepool[console]'"
    ) from None

OF_STREAM = ("stream", "name")
OF_CONSUMER = ("stream", "consumer")


class SupervisorCollector(Collector):
    """Metric families from what a supervisor knows now."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def collect(self) -> Iterator[Metric]:
        known = self._supervisor.snapshot(notices_after=2**63)
        yield from _of_streams(known["streams"])
        yield from _of_consumers(known["streams"])
        yield from _of_services(known)
        yield from _of_notices(self._supervisor)


def _of_streams(streams: list[dict[str, Any]]) -> Iterator[Metric]:
    health = GaugeMetricFamily(
        "framepool_stream_health", "1 for the health that a stream is in.", labels=[*OF_STREAM, "health"]
    )
    epoch = GaugeMetricFamily("framepool_stream_epoch", "The announced epoch.", labels=OF_STREAM)
    size = GaugeMetricFamily("framepool_stream_bytes", "Shared memory of the epoch.", labels=OF_STREAM)
    rate = GaugeMetricFamily("framepool_stream_rate_hz", "Frames a second, as its producer reports.", labels=OF_STREAM)
    seq = GaugeMetricFamily("framepool_stream_current_seq", "The newest frame of the epoch.", labels=OF_STREAM)
    age = GaugeMetricFamily("framepool_stream_activity_age_seconds", "Since its last sign of life.", labels=OF_STREAM)
    for stream in streams:
        labels = [str(stream["stream_id"]), stream["name"]]
        for each in Health:
            health.add_metric([*labels, each.value], float(stream["health"] == each.value))
        epoch.add_metric(labels, stream["epoch"])
        size.add_metric(labels, stream["bytes"])
        rate.add_metric(labels, stream["rate_hz"])
        if stream["current_seq"] is not None:
            seq.add_metric(labels, stream["current_seq"])
        if stream["activity_age_s"] is not None:
            age.add_metric(labels, stream["activity_age_s"])
    yield from (health, epoch, size, rate, seq, age)


def _of_consumers(streams: list[dict[str, Any]]) -> Iterator[Metric]:
    drops = CounterMetricFamily("framepool_consumer_drops", "Frames lost, by kind.", labels=[*OF_CONSUMER, "kind"])
    share = GaugeMetricFamily("framepool_consumer_drop_rate", "Share of frames lost lately.", labels=OF_CONSUMER)
    stale = GaugeMetricFamily("framepool_consumer_stale", "1 if it is not heard any more.", labels=OF_CONSUMER)
    for stream in streams:
        for consumer in stream["consumers"]:
            labels = [str(stream["stream_id"]), str(consumer["consumer_id"])]
            drops.add_metric([*labels, "gap"], consumer["drops_gap"])
            drops.add_metric([*labels, "late"], consumer["drops_late"])
            share.add_metric(labels, consumer["drop_rate"])
            stale.add_metric(labels, float(consumer["stale"]))
    yield from (drops, share, stale)


def _of_services(known: dict[str, Any]) -> Iterator[Metric]:
    yield GaugeMetricFamily("framepool_leases", "Leases that are held.", value=len(known["leases"]))
    age = GaugeMetricFamily(
        "framepool_service_age_seconds", "Since a service was heard.", labels=["tag", "host", "pid", "state"]
    )
    for each in known["services"]:
        age.add_metric([each["tag"], each["host"], str(each["pid"]), each["state"]], each["age_s"])
    yield age


def _of_notices(supervisor: Supervisor) -> Iterator[Metric]:
    notices = CounterMetricFamily("framepool_notices", "What happened, by kind.", labels=["kind"])
    for kind, count in supervisor.notice_counts().items():
        notices.add_metric([kind], count)
    yield notices


class MetricsServer:
    """The figures, served until it is closed."""

    def __init__(self, server: WSGIServer, thread: threading.Thread) -> None:
        self._server = server
        self._thread = thread
        self.port: int = server.server_port

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


def serve_metrics(supervisor: Supervisor, config: SupervisorConfig) -> MetricsServer:
    """Serves the figures of a supervisor at `/metrics`; raises ConfigurationError where it cannot listen."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(SupervisorCollector(supervisor))
    try:
        server, thread = start_http_server(config.metrics_port, config.metrics_host, registry)
    except OSError as error:
        raise ConfigurationError(
            f"supervisor.metrics_port {config.metrics_port} on {config.metrics_host}: {error.strerror}"
        ) from error
    return MetricsServer(server, thread)
