"""Metadata from a producer's dictionary over the wire to a reader's cache, with a clock that the test moves."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framepool.client.metadata import LAST_VERSION, NAME_LIMIT, SUMMARY_LIMIT, SourceMetadata
from framepool.client.metadata_cache import ANNOUNCE_TEXT_LIMIT, MetadataCache, Source
from framepool.clock import NANOS_PER_SECOND, ManualClock
from framepool.errors import EncodeError
from framepool.wire._generated.control_900 import Attribute, DataSourceAnnounce, DataSourceMeta, QosProducer
from framepool.wire.attributes import Metadata, attribute_of, size_of, value_of
from framepool.wire.dispatch import decode
from framepool.wire.message import Message

STREAM = 10_000
SECOND = NANOS_PER_SECOND
AERON_LIMIT = 128 * 1024


class Wire:
    """What was published, and how many messages Aeron takes; None is all."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.room: int | None = None

    def publish(self, message: Message) -> bool:
        if self.room == 0:
            return False
        if self.room is not None:
            self.room -= 1
        self.sent.append(decode(message.encode()))
        return True

    def take(self) -> list[Message]:
        sent, self.sent = self.sent, []
        return sent


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def wire() -> Wire:
    return Wire()


def producer(wire: Wire, clock: ManualClock, *, limit: int = AERON_LIMIT, **settings: Any) -> SourceMetadata:
    return SourceMetadata(STREAM, publish=wire.publish, clock=clock, max_message_length=limit, **settings)


@pytest.fixture
def meta(wire: Wire, clock: ManualClock) -> SourceMetadata:
    source = producer(wire, clock, name="camera", summary="uint16 2048x2048")
    source.attached(producer_id=77, epoch=9)
    return source


def metas(messages: list[Message]) -> list[DataSourceMeta]:
    return [message for message in messages if isinstance(message, DataSourceMeta)]


def announces(messages: list[Message]) -> list[DataSourceAnnounce]:
    return [message for message in messages if isinstance(message, DataSourceAnnounce)]


def tell(cache: MetadataCache, messages: list[Message]) -> None:
    for message in messages:
        if isinstance(message, DataSourceAnnounce):
            cache.on_announce(message)
        elif isinstance(message, DataSourceMeta):
            cache.on_meta(message)


# Values and formats


SBE_VALUE = QosProducer(stream_id=1, producer_id=2, epoch=3, current_seq=4)


@pytest.mark.parametrize(
    ("value", "format", "raw"),
    [
        ("SN-1", "text/plain", b"SN-1"),
        ("Größe", "text/plain", "Größe".encode()),
        ({"x": 0, "y": 64}, "application/json", b'{"x":0,"y":64}'),
        ([1, 2.5, None, "ü"], "application/json", '[1,2.5,null,"ü"]'.encode()),
        (4, "application/json", b"4"),
        (True, "application/json", b"true"),
        (None, "application/json", b"null"),
        (b"\x00\xff", "application/octet-stream", b"\x00\xff"),
        (SBE_VALUE, "sbe:900.6", SBE_VALUE.encode()),
    ],
)
def test_the_format_follows_from_the_value(meta: SourceMetadata, value: object, format: str, raw: bytes) -> None:
    meta["key"] = value
    assert meta.format("key") == format
    assert attribute_of("key", value).value == raw
    assert meta["key"] == value


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (bytearray(b"ab"), b"ab"),
        (memoryview(b"ab"), b"ab"),
        ((1, 2), [1, 2]),
        (np.eye(2), [[1.0, 0.0], [0.0, 1.0]]),
        ({"gain": np.int64(4), "ok": np.True_}, {"gain": 4, "ok": True}),
    ],
)
def test_what_json_and_bytes_lack_comes_back_as_what_they_have(
    meta: SourceMetadata, value: object, read: object
) -> None:
    meta["key"] = value
    assert meta["key"] == read


