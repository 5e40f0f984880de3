"""The gate: schema, version, template and dialect in this order, and what an agent sees of bad input."""

from __future__ import annotations

import struct

import pytest

from framepool.errors import DecodeError, UnsupportedMessage
from framepool.wire._generated.bridge_902 import BridgeFrameChunk
from framepool.wire._generated.control_900 import FrameDescriptor, ShmPoolAnnounce
from framepool.wire._generated.driver_901 import ShmAttachRequest
from framepool.wire._generated.event_905 import EventMessage
from framepool.wire.dispatch import MESSAGES, Dispatcher, Drop, decode, message_of, peek_header
from framepool.wire.message import Message, MessageHeader
from tests.golden.vectors import example

DESCRIPTOR = example("FrameDescriptor", "typical").encoded
ANNOUNCE = example("ShmPoolAnnounce", "typical").encoded
CHUNK = example("BridgeFrameChunk", "last_chunk").encoded


def with_header(buffer: bytes, *header: int) -> bytes:
    return struct.pack("<HHHH", *header) + buffer[8:]


def test_header_can_be_read_before_anything_else() -> None:
    assert peek_header(DESCRIPTOR) == MessageHeader(40, 4, 900, 1)
    assert peek_header(memoryview(CHUNK)) == MessageHeader(41, 1, 902, 1)
    with pytest.raises(DecodeError, match="the buffer has 7"):
        peek_header(DESCRIPTOR[:7])


def test_no_two_messages_share_a_header() -> None:
    assert len({(message.SCHEMA_ID, message.TEMPLATE_ID) for message in MESSAGES}) == len(MESSAGES) == 29


@pytest.mark.clause("B-10-11")
def test_template_one_of_several_schemas_on_one_stream_is_told_apart() -> None:
    assert isinstance(decode(ANNOUNCE), ShmPoolAnnounce)
    assert isinstance(decode(CHUNK), BridgeFrameChunk)
    seen: list[Message] = []
    dispatcher = Dispatcher()
    dispatcher.on(ShmPoolAnnounce, seen.append)
    dispatcher.on(BridgeFrameChunk, seen.append)
    for buffer in (ANNOUNCE, CHUNK, ANNOUNCE):
        assert dispatcher(buffer) is None
    assert [type(each) for each in seen] == [ShmPoolAnnounce, BridgeFrameChunk, ShmPoolAnnounce]
    assert [each.encode() for each in seen] == [ANNOUNCE, CHUNK, ANNOUNCE]


@pytest.mark.parametrize(
    ("header", "drop"),
    [
        ((40, 4, 899, 1), Drop.SCHEMA),
        ((0, 0, 0, 0), Drop.SCHEMA),
        ((40, 4, 900, 2), Drop.VERSION),
        ((40, 99, 900, 2), Drop.VERSION),
        ((40, 99, 900, 1), Drop.TEMPLATE),
        ((44, 4, 900, 1), Drop.DIALECT),
        ((27, 1, 901, 1), Drop.DIALECT),
        ((54, 2, 901, 1), Drop.DIALECT),
        ((53, 1, 902, 1), Drop.DIALECT),
        ((39, 1, 905, 1), Drop.DIALECT),
        ((40, 1, 905, 0), Drop.VERSION),
        ((40, 2, 905, 2), Drop.TEMPLATE),
    ],
)
def test_unknown_header_is_refused_by_kind(header: tuple[int, int, int, int], drop: Drop) -> None:
    assert message_of(MessageHeader(*header)) is drop
    buffer = with_header(DESCRIPTOR, *header)
    with pytest.raises(UnsupportedMessage, match=drop):
        decode(buffer)
    dispatcher = Dispatcher()
    assert dispatcher(buffer) is drop
    assert dispatcher.statistics()[drop] == 1


def test_newer_event_passes_the_gate() -> None:
    assert message_of(MessageHeader(48, 1, 905, 2)) is EventMessage


def test_agent_drops_and_counts_what_it_cannot_read() -> None:
    seen: list[FrameDescriptor] = []
    dispatcher = Dispatcher()
    dispatcher.on(FrameDescriptor, seen.append)
    dispatcher.on(ShmPoolAnnounce, seen.append)  # type: ignore[arg-type]
    foreign_group = bytearray(ANNOUNCE)
    foreign_group[8 + 35] = 12
    assert dispatcher(DESCRIPTOR) is None
    assert dispatcher(b"") is Drop.MALFORMED
    assert dispatcher(DESCRIPTOR[:-1]) is Drop.MALFORMED
    assert dispatcher(ANNOUNCE + b"x") is Drop.MALFORMED
    assert dispatcher(memoryview(DESCRIPTOR * 2)[::2]) is Drop.MALFORMED
    assert dispatcher(foreign_group) is Drop.DIALECT
    assert dispatcher(CHUNK) is Drop.UNHANDLED
    assert seen == [FrameDescriptor.decode(DESCRIPTOR)]
    assert dispatcher.statistics() == {
        "handled": 1,
        "unsupported schema": 0,
        "unsupported version": 0,
        "unsupported template": 0,
        "unsupported dialect": 1,
        "malformed": 4,
        "unhandled": 1,
    }


def test_error_of_a_handler_is_not_taken_for_bad_input() -> None:
    def fail(message: FrameDescriptor) -> None:
        raise DecodeError("from the handler")

    dispatcher = Dispatcher()
    dispatcher.on(FrameDescriptor, fail)
    with pytest.raises(DecodeError, match="from the handler"):
        dispatcher(DESCRIPTOR)
    assert dispatcher.statistics()["malformed"] == 0


def test_message_of_another_schema_is_not_decoded_by_the_wrong_class() -> None:
    with pytest.raises(UnsupportedMessage, match="unsupported schema 900"):
        ShmAttachRequest.decode(ANNOUNCE)
