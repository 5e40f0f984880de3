"""Damaged vectors: whatever the bytes, a decoder raises `DecodeError` or gives a message that fits its bytes.

FRAMEPOOL_FUZZ_EXAMPLES sets the number of damaged messages, 20,000 unless told.
"""

from __future__ import annotations

import os
import struct
import tracemalloc
from collections import Counter
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from framepool.errors import DecodeError
from framepool.wire import dispatch
from framepool.wire._generated.event_905 import EventMessage
from framepool.wire.describe import build, describe
from framepool.wire.dispatch import MESSAGES, Dispatcher
from framepool.wire.message import Message
from tests.golden.vectors import ALL, Vector
from tests.model.message_strategies import weight

type Step = tuple[Callable[[bytearray, int, int], None], int, int]

EXAMPLES = int(os.environ.get("FRAMEPOOL_FUZZ_EXAMPLES", "20000"))
ENCODED = [vector.encoded for vector in ALL]
NUMBERS = (0, 1, 2, 255, 256, 257, 65535, 65536, 2**30, 2**30 + 1, 2**31, 2**32 - 1)


def flip(data: bytearray, where: int, what: int) -> None:
    data[where % len(data)] ^= 1 << what % 8


def truncate(data: bytearray, where: int, what: int) -> None:
    del data[where % len(data) :]


def insert(data: bytearray, where: int, what: int) -> None:
    data[where % len(data) : where % len(data)] = what.to_bytes(4, "little")[: 1 + what % 4]


def delete(data: bytearray, where: int, what: int) -> None:
    del data[where % len(data) : where % len(data) + 1 + what % 8]


def lie(data: bytearray, where: int, what: int) -> None:
    """A count or a length, or what may be one, says something else."""
    code = "<H" if what & 1 else "<I"
    number = NUMBERS[what // 2 % len(NUMBERS)]
    start = where % len(data)
    if start + struct.calcsize(code) <= len(data):
        struct.pack_into(code, data, start, number & (0xFFFF if what & 1 else 0xFFFFFFFF))


def splice(data: bytearray, where: int, what: int) -> None:
    """The head of one message, the tail of another."""
    other = ENCODED[what % len(ENCODED)]
    data[where % len(data) :] = other[where % len(other) :]


def rehead(data: bytearray, where: int, what: int) -> None:
    """The body of one message under the header of another."""
    data[:8] = MESSAGES[what % len(MESSAGES)].HEADER_BYTES


DAMAGE = (flip, truncate, insert, delete, lie, splice, rehead)


def steps_of(drawn: bytes) -> list[Step]:
    """Seven bytes for each step: which damage, where, what; one draw is far quicker than nine."""
    parts = struct.iter_unpack("<BHI", drawn[: len(drawn) // 7 * 7])
    return [(DAMAGE[damage % len(DAMAGE)], where, what) for damage, where, what in parts]


STEPS = st.binary(min_size=7, max_size=21).map(steps_of)


def damaged(vector: Vector, steps: list[Step]) -> bytes:
    data = bytearray(vector.encoded)
    for damage, where, what in steps:
        if data:
            damage(data, where, what)
    return bytes(data)


def attempt(decode: Callable[[bytes], Message], buffer: bytes) -> Message | None:
    """The message, or None for what a decoder may raise; anything else fails the test."""
    try:
        return decode(buffer)
    except DecodeError:
        return None


def check(message: Message, buffer: bytes) -> None:
    """What was accepted fits its bytes, and says the same when it is encoded again."""
    assert weight(message) <= 40 + 4 * len(buffer)
    assert build(type(message), describe(message)) == message
    if not isinstance(message, EventMessage):  # a newer one says more than we can encode
        assert message.encode_body() in buffer


def test_damaged_messages_are_refused_by_decode_error_or_fit_their_bytes() -> None:
    outcomes: Counter[str] = Counter()
    dispatcher = Dispatcher()
    for kind in MESSAGES:
        dispatcher.on(kind, lambda message: None)

    @settings(max_examples=EXAMPLES, deadline=None, database=None)
    @given(vector=st.sampled_from(ALL), steps=STEPS)
    def damage(vector: Vector, steps: list[Step]) -> None:
        buffer = damaged(vector, steps)
        by_gate = attempt(dispatch.decode, buffer)
        assert (dispatcher(buffer) is None) == (by_gate is not None)
        by_class = attempt(vector.message.decode, buffer)
        without_header = attempt(vector.message.decode_body, buffer)
        for message in filter(None, (by_gate, by_class, without_header)):
            check(message, buffer)
        if by_class is not None:
            assert by_gate == by_class
        outcomes["accepted" if by_gate or without_header else "refused"] += 1

    damage()
    assert outcomes.total() >= EXAMPLES
    assert min(outcomes["accepted"], outcomes["refused"]) > EXAMPLES // 20, "the damage is too weak or too strong"


@settings(max_examples=500, deadline=None)
@given(vector=st.sampled_from(ALL), steps=STEPS)
def test_decoding_damaged_messages_takes_memory_in_proportion_to_their_length(
    vector: Vector, steps: list[Step]
) -> None:
    buffer = damaged(vector, steps)
    tracemalloc.start()
    try:
        attempt(dispatch.decode, buffer)
        attempt(vector.message.decode_body, buffer)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= 32_768 + 40 * len(buffer)


@settings(max_examples=500, deadline=None)
@given(kind=st.sampled_from(MESSAGES), body=st.binary(max_size=600))
def test_noise_under_a_good_header_is_refused_by_decode_error_or_fits_its_bytes(
    kind: type[Message], body: bytes
) -> None:
    buffer = kind.HEADER_BYTES + body
    message = attempt(kind.decode, buffer)
    if message is not None:
        check(message, buffer)
