"""Message header, group header, variable data and null values, byte by byte."""

from __future__ import annotations

import struct

import pytest

from framepool.errors import DecodeError, EncodeError, UnsupportedMessage
from framepool.wire._generated.bridge_902 import BridgeFrameChunk
from framepool.wire._generated.control_900 import (
    ConsumerHello,
    DataSourceMeta,
    FrameDescriptor,
    QosProducer,
    ShmPoolAnnounce,
)
from framepool.wire._generated.discovery_910 import DiscoveryRequest, DiscoveryResponse
from framepool.wire._generated.driver_901 import (
    ResponseCode,
    Role,
    ShmAttachRequest,
    ShmAttachResponse,
    ShmDetachResponse,
)
from framepool.wire._generated.event_905 import EventMessage, Format
from framepool.wire.dispatch import MESSAGES
from framepool.wire.message import Message
from tests.golden.vectors import example

DESCRIPTOR = FrameDescriptor(stream_id=1, epoch=2, seq=3)
GIBIBYTE = 1_073_741_824


def encoded(name: str, case: str) -> bytes:
    return example(name, case).encoded


@pytest.mark.clause("W-16-01", "D-A-01", "B-11-01", "N-10-05")
def test_header_names_schema_and_version_in_little_endian() -> None:
    assert encoded("FrameDescriptor", "typical")[4:8] == bytes.fromhex("84 03 01 00")
    assert DESCRIPTOR.encode()[4:8] == bytes.fromhex("84 03 01 00")
    assert ShmDetachResponse(correlation_id=1, code=ResponseCode.OK).encode()[4:8] == bytes.fromhex("85 03 01 00")
    chunk = example("BridgeFrameChunk", "last_chunk").decode()
    assert chunk.encode()[2:8] == bytes.fromhex("01 00 86 03 01 00")
    request = DiscoveryRequest(request_id=1, client_id=2, response_stream_id=3)
    assert request.encode()[2:8] == bytes.fromhex("01 00 8e 03 01 00")
    assert DiscoveryResponse.HEADER_BYTES[2:8] == bytes.fromhex("02 00 8e 03 01 00")


@pytest.mark.clause("D-A-02", "W-16-03", "N-15-01")
@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)
def test_header_is_block_length_template_schema_version_of_two_bytes_each(message: type[Message]) -> None:
    expected = (message.BLOCK_LENGTH, message.TEMPLATE_ID, message.SCHEMA_ID, message.SCHEMA_VERSION)
    assert struct.pack("<HHHH", *expected) == message.HEADER_BYTES
    assert message.BLOCK.size == message.BLOCK_LENGTH


@pytest.mark.clause("D-A-03", "W-16-03", "N-15-01")
def test_group_header_is_block_length_and_count_of_two_bytes_each() -> None:
    assert encoded("ShmAttachResponse", "ok")[8 + 51 :][:4] == bytes.fromhex("0a 00 02 00")
    announce = example("ShmPoolAnnounce", "typical").decode()
    assert announce.encode()[8 + 35 :][:4] == bytes.fromhex("0a 00 02 00")
    request = example("DiscoveryRequest", "typical").decode()
    assert request.encode()[8 + 32 :][:4] == bytes.fromhex("00 00 02 00")


@pytest.mark.clause("D-A-04", "W-16-04", "N-15-01")
def test_text_is_a_four_byte_length_and_ascii() -> None:
    response = ShmDetachResponse(correlation_id=1, code=ResponseCode.REJECTED, error_message="no")
    assert response.encode()[20:] == b"\x02\0\0\0no"
    assert ShmDetachResponse.decode(response.encode()).error_message == "no"
    request = DiscoveryRequest(request_id=1, client_id=2, response_stream_id=3, response_channel="aeron:ipc")
    assert request.encode()[44:] == b"\x09\0\0\0aeron:ipc" + b"\0\0\0\0"
    meta = example("DataSourceMeta", "two_attributes").decode()
    assert b"\x03\0\0\x001.5" in meta.encode()


