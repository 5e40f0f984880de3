"""What is shown of a state: rates out of reports, latencies out of counters, causes in words."""

from __future__ import annotations

from typing import Any

from framepool.client.gauges import Gauge
from framepool.clock import NANOS_PER_SECOND
from framepool.console.view import COLUMNS, Scene, row
from framepool.supervisor.state import State
from framepool.wire._generated.control_900 import (
    Bool,
    ClockDomain,
    ConsumerHello,
    Mode,
    PayloadPool,
    QosConsumer,
    QosProducer,
    ShmPoolAnnounce,
)
from framepool.wire._generated.driver_901 import LeaseRevokeReason, Role, ShmLeaseKeepalive, ShmLeaseRevoked
from framepool.wire.message import Message

STREAM, PRODUCER, CONSUMER = 10_000, 7, 42
SECOND = NANOS_PER_SECOND


class World:
    """A state with one stream, its producer and a consumer, a second at a time."""

    def __init__(self) -> None:
        self.state = State()
        self.scene = Scene(bridged=lambda stream_id: stream_id >= 50_000)
        self.now_ns = SECOND
        self.seq = 0
        self.gauges: list[Gauge] = []

    def hear(self, message: Message) -> None:
        assert self.state.receive(message.encode(), self.now_ns) is None

    def second(self, frames: int = 100, gaps: int = 0, late: int = 0, stream: int = STREAM) -> dict[str, Any]:
        """A second passes, everybody reports, and one looks."""
        self.now_ns += SECOND
        self.seq += frames
        self.hear(announce(stream))
        self.hear(QosProducer(stream_id=stream, producer_id=PRODUCER, epoch=3, current_seq=self.seq))
        self.hear(
            QosConsumer(
                stream_id=stream,
                consumer_id=CONSUMER,
                epoch=3,
                last_seq_seen=self.seq,
                drops_gap=gaps,
                drops_late=late,
                mode=Mode.STREAM,
            )
        )
        return self.look()

    def look(self, own: tuple[int, ...] = ()) -> dict[str, Any]:
        self.state.tick(self.now_ns)
        return self.scene.look(self.state, self.gauges, own)


def announce(stream: int = STREAM) -> ShmPoolAnnounce:
    return ShmPoolAnnounce(
        stream_id=stream,
        producer_id=PRODUCER,
        epoch=3,
        announce_timestamp_ns=1,
        announce_clock_domain=ClockDomain.MONOTONIC,
        layout_version=1,
        header_nslots=8,
        header_slot_bytes=256,
        payload_pools=(
            PayloadPool(pool_id=1, pool_nslots=8, stride_bytes=4096, region_uri="shm:file?path=/dev/shm/x"),
        ),
        header_region_uri="shm:file?path=/dev/shm/y",
    )


def test_rates_are_the_differences_of_two_looks() -> None:
    world = World()
    world.second()
    found = world.second(frames=250, gaps=5, late=2)
    (stream,) = found["streams"]
    assert (stream["id"], stream["state"], stream["why"]) == (STREAM, "live", "")
    assert stream["frames_per_s"] == 250
    assert (stream["gaps_per_s"], stream["late_per_s"], stream["drops_per_s"]) == (5, 2, 7)
    assert found["totals"]["drops_per_s"] == 7


def test_what_nobody_tells_is_unknown() -> None:
    world = World()
    (stream,) = world.second()["streams"]
    assert stream["bytes_per_s"] is None
    assert stream["latency"] is None
    assert stream["drops_per_s"] is None  # before the second look
    assert world.second()["totals"]["latency_p99_ns"] is None


def test_counters_give_throughput_and_latency() -> None:
    world = World()
    world.gauges = [
        Gauge(Role.PRODUCER, STREAM, PRODUCER, "frame_bytes", 2_000_000),
        Gauge(Role.CONSUMER, STREAM, CONSUMER, "latency_p50_ns", 50_000),
        Gauge(Role.CONSUMER, STREAM, CONSUMER, "latency_p90_ns", 70_000),
        Gauge(Role.CONSUMER, STREAM, CONSUMER, "latency_p99_ns", 90_000),
    ]
    world.second()
    found = world.second(frames=100)
    (stream,) = found["streams"]
    assert stream["bytes_per_s"] == 200_000_000
    assert stream["latency"] == {"p50_ns": 50_000, "p90_ns": 70_000, "p99_ns": 90_000}
    assert found["totals"]["latency_p99_ns"] == 90_000
    assert row(stream)["latency_p90_ns"] == 70_000
    assert set(COLUMNS) <= row(stream).keys()


def test_our_own_previews_are_marked_and_do_not_count_for_latency() -> None:
    world = World()
    world.gauges = [
        Gauge(Role.CONSUMER, STREAM, CONSUMER, f"latency_p{part}_ns", 1) for part in (50, 90, 99)
    ]  # fmt: skip
    world.second()
    (stream,) = world.look(own=(CONSUMER,))["streams"]
    assert stream["consumers"][0]["own"]
    assert stream["latency"] is None


def test_a_producer_that_died_is_shown_with_the_cause_and_no_frames() -> None:
    world = World()
    world.second()
    world.second()
    world.hear(
        ShmLeaseRevoked(
            timestamp_ns=1,
            lease_id=1,
            stream_id=STREAM,
            client_id=PRODUCER,
            role=Role.PRODUCER,
            reason=LeaseRevokeReason.EXPIRED,
        )
    )
    (stream,) = world.look()["streams"]
    assert stream["state"] == "dead"
    assert stream["why"] == "the producer died: lease expired"
    assert stream["frames_per_s"] == 0


def test_leases_are_counted_and_bridged_streams_marked() -> None:
    world = World()
    world.second(stream=50_001)
    world.hear(ShmLeaseKeepalive(lease_id=9, stream_id=50_001, client_id=1, role=Role.CONSUMER, client_timestamp_ns=1))
    (stream,) = world.look()["streams"]
    assert stream["leases"] == 1
    assert stream["bridged"]


def test_a_hello_says_how_many_frames_a_consumer_wants() -> None:
    world = World()
    world.hear(announce())
    world.hear(
        ConsumerHello(
            stream_id=STREAM,
            consumer_id=CONSUMER,
            supports_shm=Bool.TRUE,
            supports_progress=Bool.FALSE,
            mode=Mode.RATE_LIMITED,
            max_rate_hz=25,
            expected_layout_version=1,
            descriptor_stream_id=0,
            control_stream_id=0,
        )
    )
    (consumer,) = world.look()["streams"][0]["consumers"]
    assert (consumer["mode"], consumer["max_rate_hz"]) == ("RATE_LIMITED", 25)
