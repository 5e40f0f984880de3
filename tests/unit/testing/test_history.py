"""The checker of histories: a faultless one passes, and each fault is named."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from framepool.testing.history import Event, Journal, check, read
from framepool.wire._generated.driver_901 import Role

STREAM = 7


def attached(process: str, t: int, lease_id: int, epoch: int, role: Role = Role.PRODUCER) -> Event:
    return Event(process=process, op="attached", t=t, stream_id=STREAM, epoch=epoch, lease_id=lease_id, role=role)


def lost(process: str, t: int, lease_id: int) -> Event:
    return Event(process=process, op="lost", t=t, stream_id=STREAM, lease_id=lease_id)


def published(process: str, t: int, epoch: int, seq: int) -> Event:
    return Event(process=process, op="published", t=t, stream_id=STREAM, epoch=epoch, seq=seq, crc=10 * epoch + seq)


def received(process: str, t: int, epoch: int, seq: int) -> Event:
    crc = 10 * epoch + seq
    return Event(
        process=process, op="received", t=t, stream_id=STREAM, epoch=epoch, seq=seq, crc=crc, sealed=(epoch, seq, crc)
    )


def missed(process: str, t: int, epoch: int, count: int) -> Event:
    return Event(process=process, op="missed", t=t, stream_id=STREAM, epoch=epoch, count=count)


GOOD = [
    attached("camera", 1, 100, 1),
    published("camera", 4, 1, 0),
    published("camera", 5, 1, 1),
    published("camera", 6, 1, 2),
    lost("camera", 8, 100),
    attached("spare", 9, 102, 2),
    published("spare", 10, 2, 0),
    attached("viewer", 2, 101, 1, Role.CONSUMER),
    received("viewer", 4, 1, 0),
    missed("viewer", 6, 1, 1),
    received("viewer", 7, 1, 2),
    received("viewer", 11, 2, 0),
]


def test_a_history_without_fault_passes() -> None:
    assert check(GOOD) == []


def changed(index: int, **fields: object) -> list[Event]:
    return [msgspec.structs.replace(event, **fields) if i == index else event for i, event in enumerate(GOOD)]


def without(index: int) -> list[Event]:
    return [event for i, event in enumerate(GOOD) if i != index]


@pytest.mark.parametrize(
    ("events", "fault"),
    [
        pytest.param(changed(8, crc=99), "torn, the payload's crc is 00000063, sealed was 0000000a", id="torn"),
        pytest.param(changed(8, sealed=(1, 4, 10)), "holds the payload of seq 4 of epoch 1", id="another frame"),
        pytest.param(changed(8, sealed=(0, 0, 10)), "holds the payload of seq 0 of epoch 0", id="another epoch"),
        pytest.param(changed(8, crc=99, sealed=(1, 0, 99)), "but 0000000a was published", id="never written"),
        pytest.param(without(9), "received seq 2 of epoch 1, accounted for was up to 1", id="uncounted gap"),
        pytest.param(changed(9, count=2), "received seq 2 of epoch 1, accounted for was up to 3", id="counted twice"),
        pytest.param([*GOOD, received("viewer", 12, 1, 2)], "received in epoch 1 after epoch 2", id="epoch back"),
        pytest.param(without(7), "viewer, stream 7: received seq 0 of epoch 1 without a lease", id="no lease"),
        pytest.param(
            [*GOOD[:5], published("camera", 8, 1, 3), *GOOD[5:]],
            "camera, stream 7: published seq 3 of epoch 1 without a lease",
            id="after the loss",
        ),
        pytest.param([*without(4), attached("camera", 20, 103, 3)], "got lease 103 while it held 100", id="two leases"),
        pytest.param(changed(5, lease_id=100), "lease 100 was granted to camera and to spare", id="lease id reused"),
        pytest.param(changed(5, epoch=1), "epoch 1 of stream 7 has producers camera and spare", id="two producers"),
        pytest.param(changed(6, epoch=3), "published in epoch 3 with a lease for 2", id="foreign epoch"),
        pytest.param(changed(6, epoch=1), "published in epoch 1, which is camera's", id="somebody else's epoch"),
        pytest.param(changed(3, t=30), "published in epoch 1 when spare had epoch 2", id="zombie"),
    ],
)
def test_each_fault_is_named(events: list[Event], fault: str) -> None:
    assert any(fault in line for line in check(events)), check(events)


def test_a_journal_is_read_back_and_a_line_cut_by_a_kill_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with Journal(path, "camera") as journal:
        journal.attached(100, 5, Role.PRODUCER, STREAM, 1)
        journal.published(STREAM, 1, 0, 10)
        journal.received(STREAM, 1, 0, 10, (1, 0, 10))
        journal.missed(STREAM, 1, 3)
        journal.lost(100, STREAM)
    whole = read([path])
    assert [event.op for event in whole] == ["attached", "published", "received", "missed", "lost"]
    assert whole[0].client_id == 5
    assert whole[0].role is Role.PRODUCER
    assert whole[2].sealed == (1, 0, 10)
    assert whole[3].count == 3
    assert sorted(event.t for event in whole) == [event.t for event in whole]
    path.write_bytes(path.read_bytes()[:-4])
    assert read([path]) == whole[:4]