@pytest.mark.clause("D-A-04", "W-16-04", "N-15-01")
@pytest.mark.parametrize(
    ("message", "start"),
    [
        (encoded("ShmDetachResponse", "rejected"), 20),
        (encoded("DataSourceAnnounce", "typical"), 28),
        (encoded("DataSourceMeta", "two_attributes"), 8 + 16 + 4),
        (encoded("DiscoveryRequest", "no_filters"), 44),
    ],
    ids=["ascii-901", "ascii-900", "ascii-in-group-900", "ascii-910"],
)
def test_length_of_data_above_the_maximum_or_past_the_end_is_refused(message: bytes, start: int) -> None:
    kind = next(each for each in MESSAGES if message.startswith(each.HEADER_BYTES))
    kind.decode(message)

    def lie(length: int) -> bytes:
        return message[:start] + struct.pack("<I", length) + message[start + 4 :]

    with pytest.raises(DecodeError, match="a length of 1073741825, at most 1073741824"):
        kind.decode(lie(GIBIBYTE + 1))
    with pytest.raises(DecodeError, match=f"needs {GIBIBYTE} bytes"):
        kind.decode(lie(GIBIBYTE))
    with pytest.raises(DecodeError, match="are left"):
        kind.decode(lie(len(message) - start - 3))


def test_text_outside_of_ascii_is_refused_both_ways() -> None:
    with pytest.raises(EncodeError, match="error_message: 'fünf' is not US-ASCII"):
        ShmDetachResponse(correlation_id=1, code=ResponseCode.OK, error_message="fünf").encode()
    good = ShmDetachResponse(correlation_id=1, code=ResponseCode.OK, error_message="abc").encode()
    with pytest.raises(DecodeError, match="0xff"):
        ShmDetachResponse.decode(good[:-1] + b"\xff")


def test_data_above_the_maximum_is_not_encoded() -> None:
    meta = example("MetaBlobChunk", "empty").fields
    too_much = memoryview(bytes(GIBIBYTE + 1))
    chunk = example("MetaBlobChunk", "empty").message(
        stream_id=meta["streamId"], meta_version=3, chunk_offset=0, bytes_=too_much
    )
    with pytest.raises(EncodeError, match="1073741825 bytes, at most 1073741824"):
        chunk.encode()


@pytest.mark.clause("W-10.1-01")
def test_absent_fields_of_the_wire_schema_are_their_null_values() -> None:
    bare = DESCRIPTOR.encode_body()
    assert bare[20:28] == b"\xff" * 8
    assert bare[28:32] == b"\xff" * 4
    assert bare[32:40] == b"\0" * 8
    hello = example("ConsumerHello", "nulls_empty").decode()
    assert isinstance(hello, ConsumerHello)
    assert hello.encode_body()[19:31] == b"\xff" * 12
    assert hello.progress_interval_us is None
    assert hello.progress_bytes_delta is None
    assert hello.progress_major_delta_units is None
    qos = QosProducer(stream_id=1, producer_id=2, epoch=3, current_seq=4)
    assert qos.encode_body()[24:] == b"\xff" * 4
    assert QosProducer.decode(qos.encode()).watermark is None


@pytest.mark.clause("W-10.2.1-16")
def test_trace_id_zero_is_no_trace_and_any_other_is_kept() -> None:
    assert DESCRIPTOR.encode_body()[32:] == bytes(8)
    assert FrameDescriptor.decode(DESCRIPTOR.encode()).trace_id is None
    traced = FrameDescriptor(stream_id=1, epoch=2, seq=3, trace_id=42)
    assert traced.encode_body()[32:] == struct.pack("<Q", 42)
    assert FrameDescriptor.decode(traced.encode()).trace_id == 42