@pytest.mark.parametrize(
    ("value", "format", "read"),
    [
        ({"a": [1, b"x"]}, "application/msgpack", {"a": [1, b"x"]}),
        (np.float32(0.5), "application/msgpack", 0.5),
        ("text", "application/json", "text"),
        (b'{"x":1}', "application/json", {"x": 1}),
        (b"text", "text/plain; charset=utf-8", "text"),
        ("<xml/>", "application/xml", b"<xml/>"),
        (b"anything", "image/png", b"anything"),
        (b"a message of a schema unknown here", "sbe:4711.1", b"a message of a schema unknown here"),
        (SBE_VALUE, "sbe:900.6", SBE_VALUE),
        (SBE_VALUE.encode(), "sbe:900.6", SBE_VALUE),
        (SBE_VALUE.encode(), "sbe:900.5", SBE_VALUE.encode()),
    ],
)
def test_a_format_can_be_said(meta: SourceMetadata, value: object, format: str, read: object) -> None:
    meta.set("key", value, format=format)
    assert meta.format("key") == format
    assert meta["key"] == read


@pytest.mark.parametrize(
    ("key", "value", "format", "match"),
    [
        ("", "x", None, "needs a key"),
        ("schlüssel", "x", None, "US-ASCII"),
        ("a\nb", "x", None, "printable"),
        ("k" * 256, "x", None, "256 characters"),
        (7, "x", None, "US-ASCII"),
        ("k", object(), None, "no format is known for object"),
        ("k", {1, 2}, None, "no format is known for set"),
        ("k", math.nan, None, "application/json"),
        ("k", [math.inf], None, "application/json"),
        ("k", {"a": object()}, None, "object has no place"),
        ("k", "\ud800", None, "text/plain"),
        ("k", 4, "text/plain", "give bytes"),
        ("k", b"\xff", "text/plain", "text/plain"),
        ("k", b"{", "application/json", "application/json"),
        ("k", 2**70, "application/msgpack", "application/msgpack"),
        ("k", {"a": 1}, "image/png", "give bytes"),
        ("k", "x", "application/octet-stream", "give bytes"),
        ("k", "x", "", "no format"),
        ("k", "x", "formät", "US-ASCII"),
        ("k", b"x", "sbe:", "no format"),
        ("k", b"x", "sbe:900", "no format"),
        ("k", "x", "sbe:900.6", "give bytes"),
        ("k", SBE_VALUE, "sbe:900.5", "another message"),
    ],
)
def test_what_cannot_be_carried_is_refused_and_changes_nothing(
    meta: SourceMetadata, key: Any, value: object, format: str | None, match: str
) -> None:
    with pytest.raises(EncodeError, match=match):
        meta.set(key, value, format=format)
    assert len(meta) == 0
    assert meta.version == 1


texts = st.text('aZ0 "\\\n\x00ü€😀', max_size=6)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=10,
)


@given(json_values, st.sampled_from(["application/json", "application/msgpack"]))
def test_json_and_messagepack_come_back_as_they_were(value: object, format: str) -> None:
    assert value_of(attribute_of("key", value, format)) == value


@given(st.binary(max_size=80), st.sampled_from(["text/plain", "application/json", "application/msgpack", "sbe:900.8"]))
def test_bytes_of_any_kind_never_raise_in_a_reader(data: bytes, format: str) -> None:
    bad = Attribute(key="bad", format=format, value=data)
    metadata = Metadata(STREAM, 1, 0, (bad, attribute_of("good", 1)))
    assert dict(metadata)["good"] == 1
    assert metadata.attributes[0] == bad


@pytest.mark.parametrize("data", [b"[" * 100_000, b'{"a":' * 100_000, b"1" * 10_000, b"NaN"])
def test_json_that_no_reader_should_read_is_left_out(data: bytes) -> None:
    assert len(Metadata(STREAM, 1, 0, (Attribute(key="k", format="application/json", value=data),))) == 0


# The producer's dictionary


def test_it_is_a_dictionary(meta: SourceMetadata) -> None:
    meta.update({"a": 1}, b="two")
    assert dict(meta) == {"a": 1, "b": "two"}
    assert "a" in meta
    assert meta.pop("a") == 1
    assert meta.setdefault("b", 3) == "two"
    assert list(meta) == ["b"]
    meta.clear()
    assert len(meta) == 0
    with pytest.raises(KeyError):
        del meta["b"]
    with pytest.raises(KeyError):
        meta["b"]


def test_what_is_known_at_the_start_is_the_first_version(wire: Wire, clock: ManualClock) -> None:
    meta = producer(wire, clock, attributes={"camera_serial": "SN-1", "gain": 4})
    assert (meta.version, dict(meta)) == (1, {"camera_serial": "SN-1", "gain": 4})
    with pytest.raises(EncodeError, match="blobs"):
        producer(wire, clock, limit=100, attributes={"table": bytes(100)})


