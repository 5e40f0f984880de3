"""What is recorded of what is heard: changes once, reports always, secrets never."""

from __future__ import annotations

from framepool.client.blobs import blob_messages
from framepool.recorder.capture import MOST_COMING, TOPICS, VERSIONS, Capture
from framepool.wire._generated.control_900 import (
    Attribute,
    ClockDomain,
    DataSourceAnnounce,
    DataSourceMeta,
    FrameDescriptor,
    MetaBlobAnnounce,
    QosProducer,
    ShmPoolAnnounce,
)
from framepool.wire._generated.driver_901 import ShmDriverShutdownRequest, ShutdownReason
from framepool.wire._generated.event_905 import EventMessage, Format
from framepool.wire._generated.trace_904 import Parent, TraceLinkSet
from framepool.wire.message import Message

STREAM = 10_000


def capture(carried_bytes: int = 2**20) -> Capture:
    return Capture({STREAM}, carried_bytes=carried_bytes)


def hear(ear: Capture, message: Message) -> bool:
    return ear.hear(1300, message.encode()) is not None


def meta(version: int, value: bytes = b"1", stream_id: int = STREAM) -> DataSourceMeta:
    attribute = Attribute(key="gain", format="text/plain", value=value)
    return DataSourceMeta(stream_id=stream_id, meta_version=version, timestamp_ns=version, attributes=(attribute,))


def carried(ear: Capture) -> list[bytes]:
    return [message.data for message in ear.carried()]


def test_what_is_repeated_is_recorded_once_and_again_when_it_changed() -> None:
    ear = capture()
    announce = DataSourceAnnounce(stream_id=STREAM, producer_id=1, epoch=2, meta_version=3, name="camera", summary="")
    assert [hear(ear, announce), hear(ear, announce)] == [True, False]
    assert hear(ear, DataSourceAnnounce(stream_id=STREAM, producer_id=1, epoch=3, meta_version=3, name="", summary=""))
    assert [hear(ear, meta(1)), hear(ear, meta(1)), hear(ear, meta(1, b"2"))] == [True, False, True]
    assert len(carried(ear)) == 2


def pool_announce(epoch: int, timestamp_ns: int) -> ShmPoolAnnounce:
    return ShmPoolAnnounce(
        stream_id=STREAM,
        producer_id=1,
        epoch=epoch,
        announce_timestamp_ns=timestamp_ns,
        announce_clock_domain=ClockDomain.MONOTONIC,
        layout_version=1,
        header_nslots=8,
        header_slot_bytes=256,
        payload_pools=(),
        header_region_uri="shm:file?path=/x",
    )


def test_announce_of_a_pool_is_the_same_whenever_it_is_said() -> None:
    ear = capture()
    heard = [hear(ear, pool_announce(1, 5)), hear(ear, pool_announce(1, 6)), hear(ear, pool_announce(2, 7))]
    assert heard == [True, False, True]


def test_reports_links_and_events_are_all_recorded() -> None:
    ear = capture()
    report = QosProducer(stream_id=STREAM, producer_id=1, epoch=2, current_seq=3)
    links = TraceLinkSet(stream_id=STREAM, epoch=1, seq=2, trace_id=3, parents=(Parent(trace_id=4),))
    event = EventMessage(
        timestamp_ns=1, correlation_id=2, format=Format.NOTHING, pad=bytes(3), tag="service:x", key="k", value=b""
    )
    for message in (report, links, event):
        assert [hear(ear, message), hear(ear, message)] == [True, True]
    assert carried(ear) == []
    assert ear.counts["QosProducer"] == 2


def test_other_streams_other_messages_and_nonsense_are_not_recorded() -> None:
    ear = capture()
    assert not hear(ear, meta(1, stream_id=STREAM + 1))
    assert not hear(ear, FrameDescriptor(stream_id=STREAM, epoch=1, seq=1))
    assert ear.hear(1300, b"nonsense") is None
    assert ear.counts["undecodable"] == 1


def test_secrets_of_the_control_streams_are_not_heard_at_all() -> None:
    assert not {"control", "service_control"} & set(TOPICS)
    request = ShmDriverShutdownRequest(correlation_id=1, reason=ShutdownReason.NORMAL, token="secret", error_message="")
    assert not hear(capture(), request), "and would not be recorded where they do not belong"


def test_last_versions_are_carried() -> None:
    ear = capture()
    for version in range(1, VERSIONS + 3):
        assert hear(ear, meta(version))
    assert carried(ear) == [meta(version).encode() for version in range(3, VERSIONS + 3)]


def blob(data: bytes, blob_type: int = 7, version: int = 1) -> list[Message]:
    return list(blob_messages(STREAM, version, blob_type, data, max_message_length=1000))


def test_whole_blobs_are_carried_the_last_of_each_type() -> None:
    ear = capture()
    for message in [*blob(b"a" * 3000), *blob(b"b" * 3000), *blob(b"c" * 10, blob_type=8)]:
        assert hear(ear, message)
    assert carried(ear) == [m.encode() for m in [*blob(b"b" * 3000), *blob(b"c" * 10, blob_type=8)]]
    for message in blob(b"d" * 3000)[:-1]:
        assert hear(ear, message), "recorded, as it comes"
    assert carried(ear)[0] == blob(b"b" * 3000)[0].encode(), "and not carried before it is whole"


def test_blobs_that_are_too_large_are_recorded_and_not_carried() -> None:
    ear = capture(carried_bytes=2500)
    for message in blob(b"a" * 3000):
        assert hear(ear, message)
    assert carried(ear) == []
    assert ear.counts["blobs too large to carry"] == 1
    for message in [*blob(b"b" * 1500, blob_type=1), *blob(b"c" * 1500, blob_type=2)]:
        hear(ear, message)
    assert carried(ear) == [message.encode() for message in blob(b"c" * 1500, blob_type=2)]


def test_chunks_without_their_announce_are_recorded_as_they_are() -> None:
    ear = capture()
    assert all(hear(ear, message) for message in blob(b"a" * 100) if not isinstance(message, MetaBlobAnnounce))
    assert carried(ear) == []


def test_blobs_that_never_end_make_room_for_each_other() -> None:
    """Whoever may speak of a stream may begin as many blobs as there are numbers."""
    ear = capture()
    for version in range(1_000):
        announce, *_ = blob_messages(STREAM, version, 7, bytes(100), max_message_length=1_000)
        hear(ear, announce)
    assert len(ear._coming) == MOST_COMING
    assert ear.counts["blobs given up"] == 1_000 - MOST_COMING
    for message in blob_messages(STREAM, 999, 7, bytes(100), max_message_length=1_000):
        hear(ear, message)
    assert len(carried(ear)) > 2, "the last one is carried when it is whole"