@pytest.mark.clause("D-4.2-12", "D-A-14")
def test_absent_fields_of_an_attach_response_are_their_null_values() -> None:
    response = ShmAttachResponse(correlation_id=1, code=ResponseCode.REJECTED)
    assert response.encode_body()[12:51] == b"\xff" * 39
    decoded = ShmAttachResponse.decode(response.encode())
    for name in (
        "lease_id",
        "lease_expiry_timestamp_ns",
        "stream_id",
        "epoch",
        "layout_version",
        "header_nslots",
        "header_slot_bytes",
        "max_dims",
    ):
        assert getattr(decoded, name) is None


@pytest.mark.clause("D-4.2-14")
def test_absent_enumerations_are_255() -> None:
    request = ShmAttachRequest(
        correlation_id=1, stream_id=2, client_id=3, role=Role.CONSUMER, expected_layout_version=0, max_dims=0
    )
    assert request.encode_body()[22:24] == b"\xff\xff"
    decoded = ShmAttachRequest.decode(request.encode())
    assert decoded.publish_mode is None
    assert decoded.require_hugepages is None


@pytest.mark.clause("N-5.0-01")
def test_absent_filters_of_a_discovery_request_are_their_null_values() -> None:
    request = DiscoveryRequest(request_id=1, client_id=2, response_stream_id=3)
    assert request.encode_body()[16:32] == b"\xff" * 16
    decoded = DiscoveryRequest.decode(request.encode())
    assert (decoded.stream_id, decoded.producer_id, decoded.data_source_id) == (None, None, None)


@pytest.mark.clause("N-5.0-02", "N-5.0-03")
def test_absent_text_has_length_zero_and_length_zero_is_absent() -> None:
    request = DiscoveryRequest(request_id=1, client_id=2, response_stream_id=3, response_channel="c")
    assert request.encode().endswith(b"\x01\0\0\0c" + b"\0\0\0\0")
    assert DiscoveryRequest.decode(request.encode()).data_source_name == ""


@pytest.mark.clause("N-5.0-04")
def test_text_of_a_discovery_request_comes_after_its_tags() -> None:
    tags, channel, name = b"\0\0\x02\0\x06\0\0\0camera\x04\0\0\0lab1", b"\x09\0\0\0aeron:ipc", b"\x08\0\0\0camera-1"
    assert encoded("DiscoveryRequest", "typical")[8 + 32 :] == tags + channel + name
    decoded = example("DiscoveryRequest", "typical").decode()
    assert decoded.encode_body()[32:] == tags + channel + name


@pytest.mark.clause("S-5.1-04")
def test_absent_reference_of_an_event_is_its_null_values() -> None:
    event = EventMessage(timestamp_ns=1, correlation_id=2, format=Format.NOTHING)
    assert event.encode_body()[20:40] == b"\xff" * 20
    decoded = EventMessage.decode(event.encode())
    assert (decoded.ref_stream_id, decoded.ref_epoch, decoded.ref_seq) == (None, None, None)


def test_null_value_given_as_a_value_is_refused() -> None:
    with pytest.raises(EncodeError, match=r"stream_id: 4294967295 is the null value .* pass None"):
        DiscoveryRequest(request_id=1, client_id=2, response_stream_id=3, stream_id=2**32 - 1).encode()
    with pytest.raises(EncodeError, match="trace_id: 0 is the null value"):
        FrameDescriptor(stream_id=1, epoch=2, seq=3, trace_id=0).encode()


@pytest.mark.clause("B-11-03")
@pytest.mark.parametrize(
    ("field", "offset", "maximum"),
    [
        ("chunk_index", 20, 65535),
        ("chunk_count", 24, 65535),
        ("chunk_length", 32, 65535),
        ("payload_length", 36, GIBIBYTE),
    ],
)
def test_number_above_its_maximum_is_refused_both_ways(field: str, offset: int, maximum: int) -> None:
    good = {
        "stream_id": 1,
        "epoch": 2,
        "seq": 3,
        "chunk_index": 0,
        "chunk_count": 1,
        "chunk_offset": 0,
        "chunk_length": 0,
        "payload_length": 0,
        "header_included": 0,
    }
    highest = BridgeFrameChunk(**{**good, field: maximum})  # type: ignore[arg-type]
    assert getattr(BridgeFrameChunk.decode(highest.encode()), field) == maximum
    with pytest.raises(EncodeError, match=f"BridgeFrameChunk.{field}: {maximum + 1} exceeds"):
        BridgeFrameChunk(**{**good, field: maximum + 1}).encode()  # type: ignore[arg-type]
    tampered = bytearray(highest.encode())
    struct.pack_into("<I", tampered, 8 + offset, maximum + 1)
    with pytest.raises(DecodeError, match="exceeds the maximum"):
        BridgeFrameChunk.decode(tampered)


