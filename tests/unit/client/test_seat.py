"""A seat with a driver played by the test: which regions it maps, which it refuses, and what it makes of notices."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from framepool.client.attach import AttachSettings, AttachState
from framepool.client.seat import Seat
from framepool.clock import NANOS_PER_SECOND, ManualClock
from framepool.config import DriverConfig
from framepool.shm.layout import StreamLayout
from framepool.wire._generated.control_900 import ClockDomain
from framepool.wire._generated.driver_901 import (
    LeaseRevokeReason,
    PayloadPool,
    ResponseCode,
    Role,
    ShmAttachRequest,
    ShmAttachResponse,
    ShmDetachRequest,
    ShmLeaseRevoked,
)
from framepool.wire.message import Message
from tests.support.regions import STREAM, allow, announce, make_stream, maps_below


class Plane:
    """A control plane that keeps what is sent."""

    def __init__(self) -> None:
        self.clock = ManualClock(1_000)  # when `make_stream` stamps its regions
        self.sent: list[Message] = []

    def send(self, message: Message) -> bool:
        self.sent.append(message)
        return True


@pytest.fixture
def plane() -> Plane:
    return Plane()


def take_seat(plane: Plane, base: Path, role: Role) -> Seat:
    seat = Seat(plane, STREAM, role, allowed=allow(base), client_id=77)  # type: ignore[arg-type]
    seat.attachment.start()
    seat.do_work()
    return seat


def grant(plane: Plane, seat: Seat, layout: StreamLayout, lease_id: int = 5, **changes: object) -> None:
    """The driver's OK to the last request."""
    request = plane.sent[-1]
    assert isinstance(request, ShmAttachRequest)
    fields: dict[str, object] = {
        "correlation_id": request.correlation_id,
        "code": ResponseCode.OK,
        "lease_id": lease_id,
        "stream_id": STREAM,
        "epoch": layout.epoch,
        "layout_version": layout.layout_version,
        "header_nslots": layout.nslots,
        "header_slot_bytes": 256,
        "max_dims": 8,
        "payload_pools": tuple(
            PayloadPool(
                pool_id=pool.pool_id,
                pool_nslots=pool.nslots,
                stride_bytes=pool.stride_bytes,
                region_uri=str(pool.uri),
            )
            for pool in layout.pools
        ),
        "header_region_uri": str(layout.header_uri),
    }
    seat.on_attach_response(ShmAttachResponse(**{**fields, **changes}))  # type: ignore[arg-type]


def tree(base: Path) -> set[tuple[str, int, int]]:
    return {(str(path), path.lstat().st_ino, path.lstat().st_size) for path in base.rglob("*")}


@pytest.mark.clause("D-3-05", "D-3-06", "D-2.3-01")
@pytest.mark.parametrize("role", Role)
def test_regions_are_mapped_where_the_driver_says_whatever_the_path_looks_like(
    plane: Plane, base_dir: Path, role: Role
) -> None:
    """The customary files are there too, and are not the ones."""
    layout = make_stream(base_dir)
    odd = base_dir / "odd"
    odd.mkdir()
    moved = {}
    for index, path in enumerate([layout.header_uri.path, *(pool.uri.path for pool in layout.pools)]):
        os.rename(path, odd / f"{index}.bin")
        moved[path] = str(odd / f"{index}.bin")
    make_stream(base_dir, epoch=layout.epoch + 1)
    seat = take_seat(plane, base_dir, role)
    grant(
        plane,
        seat,
        layout,
        header_region_uri=f"shm:file?path={moved[layout.header_uri.path]}",
        payload_pools=tuple(
            PayloadPool(
                pool_id=pool.pool_id,
                pool_nslots=pool.nslots,
                stride_bytes=pool.stride_bytes,
                region_uri=f"shm:file?path={moved[pool.uri.path]}",
            )
            for pool in layout.pools
        ),
    )
    assert seat.stream is not None
    assert [region.uri.path for region in seat.stream.regions] == list(moved.values())
    assert {line.split()[-1] for line in maps_below(base_dir)} == set(moved.values())
    seat.close()


