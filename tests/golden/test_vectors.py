"""Every vector decodes to its fields and encodes to its bytes; each message's layout clauses stand on that."""

from __future__ import annotations

import json

import pytest

from framepool.errors import DecodeError
from framepool.wire import dispatch
from framepool.wire.describe import build, describe, vector
from tests.golden import hand_vectors
from tests.golden.vectors import ALL, BY_HAND, HERE, SBE_TOOL, Vector

CLAUSES = {
    "ShmPoolAnnounce": ("W-16-12", "W-16-13"),
    "ConsumerHello": ("W-16-14", "W-16-15"),
    "ConsumerConfig": ("W-16-16",),
    "FrameDescriptor": ("W-16-17",),
    "FrameProgress": ("W-16-18",),
    "QosConsumer": ("W-16-19",),
    "QosProducer": ("W-16-20",),
    "DataSourceAnnounce": ("W-16-21",),
    "DataSourceMeta": ("W-16-22",),
    "ControlResponse": ("W-16-23",),
    "ShmRegionSuperblock": ("W-7.1-01", "W-7.1-02"),
    "SlotHeader": ("W-8.2-05",),
    "TensorHeader": ("W-8.2-11",),
    "ShmAttachRequest": ("D-A-11",),
    "ShmAttachResponse": ("D-A-12", "D-A-13"),
    "ShmDetachRequest": ("D-A-15",),
    "ShmDetachResponse": ("D-A-16",),
    "ShmLeaseKeepalive": ("D-A-17",),
    "ShmDriverShutdown": ("D-A-18",),
    "ShmLeaseRevoked": ("D-A-19",),
    "BridgeFrameChunk": ("B-11-02",),
    "EventMessage": ("S-5.1-02",),
    "DiscoveryRequest": ("N-15-03",),
    "DiscoveryResponse": ("N-15-04", "N-15-05", "N-15-06"),
}
"""The clauses that state the layout of one message: template, block length, offsets, order of what follows."""


def marks(each: Vector) -> list[pytest.MarkDecorator]:
    return [pytest.mark.clause(*CLAUSES[each.name])] if each.name in CLAUSES else []


MARKED = [pytest.param(each, id=each.id, marks=marks(each)) for each in ALL]


@pytest.mark.parametrize("each", MARKED)
def test_vector_decodes_to_its_fields(each: Vector) -> None:
    assert describe(each.decode()) == each.fields


@pytest.mark.parametrize("each", MARKED)
def test_vector_encodes_to_its_bytes(each: Vector) -> None:
    message = build(each.message, each.fields)
    encoded = message.encode() if each.with_header else message.encode_body()
    assert encoded.hex() == each.said["hex"]


@pytest.mark.parametrize("each", MARKED)
def test_vector_states_our_template_block_and_length(each: Vector) -> None:
    said = vector(each.decode(), with_header=each.with_header)
    assert {**said, "case": each.said["case"], "codec_only": each.said["codec_only"]} == each.said


@pytest.mark.parametrize("each", [each for each in ALL if each.with_header], ids=lambda each: each.id)
def test_gate_finds_the_class_of_a_vector(each: Vector) -> None:
    assert dispatch.decode(each.encoded) == each.decode()


@pytest.mark.parametrize("each", ALL, ids=lambda each: each.id)
def test_vector_decodes_at_an_offset_without_its_header(each: Vector) -> None:
    body = each.encoded[8:] if each.with_header else each.encoded
    assert each.message.decode_body(b"12345" + body + b"more", 5) == each.decode()


@pytest.mark.parametrize("each", ALL, ids=lambda each: each.id)
def test_vector_encodes_into_a_buffer_at_an_offset(each: Vector) -> None:
    message = each.decode()
    buffer = bytearray(b"\xaa" * (len(message.encode()) + 8))
    assert message.encode_into(buffer, 3) == len(buffer) - 8
    assert buffer == b"\xaa" * 3 + message.encode() + b"\xaa" * 5


@pytest.mark.parametrize("each", ALL, ids=lambda each: each.id)
def test_every_truncation_of_a_vector_is_refused(each: Vector) -> None:
    for length in range(len(each.encoded)):
        with pytest.raises(DecodeError):
            each.decode(each.encoded[:length])


@pytest.mark.parametrize("each", [each for each in ALL if each.with_header], ids=lambda each: each.id)
def test_bytes_after_a_vector_are_refused(each: Vector) -> None:
    with pytest.raises(DecodeError, match="1 bytes follow the end"):
        each.decode(each.encoded + b"\0")


def test_vectors_cover_every_message() -> None:
    assert {each.message for each in ALL} == set(dispatch.MESSAGES)
    assert len(SBE_TOOL) == 48


def test_hand_vectors_are_those_of_the_script() -> None:
    assert json.loads((HERE / "hand-vectors.json").read_text()) == hand_vectors.vectors()
    assert len(BY_HAND) == len({each.id for each in BY_HAND})
