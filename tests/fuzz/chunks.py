"""Chunks as a peer on the network sends them: the readable and the compiled assembler agree after each of them."""

from __future__ import annotations

from collections.abc import Iterator

from framepool.wire._generated.bridge_902 import BridgeFrameChunk
from framepool.wire.constants import MESSAGE_HEADER_BYTES
from tests.fuzz.draw import Draw, pieced
from tests.support.chunked import EPOCH, SentFrame, Twins, noise

MOST_STEPS = 64
LENGTHS = (0, 1, 60, 64, 65, 130, 200, 256, 1000)
CHUNKS = [SentFrame(seq, noise(seq, LENGTHS[seq % len(LENGTHS)])).chunks() for seq in range(18)]
CHECKED = [SentFrame(seq, noise(seq, LENGTHS[seq % len(LENGTHS)])).chunks(crc32c=True) for seq in range(18)]


def one(data: bytes) -> None:
    """Steps of two bytes: chunks of known frames, with some bytes changed or not, bytes of nobody, and time."""
    draw = Draw(data)
    setup = draw.number()
    checked = bool(setup & 1)
    frames = CHECKED if checked else CHUNKS
    twins = Twins(crc32c=checked, max_frames=(1, 2, 16)[setup // 2 % 3], nslots=(1, 4, 64)[setup // 6 % 3]).ready()
    now = 0
    for _ in range(MOST_STEPS):
        if not draw:
            break
        step, number = draw.number(), draw.number()
        match step % 8:
            case 0 | 7:  # a chunk of a known frame
                chunks = frames[number % len(frames)]
                twins.feed(*chunks[step // 8 % len(chunks)], now_ns=now)
            case 1:  # the same with some bytes changed
                chunks = frames[number % len(frames)]
                message, reserved = chunks[step // 8 % len(chunks)]
                at = MESSAGE_HEADER_BYTES + draw.number(2) % (len(message) - MESSAGE_HEADER_BYTES)
                change = draw.bytes(1 + draw.number() % 8)
                twins.feed(message[:at] + change + message[at + len(change) :], reserved ^ draw.number(), now_ns=now)
            case 2:
                now += 50 * number
                twins.expire(now)
            case 3:
                if twins.announce(EPOCH - 1 + number % 4, now_ns=now):
                    twins.retarget()
            case 4:
                twins.retarget()
            case 5:
                twins.take(bool(number & 1))
            case 6:  # whatever it is
                twins.feed(draw.piece(), number, now_ns=now)
    for seq in (*range(20), 2**63, 2**64 - 1):
        assert twins.core.dropped(seq) == twins.plain.dropped(seq)
    if checked:  # nothing was published that was not sent
        for arrived in twins.arrived:
            assert arrived.payload == noise(arrived.seq, LENGTHS[arrived.seq % len(LENGTHS)])


def seeds() -> Iterator[bytes]:
    for setup in (0, 1, 7, 17):
        steps = bytearray([setup])
        for seq in range(6):
            for index in range(len(CHUNKS[seq])):
                steps += bytes([8 * index % 256, seq])
        yield bytes(steps)
        yield bytes(steps[:1]) + bytes([2, 9, 3, 2, 4, 0, 5, 0]) + bytes(steps[1:])
        yield bytes([setup, 1, 3, 12, 0, 3, 1, 2, 3, 0, 8, 3])
    for seq in (2, 5):
        for chunk in CHUNKS[seq][:2]:
            yield bytes([0, 6, 0]) + pieced(chunk.message)
    yield bytes([0, 6, 0]) + pieced(BridgeFrameChunk.HEADER_BYTES + bytes(60))