def test_what_is_read_back_is_a_copy(meta: SourceMetadata) -> None:
    meta["roi"] = {"x": 0}
    meta["roi"]["x"] = 5
    assert meta["roi"] == {"x": 0}


@pytest.mark.clause("W-10.3.1-02")
def test_each_change_is_one_version_higher_on_the_wire(meta: SourceMetadata, wire: Wire) -> None:
    meta.do_work()
    changes = [
        lambda: meta.set("gain", 1),
        lambda: meta.set("gain", 2),
        lambda: meta.pop("gain"),
        lambda: setattr(meta, "name", "telescope"),
        lambda: setattr(meta, "summary", ""),
        lambda: meta.update(a=1, b=2, c=3),
        meta.clear,
    ]
    for version, change in enumerate(changes, start=2):
        wire.take()
        change()
        assert meta.version == version
        meta.do_work()
        sent = wire.take()
        assert [announce.meta_version for announce in announces(sent)] == [version]
        assert [message.meta_version for message in metas(sent)] == [version]


def test_what_changes_nothing_is_no_version(meta: SourceMetadata) -> None:
    meta["roi"] = {"x": 0}
    before = meta.version
    meta["roi"] = {"x": 0}
    meta.name = "camera"
    with meta.edit():
        meta["gain"] = 1
        del meta["gain"]
    assert meta.version == before


def test_an_edit_is_one_version(meta: SourceMetadata, wire: Wire) -> None:
    with meta.edit() as same:
        assert same is meta
        meta["a"] = 1
        with meta.edit():
            meta.name = "telescope"
        meta["b"] = 2
        assert meta["a"] == 1
        assert meta.name == "telescope"
        assert meta.version == 1
        meta.do_work()
        assert metas(wire.take())[0].attributes == ()
    assert meta.version == 2
    assert dict(meta) == {"a": 1, "b": 2}


def test_an_edit_that_raises_is_undone(meta: SourceMetadata) -> None:
    def change_and_fail() -> None:
        with meta.edit():
            meta["a"] = 1
            raise RuntimeError

    with pytest.raises(RuntimeError):
        change_and_fail()
    assert dict(meta) == {}
    assert meta.version == 1
    meta["b"] = 2
    assert meta.version == 2


def test_after_the_last_version_comes_the_first(wire: Wire, clock: ManualClock) -> None:
    meta = producer(wire, clock, first_version=LAST_VERSION)
    assert meta.version == LAST_VERSION
    meta["a"] = 1
    assert meta.version == 1


@pytest.mark.parametrize("version", [0, -1, LAST_VERSION + 1])
def test_a_first_version_out_of_range_is_refused(wire: Wire, clock: ManualClock, version: int) -> None:
    with pytest.raises(ValueError, match="a version lies between"):
        producer(wire, clock, first_version=version)


def test_metadata_that_does_not_fit_a_message_is_refused_whole(wire: Wire, clock: ManualClock) -> None:
    meta = producer(wire, clock, limit=200)
    with pytest.raises(EncodeError, match="200 fit a message: send large values as blobs"):
        meta.update(a=b"x" * 50, b=b"x" * 50, c=b"x" * 50)
    assert len(meta) == 0
    meta["a"] = b"x" * 50
    meta.attached(1, 1)
    meta.do_work()
    assert max(len(message.encode()) for message in wire.take()) <= 200


def test_a_message_may_be_exactly_as_long_as_the_limit(wire: Wire, clock: ManualClock) -> None:
    meta = producer(wire, clock, limit=8 + 20 + 12 + len("aapplication/octet-stream") + 109)
    meta["a"] = bytes(109)
    with pytest.raises(EncodeError):
        meta["a"] = bytes(110)


@pytest.mark.parametrize(
    "texts",
    [
        {"name": "n" * (NAME_LIMIT + 1)},
        {"summary": "s" * (SUMMARY_LIMIT + 1)},
        {"name": "kamera-süd"},
        {"summary": "a\x1b[31m"},
    ],
)
def test_names_and_summaries_are_bounded_printable_ascii(wire: Wire, clock: ManualClock, texts: dict[str, Any]) -> None:
    with pytest.raises(EncodeError):
        producer(wire, clock, **texts)
    meta = producer(wire, clock)
    (what, text) = next(iter(texts.items()))
    with pytest.raises(EncodeError):
        setattr(meta, what, text)
    assert (meta.name, meta.summary, meta.version) == ("", "", 1)


