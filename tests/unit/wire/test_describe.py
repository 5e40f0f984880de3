"""Messages as dictionaries: what is spelled out, what is starred out, what is refused."""

from __future__ import annotations

import msgspec
import pytest

from framepool.errors import EncodeError
from framepool.wire._generated.control_900 import FrameDescriptor, SlotHeader
from framepool.wire._generated.driver_901 import ShmDriverShutdownRequest
from framepool.wire.describe import build, describe, redacted, vector
from tests.golden.vectors import ALL, example


def test_tensor_header_inside_a_slot_is_spelled_out() -> None:
    described = describe(example("SlotHeader", "image_u16_row_major").decode())
    assert described["headerBytes"]["messageHeader"]["templateId"] == 52
    assert described["headerBytes"]["TensorHeader"]["dims"][:2] == [480, 640]


@pytest.mark.parametrize("garbage", [b"", b"\x01\x02", bytes(192)])
def test_garbage_inside_a_slot_is_shown_as_it_is_and_comes_back(garbage: bytes) -> None:
    slot = example("SlotHeader", "image_u16_row_major").decode()
    broken = msgspec.structs.replace(slot, header_bytes=garbage)
    described = describe(broken)
    assert described["headerBytes"] == garbage.hex()
    assert build(SlotHeader, described) == broken


def test_token_is_starred_out_in_fields_and_bytes() -> None:
    request = example("ShmDriverShutdownRequest", "typical").decode()
    assert isinstance(request, ShmDriverShutdownRequest)
    assert "sesame" in str(describe(request))
    shown = vector(redacted(request))
    assert shown["fields"]["token"] == "*" * len(request.token)
    assert shown["fields"]["errorMessage"] == request.error_message
    assert shown["length"] == len(request.encode())
    assert b"sesame".hex() not in str(shown)
    assert "sesame" not in str(shown)


def test_absent_token_is_shown_as_absent() -> None:
    request = example("ShmDriverShutdownRequest", "no_token").decode()
    assert describe(redacted(request))["token"] == ""


def test_other_messages_have_nothing_to_star_out() -> None:
    for each in ALL:
        if each.message is not ShmDriverShutdownRequest:
            message = each.decode()
            assert redacted(message) is message


def test_unknown_and_missing_fields_are_refused() -> None:
    fields = example("FrameDescriptor", "typical").fields
    with pytest.raises(EncodeError, match="headerIndex"):
        build(FrameDescriptor, {**fields, "headerIndex": 1})
    del fields["seq"]
    with pytest.raises(EncodeError, match="seq"):
        build(FrameDescriptor, fields)