@pytest.mark.clause("D-2.2-03", "D-2.3-02")
@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("missing", ["header", "pool", "all"])
def test_missing_file_is_not_made(plane: Plane, base_dir: Path, role: Role, missing: str) -> None:
    layout = make_stream(base_dir)
    if missing in {"header", "all"}:
        os.unlink(layout.header_uri.path)
    if missing in {"pool", "all"}:
        os.unlink(layout.pools[1].uri.path)
    before = tree(base_dir)
    seat = take_seat(plane, base_dir, role)
    grant(plane, seat, layout)
    assert seat.stream is None
    assert seat.mapping.last_refusal
    seat.close()
    assert tree(base_dir) == before
    assert maps_below(base_dir) == []


def link_the_pool(base: Path, layout: StreamLayout) -> None:
    path = layout.pools[0].uri.path
    os.rename(path, base / "elsewhere")
    os.symlink(base / "elsewhere", path)


def swap_for_a_fifo(base: Path, layout: StreamLayout) -> None:
    os.unlink(layout.pools[0].uri.path)
    os.mkfifo(layout.pools[0].uri.path, 0o600)


def let_everybody_write(base: Path, layout: StreamLayout) -> None:
    os.chmod(layout.header_uri.path, 0o666)


def lengthen(base: Path, layout: StreamLayout) -> None:
    os.truncate(layout.header_uri.path, layout.header_file_bytes + 1)


def spoil_the_magic(base: Path, layout: StreamLayout) -> None:
    with open(layout.pools[1].uri.path, "r+b") as file:
        file.write(b"\x00")


@pytest.mark.clause("D-9-04")
@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize(
    "spoil",
    [link_the_pool, swap_for_a_fifo, let_everybody_write, lengthen, spoil_the_magic],
    ids=lambda it: it.__name__,
)
def test_drivers_word_does_not_weaken_a_check(
    plane: Plane, base_dir: Path, role: Role, spoil: Callable[[Path, StreamLayout], None]
) -> None:
    layout = make_stream(base_dir)
    spoil(base_dir, layout)
    seat = take_seat(plane, base_dir, role)
    grant(plane, seat, layout)
    assert seat.stream is None
    assert maps_below(base_dir) == []
    seat.close()


@pytest.mark.clause("D-9-04")
@pytest.mark.parametrize("role", Role)
def test_regions_outside_the_allowed_directories_are_refused(plane: Plane, base_dir: Path, role: Role) -> None:
    (base_dir / "allowed").mkdir()
    (base_dir / "outside").mkdir()
    seat = take_seat(plane, base_dir / "allowed", role)
    grant(plane, seat, make_stream(base_dir / "outside"))
    assert seat.stream is None
    assert "none of the allowed directories" in seat.mapping.last_refusal
    seat.close()


# Notices and announces


def notice(timestamp_ns: int) -> ShmLeaseRevoked:
    """The end of a producer's lease."""
    return ShmLeaseRevoked(
        timestamp_ns=timestamp_ns,
        lease_id=1,
        stream_id=STREAM,
        client_id=1,
        role=Role.PRODUCER,
        reason=LeaseRevokeReason.EXPIRED,
        error_message="",
    )


@pytest.mark.clause("D-4.9-10")
def test_notice_that_its_announce_has_overtaken_is_for_the_epoch_before(plane: Plane, base_dir: Path) -> None:
    """They travel on two streams, and the consumer may come to the second first."""
    seat = take_seat(plane, base_dir, Role.CONSUMER)
    grant(plane, seat, make_stream(base_dir, epoch=3))
    ended = plane.clock.timestamp_ns()
    plane.clock.advance(1)
    stamp = {"announce_timestamp_ns": plane.clock.timestamp_ns(), "announce_clock_domain": ClockDomain.MONOTONIC}
    second = make_stream(base_dir, epoch=4)
    seat.on_announce(announce(second, **stamp))
    seat.settle()
    seat.on_lease_revoked(notice(ended))
    assert seat.mapping.epoch == 4
    plane.clock.advance(1)
    seat.on_lease_revoked(notice(plane.clock.timestamp_ns()))
    assert seat.mapping.epoch is None
    seat.on_announce(announce(second, **stamp))
    seat.settle()
    assert seat.mapping.epoch is None
    seat.close()


@pytest.mark.clause("D-4.9-10")
def test_epoch_whose_producer_is_gone_is_not_mapped_although_it_was_announced_before(
    plane: Plane, base_dir: Path
) -> None:
    """The announce waits for its turn when the notice comes."""
    seat = take_seat(plane, base_dir, Role.CONSUMER)
    grant(plane, seat, make_stream(base_dir, epoch=3))
    stamp = {"announce_timestamp_ns": plane.clock.timestamp_ns(), "announce_clock_domain": ClockDomain.MONOTONIC}
    seat.on_announce(announce(make_stream(base_dir, epoch=4), **stamp))
    plane.clock.advance(1)
    seat.on_lease_revoked(notice(plane.clock.timestamp_ns()))
    seat.settle()
    assert seat.mapping.epoch is None
    seat.close()


