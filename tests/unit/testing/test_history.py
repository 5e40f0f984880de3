"""The checker of histories: a faultless one passes, and each fault is named."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from framepool.testing.history import Event, Journal, Seal, check, read
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
        process=process,
        op="received",
        t=t,
        stream_id=STREAM,
        epoch=epoch,
        seq=seq,
        crc=crc,
        sealed=Seal(epoch, seq, crc),
    )


def mapped(process: str, t: int, epoch: int) -> Event:
    return Event(process=process, op="mapped", t=t, stream_id=STREAM, epoch=epoch)


def missed(process: str, t: int, epoch: int, count: int) -> Event:
    return Event(process=process, op="missed", t=t, stream_id=STREAM, epoch=epoch, count=count)


GOOD = {
    "camera attached": attached("camera", 1, 100, 1),
    "camera mapped": mapped("camera", 2, 1),
    "frame 0": published("camera", 4, 1, 0),
    "frame 1": published("camera", 5, 1, 1),
    "frame 2": published("camera", 6, 1, 2),
    "camera lost": lost("camera", 8, 100),
    "spare attached": attached("spare", 9, 102, 2),
    "spare mapped": mapped("spare", 9, 2),
    "spare frame": published("spare", 10, 2, 0),
    "viewer attached": attached("viewer", 2, 101, 1, Role.CONSUMER),
    "viewer mapped": mapped("viewer", 2, 1),
    "saw frame 0": received("viewer", 4, 1, 0),
    "missed frame 1": missed("viewer", 6, 1, 1),
    "saw frame 2": received("viewer", 7, 1, 2),
    "viewer remapped": mapped("viewer", 10, 2),
    "saw spare frame": received("viewer", 11, 2, 0),
}


def test_a_history_without_fault_passes() -> None:
    assert check(GOOD.values()) == []


def changed(name: str, **fields: object) -> list[Event]:
    return list({**GOOD, name: msgspec.structs.replace(GOOD[name], **fields)}.values())


def without(name: str) -> list[Event]:
    return [event for other, event in GOOD.items() if other != name]


def after(name: str, *more: Event) -> list[Event]:
    at = list(GOOD).index(name) + 1
    events = list(GOOD.values())
    return [*events[:at], *more, *events[at:]]


@pytest.mark.parametrize(
    ("events", "fault"),
    [
        pytest.param(
            changed("saw frame 0", crc=99), "torn, the payload's crc is 00000063, sealed was 0000000a", id="torn"
        ),
        pytest.param(
            changed("saw frame 0", sealed=Seal(1, 4, 10)), "holds the payload of seq 4 of epoch 1", id="other frame"
        ),
        pytest.param(
            changed("saw frame 0", sealed=Seal(0, 0, 10)), "holds the payload of seq 0 of epoch 0", id="other epoch"
        ),
        pytest.param(changed("frame 0", crc=99), "crc 0000000a, but 00000063 was published", id="not as written"),
        pytest.param(without("missed frame 1"), "received seq 2 of epoch 1, due was 1", id="uncounted gap"),
        pytest.param(changed("missed frame 1", count=2), "received seq 2 of epoch 1, due was 3", id="counted twice"),
        pytest.param(
            after("saw spare frame", mapped("viewer", 12, 1)), "mapped epoch 1 after epoch 2", id="epoch goes back"
        ),
        pytest.param(
            without("viewer remapped"), "received in epoch 2, mapped was 1", id="frame of an epoch not mapped"
        ),
        pytest.param(without("viewer mapped"), "received in epoch 1, mapped was none", id="nothing mapped"),
        pytest.param(
            without("viewer attached"), "viewer, stream 7: received seq 0 of epoch 1 without a lease", id="no lease"
        ),
        pytest.param(
            after("camera lost", published("camera", 8, 1, 3)),
            "camera, stream 7: published seq 3 of epoch 1 without a lease",
            id="after the loss",
        ),
        pytest.param(
            after("frame 2", attached("camera", 7, 103, 3)), "got lease 103 while it held 100", id="two leases"
        ),
        pytest.param(
            changed("spare attached", lease_id=100), "lease 100 was granted to camera and to spare", id="lease id twice"
        ),
        pytest.param(
            changed("spare attached", epoch=1), "epoch 1 of stream 7 has producers camera and spare", id="two producers"
        ),
        pytest.param(changed("spare frame", epoch=3), "published in epoch 3 with a lease for 2", id="foreign epoch"),
        pytest.param(changed("spare frame", epoch=1), "published in epoch 1, which is camera's", id="another's epoch"),
        pytest.param(changed("frame 2", t=30), "published in epoch 1 when spare had epoch 2", id="zombie"),
    ],
)
def test_each_fault_is_named(events: list[Event], fault: str) -> None:
    assert any(fault in violation.text for violation in check(events)), check(events)


def test_a_journal_is_read_back_and_a_line_cut_by_a_kill_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with Journal(path, "camera") as journal:
        journal.attached(100, 5, Role.PRODUCER, STREAM, 1)
        journal.mapped(STREAM, 1)
        journal.published(STREAM, 1, 0, 10)
        journal.received(STREAM, 1, 0, 10, Seal(1, 0, 10))
        journal.missed(STREAM, 1, 3)
        journal.lost(100, STREAM)
    whole = read([path])
    assert [event.op for event in whole] == ["attached", "mapped", "published", "received", "missed", "lost"]
    assert whole[0].client_id == 5
    assert whole[0].role is Role.PRODUCER
    assert whole[3].sealed == Seal(1, 0, 10)
    assert whole[4].count == 3
    assert sorted(event.t for event in whole) == [event.t for event in whole]
    path.write_bytes(path.read_bytes()[:-4])
    assert read([path]) == whole[:5]
