"""Chunks shuffled, lost, repeated, mixed up and mangled: both assemblers against a simple model, and each other."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from framepool.bridge.chunks import Chunk, ChunkDrop, ChunkSizing
from framepool.wire._generated.bridge_902 import Bool, BridgeFrameChunk
from tests.support.chunked import EPOCH, SIZING, STREAM, SentFrame, Twins, noise, numbers, put

slow = settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])

seqs = st.lists(st.integers(0, 40), unique=True, min_size=1, max_size=6)
sizes = st.one_of(st.sampled_from([0, 1, 63, 64, 65, 128, 129, 256]), st.integers(0, 400))


@st.composite
def frames(draw: st.DrawFn) -> list[SentFrame]:
    return [
        SentFrame(
            seq,
            noise(seq, draw(sizes)),
            trace_id=draw(st.sampled_from([0, 1, 2**64 - 1])),
            timestamp_ns=seq + 5,
            meta_version=seq % 3,
        )
        for seq in draw(seqs)
    ]


def test_causes_have_the_same_numbers() -> None:
    assert {cause.name: cause.value for cause in ChunkDrop} == numbers()


class Sent(NamedTuple):
    """A chunk on the way, with what the model needs to know of it."""

    seq: int
    index: int
    chunk: Chunk
    altered: bool = False


def expected(sent: list[Sent], chunk_counts: dict[int, int]) -> list[int]:
    """The simple model: a frame is whole with the last of its chunks, unless one of them came twice and differed; and
    what is whole is published unless something newer was."""
    there: dict[int, dict[int, bytes]] = {}
    lost: set[int] = set()
    published: list[int] = []
    for seq, index, chunk, _ in sent:
        if seq in lost or (published and seq <= published[-1]):
            continue
        known = there.setdefault(seq, {})
        if known.setdefault(index, chunk.message) != chunk.message:
            lost.add(seq)
        elif len(known) == chunk_counts[seq]:
            published.append(seq)
            del there[seq]
    return published


@st.composite
def deliveries(draw: st.DrawFn) -> tuple[list[SentFrame], list[Sent]]:
    """Frames, and their chunks as a bad network delivers them: some lost, some twice, a few altered."""
    sent = draw(frames())
    chunks = [Sent(frame.seq, index, chunk) for frame in sent for index, chunk in enumerate(frame.chunks())]
    lost = draw(st.sets(st.integers(0, len(chunks) - 1), max_size=2))
    chunks = [chunk for number, chunk in enumerate(chunks) if number not in lost]
    if chunks:
        chunks += draw(st.lists(st.sampled_from(chunks), max_size=4))
    for number in draw(st.sets(st.integers(0, max(0, len(chunks) - 1)), max_size=1)) if chunks else ():
        seq, index, chunk, _ = chunks[number]
        if chunk.message[-1:] and BridgeFrameChunk.decode(chunk.message).chunk_length:
            flipped = chunk.message[:-1] + bytes([chunk.message[-1] ^ 1])
            chunks[number] = Sent(seq, index, chunk._replace(message=flipped), True)
    if draw(st.booleans()):
        chunks = draw(st.permutations(chunks))
    return sent, chunks


@pytest.mark.clause("B-5.2-20", "B-5.2-22", "B-5.2-23", "B-5.2-24", "B-3-04", "B-6-15")
@slow
@given(deliveries())
def test_what_a_bad_network_delivers_makes_the_frames_of_the_model(
    delivery: tuple[list[SentFrame], list[Sent]],
) -> None:
    sent, chunks = delivery
    twins = Twins().ready()
    for _, _, chunk, _ in chunks:
        twins.feed(*chunk)
    model = expected(chunks, {frame.seq: SIZING.count(len(frame.payload)) for frame in sent})
    event(f"{len(model)} of {len(sent)} frames")
    assert twins.seqs == model
    altered = {chunk.seq for chunk in chunks if chunk.altered}
    originals = {frame.seq: frame for frame in sent}
    for arrived in twins.arrived:
        original = originals[arrived.seq]
        assert arrived.payload == original.payload or arrived.seq in altered
        assert arrived.trace_id == original.trace_id
        assert (arrived.timestamp_ns, arrived.meta_version) == (original.timestamp_ns, original.meta_version)
        assert arrived.tensor_header == original.header[64:]


@st.composite
def tilings(draw: st.DrawFn) -> tuple[bytes, list[tuple[int, int]], bool]:
    """A payload, slices of it in the order of their chunks, and whether they tile it: some are moved or resized."""
    payload = noise(1, draw(st.integers(0, 300)))
    cuts = sorted(draw(st.lists(st.integers(0, len(payload)), max_size=8)))
    edges = [0, *cuts, len(payload)]
    slices = [(start, end - start) for start, end in itertools.pairwise(edges)]
    slices = [slices[0], *draw(st.permutations(slices[1:]))]
    for _ in range(draw(st.integers(0, 2))):
        number = draw(st.integers(0, len(slices) - 1))
        offset, length = slices[number]
        offset += draw(st.integers(-2, 2)) if number else 0
        length += draw(st.integers(-2, 2))
        offset = min(max(offset, 0), len(payload))
        slices[number] = offset, min(max(length, 0), len(payload) - offset)
    covered = [0] * len(payload)
    for offset, length in slices:
        for at in range(offset, offset + length):
            covered[at] += 1
    return payload, slices, covered == [1] * len(payload)


@pytest.mark.clause("B-5.2-10", "B-5.2-20", "B-5.2-24")
@slow
@given(tiling=tilings(), data=st.data())
def test_any_tiling_makes_the_frame_and_nothing_else_does(
    tiling: tuple[bytes, list[tuple[int, int]], bool], data: st.DataObject
) -> None:
    payload, slices, whole = tiling
    frame = SentFrame(1, payload)
    messages = [
        BridgeFrameChunk(
            stream_id=STREAM,
            epoch=EPOCH,
            seq=1,
            chunk_index=index,
            chunk_count=len(slices),
            chunk_offset=offset,
            chunk_length=length,
            payload_length=len(payload),
            header_included=Bool.FALSE if index else Bool.TRUE,
            header_bytes=b"" if index else frame.header,
            payload_bytes=payload[offset : offset + length],
        ).encode()
        for index, (offset, length) in enumerate(slices)
    ]
    twins = Twins(sizing=ChunkSizing(mtu_bytes=1408, chunk_bytes=300)).ready()
    for message in data.draw(st.permutations(messages)):
        cause = twins.feed(message)
    event(f"{cause!r}")
    # An empty slice in the middle of another covers nothing twice, and is refused all the same.
    stray = any(length == 0 and start < offset < start + size for offset, length in slices for start, size in slices)
    assert [arrived.payload for arrived in twins.arrived] == ([payload] if whole and not stray else [])


def flip(chunk: Chunk, where: int, what: int) -> Chunk:
    message = bytearray(chunk.message)
    message[where % len(message)] ^= 1 << what % 8
    return chunk._replace(message=bytes(message))


def truncate(chunk: Chunk, where: int, what: int) -> Chunk:
    return chunk._replace(message=chunk.message[: where % (len(chunk.message) + 1)])


def extend(chunk: Chunk, where: int, what: int) -> Chunk:
    return chunk._replace(message=chunk.message + bytes(1 + what % 4))


NUMBERS = (0, 1, 2, 3, 63, 64, 65, 128, 255, 256, 257, 65_535, 65_536, 2**30, 2**30 + 1, 2**31, 2**32 - 1)
LARGE = (EPOCH - 1, EPOCH, EPOCH + 1, 2**63 - 1, 2**63, 2**64 - 1)


def lie(chunk: Chunk, where: int, what: int) -> Chunk:
    """A field says something else."""
    field = BridgeFrameChunk.FIELDS[where % len(BridgeFrameChunk.FIELDS)]
    values = LARGE if field.code == "Q" else [number & 0xFF if field.code == "B" else number for number in NUMBERS]
    return chunk._replace(message=put(chunk.message, field.name, values[what % len(values)]))


def lie_of_length(chunk: Chunk, where: int, what: int) -> Chunk:
    """The length of the header or of the payload is another one than that of its bytes."""
    message = bytearray(chunk.message)
    header_length = int.from_bytes(message[49:53], "little")
    at = 49 if where & 1 or 57 + header_length > len(message) else 53 + header_length
    struct.pack_into("<I", message, at, NUMBERS[what % len(NUMBERS)])
    return chunk._replace(message=bytes(message))


def in_header(chunk: Chunk, where: int, what: int) -> Chunk:
    """A byte of the slot header, if there is one."""
    message = bytearray(chunk.message)
    if int.from_bytes(message[49:53], "little") == 256 <= len(message) - 53:
        message[53 + where % 140] = what % 256
    return chunk._replace(message=bytes(message))


def beside(chunk: Chunk, where: int, what: int) -> Chunk:
    return chunk._replace(reserved=what)


MANGLERS: list[Callable[[Chunk, int, int], Chunk]] = [
    flip,
    truncate,
    extend,
    lie,
    lie,
    lie_of_length,
    in_header,
    in_header,
    beside,
]
large = st.integers(0, 2**64 - 1)


def mangle(draw: st.DrawFn, chunk: Chunk) -> Chunk:
    """One thing wrong with it; what was cut short already stays as it is."""
    mangler, where, what = draw(st.sampled_from(MANGLERS)), draw(st.integers(0, 2**16)), draw(large)
    return chunk if len(chunk.message) < BridgeFrameChunk.MINIMUM_LENGTH + 8 else mangler(chunk, where, what)


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[str, int, Chunk | None]]:
    """What can happen to an assembler, in any order."""
    sent = draw(frames())
    chunks = [chunk for frame in sent for chunk in frame.chunks()]
    if draw(st.booleans()):
        chunks = draw(st.permutations(chunks))
    happenings: list[tuple[str, int, Chunk | None]] = []
    for chunk in chunks:
        mangled = chunk
        for _ in range(draw(st.sampled_from([0, 0, 0, 0, 1, 2]))):
            mangled = mangle(draw, mangled)
        happenings.append(("feed", 0, mangled))
        if mangled is not chunk and draw(st.booleans()):
            happenings.append(("feed", 0, chunk))
        if draw(st.integers(0, 24)) == 0:
            what = draw(st.sampled_from(["wait", "announce", "retarget", "refuse", "accept"]))
            happenings.append((what, draw(st.sampled_from([0, 1, 2, 9])), None))
    return happenings


@settings(max_examples=1500, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    happenings=steps(),
    max_frames=st.sampled_from([1, 2, 3, 16]),
    nslots=st.sampled_from([1, 2, 4, 64]),
    largest=st.sampled_from([128, 256, 1024]),
)
def test_both_judge_every_step_alike(
    happenings: list[tuple[str, int, Chunk | None]], max_frames: int, nslots: int, largest: int
) -> None:
    twins = Twins(max_frames=max_frames, nslots=nslots, local={5: 64, 6: largest}).ready()
    now = 0
    for what, number, chunk in happenings:
        if chunk is not None:
            cause = twins.feed(*chunk, now_ns=now)
            event(f"{cause!r}")
        elif what == "wait":
            now += 400 * number
            twins.expire(now)
        elif what == "announce":
            if twins.announce(EPOCH - 1 + number % 4, now_ns=now):
                twins.retarget()
        elif what == "retarget":
            twins.retarget()
        else:
            twins.take(what == "accept")
    for seq in (*range(42), 2**63, 2**64 - 1):
        assert twins.core.dropped(seq) == twins.plain.dropped(seq)
    rising = [earlier < later for earlier, later in itertools.pairwise(twins.seqs)]
    assert all(rising) or any(what == "announce" for what, _, _ in happenings)


@pytest.mark.clause("B-5.4-01")
@slow
@given(deliveries=steps())
def test_with_the_checksum_nothing_is_published_that_was_not_sent(
    deliveries: list[tuple[str, int, Chunk | None]],
) -> None:
    """Whatever happens to the bytes. The steps' own chunks have no checksum, so none of them is ever enough."""
    twins = Twins(crc32c=True).ready()
    for _, _, chunk in deliveries:
        if chunk is not None:
            twins.feed(*chunk)
    assert twins.arrived == []