# What the producer sends


@pytest.mark.clause("W-10.3.1-01")
def test_the_source_is_announced_at_once_and_each_period(meta: SourceMetadata, wire: Wire, clock: ManualClock) -> None:
    expected = DataSourceAnnounce(
        stream_id=STREAM, producer_id=77, epoch=9, meta_version=1, name="camera", summary="uint16 2048x2048"
    )
    for _ in range(5):
        assert meta.do_work() == 1
        assert announces(wire.take()) == [expected]
        clock.advance(SECOND - 1)
        assert meta.do_work() == 0
        clock.advance(1)


@pytest.mark.clause("W-10.3.1-03")
def test_name_and_summary_are_optional(wire: Wire, clock: ManualClock) -> None:
    meta = producer(wire, clock)
    meta.attached(77, 9)
    meta.do_work()
    meta.name, meta.summary = "camera", "uint8 512x512"
    meta.do_work()
    meta.name, meta.summary = "", ""
    meta.do_work()
    sent = [(announce.name, announce.summary) for announce in announces(wire.take())]
    assert sent == [("", ""), ("camera", "uint8 512x512"), ("", "")]


@pytest.mark.clause("W-10.3.2-01")
def test_attributes_are_sent_on_change_and_each_period(meta: SourceMetadata, wire: Wire, clock: ManualClock) -> None:
    meta.do_work()
    clock.advance(SECOND // 2)
    wire.take()
    meta["gain"] = 4
    changed_ns = clock.timestamp_ns()
    meta.do_work()
    (on_change,) = metas(wire.take())
    assert on_change == DataSourceMeta(
        stream_id=STREAM,
        meta_version=2,
        timestamp_ns=changed_ns,
        attributes=(Attribute(key="gain", format="application/json", value=b"4"),),
    )
    for _ in range(3):
        clock.advance(SECOND)
        meta.do_work()
        assert metas(wire.take()) == [on_change]


@pytest.mark.clause("W-10.3.2-02")
def test_attributes_come_back_by_their_formats(meta: SourceMetadata, wire: Wire, clock: ManualClock) -> None:
    meta["camera_serial"] = "SN-1"
    meta["roi"] = {"x": 0, "y": 64, "w": 512, "h": 128}
    meta.set("model", {"k": [0.1, b"\x00"]}, format="application/msgpack")
    meta.set("last", SBE_VALUE)
    meta["raw"] = b"\x01\x02"
    meta.do_work()
    sent = wire.take()
    assert {one.key: (one.format, one.value) for one in metas(sent)[0].attributes} == {
        "camera_serial": ("text/plain", b"SN-1"),
        "roi": ("application/json", b'{"x":0,"y":64,"w":512,"h":128}'),
        "model": ("application/msgpack", msgspec.msgpack.encode({"k": [0.1, b"\x00"]})),
        "last": ("sbe:900.6", SBE_VALUE.encode()),
        "raw": ("application/octet-stream", b"\x01\x02"),
    }
    cache = MetadataCache(clock, follow=[STREAM])
    tell(cache, sent)
    received = cache.get(STREAM, meta.version)
    assert received is not None
    assert dict(received) == {
        "camera_serial": "SN-1",
        "roi": {"x": 0, "y": 64, "w": 512, "h": 128},
        "model": {"k": [0.1, b"\x00"]},
        "last": SBE_VALUE,
        "raw": b"\x01\x02",
    }
    assert received.format("roi") == "application/json"
    assert received.raw("raw") == b"\x01\x02"


def test_a_new_epoch_is_announced_at_once(meta: SourceMetadata, wire: Wire) -> None:
    meta.do_work()
    wire.take()
    meta.attached(77, 10)
    meta.do_work()
    assert [announce.epoch for announce in announces(wire.take())] == [10]


def test_without_a_lease_nothing_is_said(meta: SourceMetadata, wire: Wire, clock: ManualClock) -> None:
    meta.detached()
    meta["a"] = 1
    clock.advance(10 * SECOND)
    assert meta.do_work() == 0
    assert wire.take() == []


@pytest.mark.parametrize("room", [0, 1])
def test_what_is_refused_is_sent_again_soon_but_not_in_every_turn(
    meta: SourceMetadata, wire: Wire, clock: ManualClock, room: int
) -> None:
    wire.room = room
    meta.do_work()
    wire.room = None
    assert meta.do_work() == 0
    clock.advance(SECOND // 10)
    wire.take()
    meta.do_work()
    sent = wire.take()
    assert len(announces(sent)) == len(metas(sent)) == 1
    assert meta.statistics()["refused"] == 1


# The readers' cache


def announce_of(stream_id: int = STREAM, **changes: Any) -> DataSourceAnnounce:
    fields: dict[str, Any] = {"producer_id": 77, "epoch": 9, "meta_version": 1, "name": "camera"}
    return DataSourceAnnounce(stream_id=stream_id, **{**fields, **changes})


def meta_of(version: int = 1, stream_id: int = STREAM, timestamp_ns: int = 0, **values: Any) -> DataSourceMeta:
    return DataSourceMeta(
        stream_id=stream_id,
        meta_version=version,
        timestamp_ns=timestamp_ns,
        attributes=tuple(attribute_of(key, value) for key, value in values.items()),
    )


@pytest.fixture
def cache(clock: ManualClock) -> MetadataCache:
    return MetadataCache(clock, follow=[STREAM], versions=3)


def test_a_frame_finds_the_metadata_of_its_version(cache: MetadataCache, meta: SourceMetadata, wire: Wire) -> None:
    for gain in range(5):
        meta["gain"] = gain
        meta.do_work()
    tell(cache, wire.take())
    found = {version: cache.get(STREAM, version) for version in range(8)}
    assert {version: metadata["gain"] for version, metadata in found.items() if metadata} == {4: 2, 5: 3, 6: 4}
    assert cache.latest(STREAM) is found[6]


def test_repeats_of_a_version_are_kept_once(cache: MetadataCache) -> None:
    cache.on_meta(meta_of(gain=1))
    first = cache.get(STREAM, 1)
    before = cache.statistics()
    cache.on_meta(meta_of(gain=1))
    assert cache.get(STREAM, 1) is first
    assert cache.statistics() == before


def test_a_version_that_is_still_repeated_outlives_others(cache: MetadataCache) -> None:
    for version in (1, 2, 3, 1, 4):
        cache.on_meta(meta_of(version))
    assert [version for version in range(6) if cache.get(STREAM, version) is not None] == [1, 3, 4]


def test_the_announced_version_is_the_latest(cache: MetadataCache) -> None:
    assert cache.latest(STREAM) is None
    cache.on_meta(meta_of(2, gain=2))
    cache.on_meta(meta_of(1, gain=1))
    assert cache.latest(STREAM) is cache.get(STREAM, 1)
    cache.on_announce(announce_of(meta_version=2))
    assert cache.latest(STREAM) is cache.get(STREAM, 2)
    cache.on_announce(announce_of(meta_version=3))
    assert cache.latest(STREAM) is cache.get(STREAM, 1)


@pytest.mark.clause("W-10.3.2-04")
def test_unknown_keys_and_formats_do_not_hinder_the_known_ones(cache: MetadataCache) -> None:
    unknown = Attribute(key="x-vendor", format="application/x-vendor", value=b"\xff\x00")
    broken = Attribute(key="broken", format="application/json", value=b"{")
    known = attribute_of("camera_serial", "SN-1")
    cache.on_meta(msgspec.structs.replace(meta_of(), attributes=(unknown, broken, known)))
    metadata = cache.get(STREAM, 1)
    assert metadata is not None
    assert dict(metadata) == {"x-vendor": b"\xff\x00", "camera_serial": "SN-1"}
    assert cache.counts["malformed values"] == 1


def test_of_a_key_that_comes_twice_the_last_counts() -> None:
    metadata = Metadata(STREAM, 1, 0, (attribute_of("k", 1), attribute_of("k", 2)))
    assert dict(metadata) == {"k": 2}


def test_streams_that_are_not_followed_are_known_by_name_only(cache: MetadataCache) -> None:
    cache.on_announce(announce_of(STREAM + 1, name="other"))
    cache.on_meta(meta_of(stream_id=STREAM + 1, gain=1))
    assert cache.get(STREAM + 1, 1) is None
    assert [source.stream_id for source in cache.find("other")] == [STREAM + 1]
    cache.follow(STREAM + 1)
    cache.on_meta(meta_of(stream_id=STREAM + 1, gain=1))
    assert cache.get(STREAM + 1, 1) is not None
    cache.unfollow(STREAM + 1)
    assert cache.get(STREAM + 1, 1) is None
    assert cache.statistics()["bytes"] == 0


def test_a_cache_may_follow_all_streams(clock: ManualClock) -> None:
    cache = MetadataCache(clock, follow=None)
    cache.on_meta(meta_of(stream_id=5, gain=1))
    cache.unfollow(5)
    assert cache.get(5, 1) is not None


def test_the_announce_of_an_older_epoch_is_ignored(cache: MetadataCache, clock: ManualClock) -> None:
    cache.on_announce(announce_of(epoch=9, name="new"))
    clock.advance(2 * SECOND)
    cache.on_announce(announce_of(epoch=8, name="old", producer_id=1))
    assert [source.name for source in cache.sources()] == ["new"]
    assert cache.counts["older epochs"] == 1


def test_a_lower_epoch_counts_once_the_higher_fell_silent(cache: MetadataCache, clock: ManualClock) -> None:
    cache.on_announce(announce_of(epoch=2**64 - 1, name="impostor"))
    clock.advance(3 * SECOND + 1)
    cache.on_announce(announce_of(epoch=9))
    assert [source.name for source in cache.sources()] == ["camera"]


def test_another_producer_counts_its_versions_anew(cache: MetadataCache) -> None:
    cache.on_announce(announce_of())
    cache.on_meta(meta_of(1, timestamp_ns=50, gain=1))
    cache.on_meta(meta_of(2, timestamp_ns=60, gain=2))
    cache.on_announce(announce_of(epoch=10))
    assert cache.get(STREAM, 2) is not None, "the same producer in a new epoch"
    cache.on_announce(announce_of(epoch=11, producer_id=78))
    assert cache.get(STREAM, 2) is None
    cache.on_meta(meta_of(1, timestamp_ns=5, gain=7))
    metadata = cache.get(STREAM, 1)
    assert metadata is not None
    assert metadata["gain"] == 7


def test_a_late_word_does_not_undo_a_newer_one(cache: MetadataCache) -> None:
    cache.on_meta(meta_of(timestamp_ns=50, gain="new"))
    cache.on_meta(meta_of(timestamp_ns=40, gain="old"))
    metadata = cache.get(STREAM, 1)
    assert metadata is not None
    assert metadata["gain"] == "new"
    assert cache.counts["older versions"] == 1


def test_sources_are_found_by_name_while_they_are_announced(cache: MetadataCache, clock: ManualClock) -> None:
    cache.on_announce(announce_of(3, name="spectro"))
    cache.on_announce(announce_of(2))
    cache.on_announce(announce_of(1))
    cache.on_announce(announce_of(4, name=""))
    assert [source.stream_id for source in cache.find("camera")] == [1, 2]
    assert cache.find("") == cache.find("cam") == []
    clock.advance(3 * SECOND)
    cache.on_announce(announce_of(2))
    clock.advance(1)
    assert [source.stream_id for source in cache.find("camera")] == [2]
    assert cache.source(1) is None
    assert cache.source(99) is None


def test_a_source_has_its_id_and_tags_from_its_attributes(cache: MetadataCache) -> None:
    cache.on_announce(announce_of(summary="uint16 2048x2048"))
    cache.on_meta(meta_of(data_source_id=4711, tags=["wfs", "lab"]))
    assert cache.source(STREAM) == Source(
        stream_id=STREAM,
        producer_id=77,
        epoch=9,
        meta_version=1,
        name="camera",
        summary="uint16 2048x2048",
        data_source_id=4711,
        tags=("wfs", "lab"),
    )


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, 0),
        ("4711", 4711),
        (2**64 - 2, 2**64 - 2),
        (2**64 - 1, None),
        (-1, None),
        (1.5, None),
        (True, None),
        ("x", None),
        ("1" * 5_000, None),
        ([1], None),
        (b"7", None),
    ],
)
def test_a_data_source_id_is_an_unsigned_number_or_none(value: object, expected: int | None) -> None:
    assert Metadata(STREAM, 1, 0, (attribute_of("data_source_id", value),)).data_source_id == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (["a", "b", "a"], ("a", "b")),
        ("a, b,,c", ("a", "b", "c")),
        (["a", 1, None, "ü", ""], ("a",)),
        ({"a": 1}, ()),
        (7, ()),
        (b"a", ()),
    ],
)
def test_tags_are_a_list_or_text_with_commas(value: object, expected: tuple[str, ...]) -> None:
    assert Metadata(STREAM, 1, 0, (attribute_of("tags", value),)).tags == expected