@pytest.mark.clause("B-11-03")
def test_header_bytes_of_a_chunk_are_at_most_256() -> None:
    chunk = example("BridgeFrameChunk", "zeros_empty").decode()
    assert isinstance(chunk, BridgeFrameChunk)
    body = chunk.encode()[: 8 + 41]
    assert BridgeFrameChunk.decode(body + struct.pack("<I", 256) + bytes(256 + 4)).header_bytes == bytes(256)
    with pytest.raises(DecodeError, match="a length of 257, at most 256"):
        BridgeFrameChunk.decode(body + struct.pack("<I", 257) + bytes(257 + 4))
    with pytest.raises(DecodeError, match="at most 1073741824"):
        BridgeFrameChunk.decode(body + struct.pack("<II", 0, GIBIBYTE + 1))
    fields = {name: getattr(chunk, name) for name in chunk.__struct_fields__}
    BridgeFrameChunk(**{**fields, "header_bytes": bytes(256)}).encode()
    with pytest.raises(EncodeError, match="header_bytes: 257 bytes, at most 256"):
        BridgeFrameChunk(**{**fields, "header_bytes": bytes(257)}).encode()
    with pytest.raises(EncodeError, match="payload_bytes: 1073741825 bytes"):
        BridgeFrameChunk(**{**fields, "payload_bytes": memoryview(bytes(GIBIBYTE + 1))}).encode()


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"seq": -1}, "FrameDescriptor.seq: -1 does not fit"),
        ({"seq": 2**64}, "FrameDescriptor.seq: 18446744073709551616 does not fit"),
        ({"stream_id": 2**32}, "FrameDescriptor.stream_id: 4294967296 does not fit"),
        ({"epoch": None}, "FrameDescriptor.epoch: None does not fit"),
        ({"epoch": "7"}, "FrameDescriptor.epoch: '7' does not fit"),
        ({"epoch": 1.5}, "FrameDescriptor.epoch: 1.5 does not fit"),
        ({"meta_version": "3"}, "FrameDescriptor.meta_version: '3' does not fit"),
    ],
)
def test_value_that_does_not_fit_is_named(values: dict[str, object], text: str) -> None:
    fields: dict[str, object] = {"stream_id": 1, "epoch": 2, "seq": 3, **values}
    with pytest.raises(EncodeError) as caught:
        FrameDescriptor(**fields).encode()  # type: ignore[arg-type]
    assert str(caught.value).startswith(text)


@pytest.mark.parametrize("case", ["dims", "strides", "pad"])
def test_array_of_the_wrong_length_is_named(case: str) -> None:
    header = example("TensorHeader", "image_u16_row_major").decode()
    fields = {name: getattr(header, name) for name in header.__struct_fields__}
    for wrong in (fields[case][:-1], fields[case] + fields[case][:1]):
        with pytest.raises(EncodeError, match=f"TensorHeader.{case}"):
            type(header)(**{**fields, case: wrong}).encode()


def test_dims_and_strides_that_only_sum_up_are_refused() -> None:
    header = example("TensorHeader", "image_u16_row_major").decode()
    fields = {name: getattr(header, name) for name in header.__struct_fields__}
    with pytest.raises(EncodeError, match=r"TensorHeader\.dims"):
        type(header)(**{**fields, "dims": (1,) * 7, "strides": (1,) * 9}).encode()


