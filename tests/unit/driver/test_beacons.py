"""The bytes of announces that are said again: whatever changes, they are those that encoding gives."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from framepool.driver.conductor import Beacons
from framepool.wire._generated.control_900 import ClockDomain, PayloadPool, ShmPoolAnnounce


def announce(stream_id: int = 1, epoch: int = 1, producer_id: int = 0, path: str = "/x") -> ShmPoolAnnounce:
    return ShmPoolAnnounce(
        stream_id=stream_id,
        producer_id=producer_id,
        epoch=epoch,
        announce_timestamp_ns=0,
        announce_clock_domain=ClockDomain.MONOTONIC,
        layout_version=1,
        header_nslots=4,
        header_slot_bytes=256,
        payload_pools=(PayloadPool(pool_id=1, pool_nslots=4, stride_bytes=64, region_uri=f"shm:file?path={path}/1"),),
        header_region_uri=f"shm:file?path={path}/h",
    )


KNOWN = [announce(stream, epoch, producer) for stream in (1, 2) for epoch in (1, 2) for producer in (0, 7)]
KNOWN += [announce(1, 2, 7, "/elsewhere")]
KNOWN += [msgspec.structs.replace(KNOWN[0], producer_id=8), msgspec.structs.replace(KNOWN[0], epoch=9)]


@given(st.lists(st.tuples(st.sampled_from(KNOWN), st.integers(0, 2**64 - 1))))
def test_an_announce_that_is_said_again_has_the_bytes_of_its_encoding(said: list[tuple[ShmPoolAnnounce, int]]) -> None:
    beacons = Beacons()
    for message, timestamp_ns in said:
        expected = msgspec.structs.replace(message, announce_timestamp_ns=timestamp_ns)
        assert beacons.encode(message, timestamp_ns) == expected.encode()


def test_what_was_given_out_does_not_change_with_the_next_announce() -> None:
    beacons = Beacons()
    first = beacons.encode(KNOWN[0], 1)
    kept = bytes(first)
    beacons.encode(KNOWN[0], 99)
    assert first == kept