# Bounds


def test_a_flood_of_streams_does_not_push_out_the_ones_that_live(clock: ManualClock) -> None:
    cache = MetadataCache(clock, follow=[STREAM], max_streams=10)
    for stream_id in range(1_000):
        cache.on_announce(announce_of(stream_id))
    assert cache.statistics()["streams"] == 10
    assert cache.counts["too many streams"] == 990
    cache.on_announce(announce_of(STREAM, name="mine"))
    assert len(cache.find("mine")) == 1
    clock.advance(3 * SECOND + 1)
    cache.on_announce(announce_of(500))
    assert [source.stream_id for source in cache.sources()] == [500]
    assert cache.statistics()["streams"] == 2


def test_oversized_metadata_is_dropped_and_counted(clock: ManualClock) -> None:
    cache = MetadataCache(clock, follow=None, max_attributes=3, max_bytes=10_000)
    cache.on_meta(meta_of(a=1, b=2, c=3, d=4))
    cache.on_meta(meta_of(a=bytes(10_000)))
    cache.on_announce(announce_of(name="n" * ANNOUNCE_TEXT_LIMIT, summary="s"))
    assert cache.counts["oversized"] == 3
    assert cache.statistics()["streams"] == 0


def test_the_stream_that_takes_most_gives_first(clock: ManualClock) -> None:
    cache = MetadataCache(clock, follow=None, versions=100, max_bytes=20_000)
    cache.on_meta(meta_of(1, stream_id=1, gain=1))
    for version in range(100):
        cache.on_meta(meta_of(version, stream_id=2, table=bytes(1_000)))
    assert cache.get(1, 1) is not None
    assert cache.get(2, 99) is not None
    assert cache.get(2, 0) is None
    assert cache.statistics()["bytes"] <= 20_000


