"""What is inside messages: values of events, attributes of a source, commands and status of services, captures."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Annotated, Any, Literal

import msgspec

from framepool.clock import ManualClock
from framepool.errors import CommandRefused, DecodeError
from framepool.service.commands import Command
from framepool.service.directory import LONGEST, Directory
from framepool.service.events import Event
from framepool.service.service import STATUS
from framepool.supervisor.capture import read_capture, replay
from framepool.supervisor.state import State
from framepool.wire._generated.control_900 import Attribute
from framepool.wire._generated.event_905 import EventMessage, Format
from framepool.wire.attributes import BYTES, JSON, MSGPACK, TEXT, Metadata
from framepool.wire.values import decode_value, encode_value
from tests.fuzz.draw import Draw, pieced
from tests.fuzz.messages import read_event, read_metadata

FORMATS = tuple(Format)
KINDS: tuple[Any, ...] = (
    None,
    bool,
    int,
    float,
    str,
    bytes,
    Annotated[int, msgspec.Meta(ge=1, le=100)],
    Annotated[str, msgspec.Meta(max_length=8)],
    Literal["a", "b"],
    int | None,
)
MEDIA = (TEXT, JSON, MSGPACK, BYTES, "sbe:900.11", "sbe:905.1", "application/json; charset=utf-8", "")


def one(data: bytes) -> None:
    draw = Draw(data)
    draw.chosen((_value, _attribute, _event, _status, _capture))(draw)


def _value(draw: Draw) -> None:
    format, data = draw.chosen(FORMATS), draw.rest()
    try:
        value = decode_value(format, data)
    except DecodeError:
        return
    assert encode_value(value, format) == (format, data)


def _attribute(draw: Draw) -> None:
    formats = [draw.chosen(MEDIA) or draw.piece().decode("ascii", "replace") for _ in range(2)]
    keys = [draw.chosen(("tags", "data_source_id", "x")) for _ in range(2)]
    pairs = zip(keys, formats, (draw.piece(), draw.rest()), strict=True)
    read_metadata(
        Metadata(1, 2, 3, tuple(Attribute(key=key, format=format, value=value) for key, format, value in pairs))
    )


def _event(draw: Draw) -> None:
    """An event, and a command that takes its value."""
    kind = draw.chosen(KINDS)
    numbers = [draw.number(4) if draw.number() else None for _ in range(3)]
    message = EventMessage(
        timestamp_ns=0,
        correlation_id=draw.number(8) >> 1,
        format=draw.chosen(FORMATS),
        ref_stream_id=None if numbers[0] == 2**32 - 1 else numbers[0],
        ref_epoch=numbers[1],
        ref_seq=numbers[2],
        tag="service:x",
        key="set:rate",
        value=draw.rest(),
    )
    event = read_event(message)
    if event is None:
        return
    with suppress(CommandRefused):
        Command(key="rate", method="rate", kind=kind).arguments(event.value)


def _status(draw: Draw) -> None:
    directory = Directory(ManualClock(10**12))
    tag, text = draw.piece().decode("ascii", "replace"), draw.text()
    directory.on_event(Event(tag=tag, key=STATUS, value=text, timestamp_ns=1))
    for service in directory.services():
        assert len(service.tag) + len(service.version) <= LONGEST
        msgspec.json.encode({"tag": service.tag, "state": service.state, "age_s": directory.age_s(service)})


def _capture(draw: Draw) -> None:
    try:
        messages = list(read_capture(io.StringIO(draw.text())))
    except DecodeError:
        return
    if messages and max(when for when, _ in messages) < 60 * 10**9:
        replay(messages, State())


def seeds() -> Iterator[bytes]:
    kinds: list[Callable[[Draw], None]] = [_value, _attribute, _event, _status, _capture]
    for number in range(len(FORMATS)):
        for value in (b"", b"\0", b"\1\0\0\0", b"\xff" * 8, b"text \xc3\xa4"):
            yield bytes([kinds.index(_value), number]) + value
            yield bytes([kinds.index(_event), number % len(KINDS), 0, 0, 0]) + bytes(8) + bytes([number]) + value
    for media in range(len(MEDIA) - 1):
        for key in range(3):
            for value in (b'["a", "b"]', b"7", b'{"a": [1.5, null]}', b"\x93\x01\xa1a\xc0", b"\xff", b"a,b", b"1" * 30):
                yield bytes([kinds.index(_attribute), media, media, key, key]) + pieced(value) + value
    status = b'{"state": "running", "uptime_s": 1.5, "version": "1", "host": "h", "pid": 3}'
    yield bytes([kinds.index(_status)]) + pieced(b"service:limiter") + status
    yield bytes([kinds.index(_status)]) + pieced(b"service:limiter") + b'{"state": "gone"}'
    line = b'{"time": "2026-01-01T00:00:00.5+00:00", "hex": "00ff"}\n'
    yield bytes([kinds.index(_capture)]) + line
    yield bytes([kinds.index(_capture)]) + line + b"\n" + line.replace(b"00.5", b"01.5")