@slow
@given(sent=frames(), data=st.data())
def test_with_the_checksum_mangled_frames_are_dropped_and_whole_ones_are_not(
    sent: list[SentFrame], data: st.DataObject
) -> None:
    twins = Twins(crc32c=True).ready()
    originals = {frame.seq: frame for frame in sent}
    for frame in sent:
        for chunk in frame.chunks(crc32c=True):
            mangled = chunk
            if data.draw(st.integers(0, 9)) == 0:
                mangled = mangle(data.draw, chunk)
            twins.feed(*mangled)
    for arrived in twins.arrived:
        assert arrived.payload == originals[arrived.seq].payload
        assert arrived.tensor_header == originals[arrived.seq].header[64:]
    untouched = Twins(crc32c=True).ready()
    for frame in sorted(sent, key=lambda frame: frame.seq):
        untouched.send(*frame.chunks(crc32c=True))
    assert untouched.seqs == sorted(originals)


@pytest.mark.clause("B-5.2-27")
@settings(max_examples=1000)
@given(raw=st.binary(max_size=400), like=st.booleans())
def test_both_judge_random_bytes_alike(raw: bytes, like: bool) -> None:
    twins = Twins().ready()
    twins.feed(BridgeFrameChunk.HEADER_BYTES + struct.pack("<IQ", STREAM, EPOCH) + raw if like else raw)
    assert twins.arrived == []