arriving = st.one_of(
    st.builds(announce_of, st.integers(0, 12), epoch=st.integers(0, 3), producer_id=st.integers(1, 2)),
    st.builds(
        meta_of,
        st.integers(0, 8),
        st.integers(0, 12),
        st.integers(0, 3),
        table=st.binary(max_size=1_500),
    ),
    st.integers(0, 2 * SECOND),
)


@given(st.lists(arriving, max_size=60), st.booleans())
def test_memory_is_bounded_and_counted_whatever_comes(events: list[Message | int], follow_all: bool) -> None:
    clock = ManualClock()
    cache = MetadataCache(clock, follow=None if follow_all else [1, 2], versions=3, max_streams=6, max_bytes=8_000)
    for event in events:
        if isinstance(event, int):
            clock.advance(event)
        else:
            tell(cache, [event])
        kept = [cache.get(stream, version) for stream in range(13) for version in range(9)]
        total = sum(size_of(metadata.attributes) for metadata in kept if metadata is not None)
        assert cache.statistics()["bytes"] == total <= 8_000
        assert cache.statistics()["versions"] <= 3 * cache.statistics()["streams"]
        assert cache.statistics()["streams"] <= 6 + (0 if follow_all else 2)


def test_a_cache_keeps_at_least_one_version(clock: ManualClock) -> None:
    with pytest.raises(ValueError, match="at least one"):
        MetadataCache(clock, versions=0)


# Both


@given(st.lists(st.tuples(st.sampled_from("abc"), st.none() | st.integers(0, 3)), max_size=25))
def test_readers_see_every_version_as_the_producer_had_it(changes: list[tuple[str, int | None]]) -> None:
    wire, clock = Wire(), ManualClock()
    meta = producer(wire, clock)
    meta.attached(1, 1)
    cache = MetadataCache(clock, follow=[STREAM], versions=100)
    model: dict[int, dict[str, int]] = {1: {}}
    meta.do_work()
    for key, value in changes:
        if value is None:
            meta.pop(key, None)
        else:
            meta[key] = value
        assert meta.version - max(model) in (0, 1)
        model[meta.version] = dict(meta)
        meta.do_work()
        clock.advance(SECOND // 3)
    tell(cache, wire.take())
    assert {version: dict(cache.get(STREAM, version) or {}) for version in model} == model
    assert cache.statistics()["versions"] == len(model)