def test_of_many_announces_only_the_last_is_mapped_and_none_while_a_higher_one_stands(
    plane: Plane, base_dir: Path
) -> None:
    seat = take_seat(plane, base_dir, Role.CONSUMER)
    grant(plane, seat, make_stream(base_dir, epoch=3))
    stamp = {"announce_timestamp_ns": plane.clock.timestamp_ns(), "announce_clock_domain": ClockDomain.MONOTONIC}
    announces = {epoch: announce(make_stream(base_dir, epoch=epoch), **stamp) for epoch in (4, 5, 6, 7)}
    for epoch in (4, 5, 6):
        seat.on_announce(announces[epoch])
    assert (seat.settle(), seat.mapping.epoch, seat.mapping.counts["mapped"]) == (1, 6, 2)
    for epoch in (7, 4, 5):
        seat.on_announce(announces[epoch])
    assert (seat.settle(), seat.mapping.epoch, seat.mapping.counts["lower epochs"]) == (2, None, 1)
    assert seat.settle() == 0
    seat.close()


@pytest.mark.clause("D-4.12-07", "D-10-02")
def test_producer_that_hears_of_a_later_epoch_has_lost_its_lease(plane: Plane, base_dir: Path) -> None:
    """Nothing but the end of its lease changes the epoch under a producer: another driver has taken over."""
    seat = take_seat(plane, base_dir, Role.PRODUCER)
    grant(plane, seat, make_stream(base_dir, epoch=5))
    seat.on_announce(announce(make_stream(base_dir, epoch=4)))
    seat.on_announce(announce(make_stream(base_dir, epoch=6), stream_id=STREAM + 1))
    assert seat.stream is not None, "an announce that came late, and one of another stream"
    seat.on_announce(announce(make_stream(base_dir, epoch=7)))
    assert seat.stream is None
    assert seat.attachment.state is AttachState.ATTACHING
    assert maps_below(base_dir) == []
    seat.close()


@pytest.mark.clause("D-4.4-07")
def test_patience_follows_the_configuration() -> None:
    assert AttachSettings.configured(DriverConfig()) == AttachSettings()
    slow = AttachSettings.configured(
        DriverConfig(keepalive_interval_ms=5_000, lease_expiry_ms=15_000, announce_period_ms=4_000)
    )
    assert (slow.keepalive_ns, slow.driver_timeout_ns) == (5 * NANOS_PER_SECOND, 12 * NANOS_PER_SECOND)


def test_files_that_changed_under_a_consumer_make_it_ask_the_driver_again(plane: Plane, base_dir: Path) -> None:
    layout = make_stream(base_dir)
    seat = take_seat(plane, base_dir, Role.CONSUMER)
    grant(plane, seat, layout)
    os.truncate(layout.pools[0].uri.path, 100)
    for _ in range(2):  # the second one says that it still is the epoch to use
        seat.on_announce(announce(layout, announce_timestamp_ns=plane.clock.timestamp_ns()))
        seat.settle()
    assert seat.stream is None
    assert isinstance(plane.sent[-1], ShmDetachRequest)
    seat.do_work()
    assert isinstance(plane.sent[-1], ShmAttachRequest)


@pytest.mark.parametrize("when", ["at the grant", "later"])
def test_producer_without_regions_does_not_keep_the_stream_to_itself(plane: Plane, base_dir: Path, when: str) -> None:
    layout = make_stream(base_dir)
    path = Path(layout.header_uri.path)
    good = path.read_bytes()
    seat = take_seat(plane, base_dir, Role.PRODUCER)
    if when == "at the grant":
        path.write_bytes(b"\x00" + good[1:])
    grant(plane, seat, layout)
    path.write_bytes(b"\x00" * 64 + good[64:])
    plane.clock.advance(NANOS_PER_SECOND)
    seat.do_work()
    plane.clock.advance(NANOS_PER_SECOND)
    seat.do_work()
    assert seat.stream is None
    assert any(isinstance(message, ShmDetachRequest) for message in plane.sent)
    seat.do_work()
    assert isinstance(plane.sent[-1], ShmAttachRequest)