def test_more_entries_than_a_group_can_count_are_refused() -> None:
    meta = example("DataSourceMeta", "two_attributes").decode()
    assert isinstance(meta, DataSourceMeta)
    many = DataSourceMeta(stream_id=1, meta_version=2, timestamp_ns=3, attributes=meta.attributes * 32768)
    with pytest.raises(EncodeError, match="65536 entries, at most 65535"):
        many.encode()


@pytest.mark.parametrize(
    ("header", "text"),
    [
        ((40, 4, 901, 1), "unsupported schema 901"),
        ((40, 4, 900, 2), "unsupported version 2 of schema 900"),
        ((40, 4, 900, 0), "unsupported version 0 of schema 900"),
        ((40, 5, 900, 1), "unsupported template 5 of schema 900"),
        ((44, 4, 900, 1), "unsupported dialect: FrameDescriptor with a block of 44 bytes"),
        ((39, 4, 900, 1), "unsupported dialect"),
        ((44, 5, 901, 2), "unsupported schema"),
        ((44, 5, 900, 2), "unsupported version"),
        ((44, 5, 900, 1), "unsupported template"),
    ],
)
def test_header_is_checked_schema_first_then_version_template_and_block(
    header: tuple[int, int, int, int], text: str
) -> None:
    with pytest.raises(UnsupportedMessage, match=text):
        FrameDescriptor.decode(struct.pack("<HHHH", *header) + DESCRIPTOR.encode_body())


def test_group_with_entries_of_another_length_is_another_dialect() -> None:
    announce = bytearray(encoded("ShmPoolAnnounce", "typical"))
    announce[8 + 35] = 12
    with pytest.raises(UnsupportedMessage, match=r"unsupported dialect: ShmPoolAnnounce\.payload_pools"):
        ShmPoolAnnounce.decode(announce)


class TestNewerEvents:
    """Service 5.1: a compatible schema with more fields is read as far as it is known."""

    EVENT = EventMessage(timestamp_ns=1, correlation_id=2, format=Format.STRING, tag="service:x", key="k", value=b"v")

    def rewritten(self, block_length: int, version: int, more_block: bytes = b"", more_data: bytes = b"") -> bytes:
        body = self.EVENT.encode_body()
        return struct.pack("<HHHH", block_length, 1, 905, version) + body[:40] + more_block + body[40:] + more_data

    @pytest.mark.clause("S-5.1-01")
    def test_fields_appended_to_the_block_are_skipped(self) -> None:
        assert EventMessage.decode(self.rewritten(48, 1, b"appended")) == self.EVENT

    @pytest.mark.clause("S-5.1-01")
    def test_newer_version_with_more_fields_and_more_data_is_read(self) -> None:
        assert EventMessage.decode(self.rewritten(48, 2, b"appended", b"\x01\0\0\0x")) == self.EVENT

    def test_shorter_block_and_older_version_are_refused(self) -> None:
        with pytest.raises(UnsupportedMessage, match="unsupported dialect"):
            EventMessage.decode(self.rewritten(36, 1))
        with pytest.raises(UnsupportedMessage, match="unsupported version 0"):
            EventMessage.decode(self.rewritten(40, 0))

    def test_block_longer_than_the_buffer_is_refused(self) -> None:
        with pytest.raises(DecodeError, match="are left"):
            EventMessage.decode(self.rewritten(65535, 1))

    def test_bytes_after_our_own_version_are_refused(self) -> None:
        with pytest.raises(DecodeError, match="follow the end"):
            EventMessage.decode(self.rewritten(48, 1, b"appended", b"x"))


def test_buffer_too_small_or_read_only_is_refused_for_encoding() -> None:
    for buffer, offset in ((bytearray(47), 0), (bytearray(48), 1), (bytearray(60), -1), (bytes(48), 0)):
        with pytest.raises(EncodeError, match="needs 48 writable bytes"):
            DESCRIPTOR.encode_into(buffer, offset)
