"""The checker on what a driver was heard to say, on files, on bridged streams, and on recordings and replays."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framepool.testing.history import Event, Seal, check
from framepool.testing.journal import Op
from framepool.testing.shortest import shortest
from framepool.wire._generated.driver_901 import Role

STREAM, DEST = 7, 50_000


def event(op: Op, t: int, process: str = "witness", **fields: object) -> Event:
    return msgspec.structs.replace(Event(process=process, op=op, t=t, stream_id=STREAM), **fields)


def granted(t: int, lease_id: int, epoch: int, role: Role = Role.PRODUCER) -> Event:
    return event("granted", t, lease_id=lease_id, epoch=epoch, client_id=t, role=role)


HEARD = {
    "first": granted(1, 100, 5),
    "announced": event("announced", 2, epoch=5),
    "reader": granted(3, 101, 5, Role.CONSUMER),
    "end": event("ended", 4, lease_id=100),
    "bump": event("announced", 5, epoch=6),
    "second": granted(6, 102, 7),
    "announced again": event("announced", 7, epoch=7),
    "deaf": event("deaf", 8, stream_id=0),
    "third": granted(9, 103, 9),
    "shutdown": event("shutdown", 10, stream_id=0),
    "fourth": granted(11, 104, 11),
}

SEALED = {
    "here": event("allowed", 0, "nemesis", path="/dev/shm/pools"),
    "bridge": event("bridged", 0, "nemesis", stream_id=DEST, source=STREAM),
    "frame 0": event("published", 1, "camera", epoch=5, seq=0, crc=50),
    "frame 1": event("published", 2, "camera", epoch=5, seq=1, crc=51),
    "frame 2": event("published", 3, "camera", epoch=5, seq=2, crc=52),
    "not committed": event("published", 4, "camera", epoch=5, seq=3, crc=53),
    "withdrawn": event("withdrawn", 5, "camera", epoch=5, seq=3),
    "camera lease": event("attached", 0, "camera", lease_id=1, epoch=5, role=Role.PRODUCER),
    "eye lease": event("attached", 0, "eye", stream_id=DEST, lease_id=2, epoch=9, role=Role.CONSUMER),
    "eye map": event("mapped", 1, "eye", stream_id=DEST, epoch=9),
    "file": event("file", 1, "eye", path="/dev/shm/pools/tensorpool-me/x/7/5/header.ring"),
    "over the bridge": event(
        "received", 4, "eye", stream_id=DEST, epoch=9, seq=0, crc=50, sealed=Seal(5, 0, 50, STREAM)
    ),
    "recorded 0": event("recorded", 9, "recording", epoch=5, seq=0, crc=50, sealed=Seal(5, 0, 50, STREAM)),
    "lost 1": event("unrecorded", 9, "recording", epoch=5, seq=1, count=1),
    "recorded 2": event("recorded", 9, "recording", epoch=5, seq=2, crc=52, sealed=Seal(5, 2, 52, STREAM)),
    "replayed 0": event("replayed", 10, "replay", epoch=5, seq=0, crc=50),
    "replayed 2": event("replayed", 10, "replay", epoch=5, seq=2, crc=52),
}


def sealed_history(**changed: Event | None) -> list[Event]:
    """That history with some events changed, or left out."""
    events = {**SEALED, **changed}
    first = [events.pop("camera lease"), event("mapped", 0, "camera", epoch=5)]
    return [each for each in [*first, *events.values()] if each is not None]


def changed(name: str, **fields: object) -> dict[str, Event | None]:
    return {name: msgspec.structs.replace(SEALED[name], **fields)}


def test_histories_without_fault_pass() -> None:
    assert check(HEARD.values()) == []
    assert check(sealed_history()) == []


@pytest.mark.parametrize(
    ("name", "fields", "fault"),
    [
        ("second", {"lease_id": 100}, "lease 100 was granted to 1 and to 6"),
        ("second", {"epoch": 5}, "granted epoch 5 after epoch 5"),
        ("second", {"epoch": 3}, "granted epoch 3 after epoch 5"),
        ("third", {"epoch": 7}, "granted epoch 7 after epoch 7"),
        ("bump", {"epoch": 4}, "announced epoch 4 after epoch 5"),
        ("end", {"lease_id": 99}, "granted to 6 while lease 100 of 1 had no end"),
        ("deaf", {"op": "announced", "stream_id": 8}, "granted to 9 while lease 102 of 6 had no end"),
        ("shutdown", {"op": "announced", "stream_id": 8}, "granted to 11 while lease 103 of 9 had no end"),
    ],
)
def test_what_a_driver_may_not_say_is_named(name: str, fields: dict[str, object], fault: str) -> None:
    history = list({**HEARD, name: msgspec.structs.replace(HEARD[name], **fields)}.values())
    assert any(fault in violation.text for violation in check(history)), check(history)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        pytest.param(changed("file", path="/dev/shm/decoy/header.ring"), "mapped elsewhere", id="outside"),
        pytest.param(changed("file", path="/dev/shm/pools-too/x"), "mapped elsewhere", id="a name that begins alike"),
        pytest.param(changed("over the bridge", sealed=Seal(5, 0, 50, 8)), "wrong stream", id="other stream"),
        pytest.param(changed("over the bridge", sealed=Seal(5, 1, 50, STREAM)), "wrong frame", id="other frame"),
        pytest.param(changed("over the bridge", sealed=Seal(4, 0, 50, STREAM)), "nobody wrote it", id="other source"),
        pytest.param(
            {"mixed": event("received", 5, "eye", stream_id=DEST, epoch=9, seq=1, crc=1, sealed=Seal(6, 1, 1, STREAM))},
            "wrong epoch",
            id="epochs of the source mixed",
        ),
        pytest.param(changed("recorded 0", crc=1), "torn", id="recorded torn"),
        pytest.param(changed("recorded 2", seq=7, sealed=None), "nobody wrote it", id="recorded from nowhere"),
        pytest.param({"twice": SEALED["recorded 0"]}, "recorded twice", id="recorded twice"),
        pytest.param(changed("lost 1", seq=0, count=2), "recorded and lost", id="recorded and lost"),
        pytest.param({"more": SEALED["lost 1"]}, "lost twice", id="lost twice"),
        pytest.param({"lost 1": None}, "recording incomplete", id="neither recorded nor lost"),
        pytest.param(changed("replayed 2", crc=1), "replay differs", id="replayed otherwise"),
        pytest.param(changed("replayed 2", seq=1), "replay differs", id="replayed and not recorded"),
        pytest.param({"again": SEALED["replayed 0"]}, "replay differs", id="replayed out of order"),
    ],
)
def test_what_else_may_not_be_is_named(change: dict[str, Event | None], rule: str) -> None:
    violations = check(sealed_history(**change))
    assert rule in {violation.rule for violation in violations}, violations


def test_replay_that_left_a_frame_out_is_seen() -> None:
    third = msgspec.structs.replace(SEALED["recorded 2"], seq=1, crc=51, sealed=Seal(5, 1, 51, STREAM))
    history = sealed_history(**{"lost 1": third})
    assert [violation.rule for violation in check(history)] == ["replay differs"]


def test_replay_that_ends_too_early_is_seen() -> None:
    history = sealed_history(**{"replayed 2": None})
    assert [violation.rule for violation in check(history)] == ["replay differs"]


def test_loss_of_unknown_length_explains_all_that_follows() -> None:
    history = sealed_history(**changed("lost 1", count=-1), **{"recorded 2": None, "replayed 2": None})
    assert check(history) == []


def test_what_is_not_told_of_is_not_checked() -> None:
    assert (
        check([SEALED["bridge"], SEALED["file"], SEALED["eye lease"], SEALED["eye map"], SEALED["over the bridge"]])
        == []
    )


def test_grace_is_for_who_goes_on_for_a_moment_and_not_for_who_goes_on() -> None:
    def producer(name: str, t: int, epoch: int) -> list[Event]:
        lease = event("attached", t, name, lease_id=t, epoch=epoch, role=Role.PRODUCER)
        return [lease, event("mapped", t, name, epoch=epoch)]

    frames = [event("published", t, "old", epoch=1, seq=t, crc=1) for t in (5, 15, 20, 30)]
    history = [*producer("old", 1, 1), *frames, *producer("new", 10, 2)]
    assert len(check(history)) == 3
    assert len(check(history, grace_ns=10)) == 1, "of the one at 30 only: it was awake at 15"
    assert check(history, grace_ns=100) == []


@given(st.integers(2, 200), st.data())
def test_an_uncounted_gap_anywhere_is_found_and_its_history_is_a_handful(frames: int, data: st.DataObject) -> None:
    hole = data.draw(st.integers(1, frames - 1))
    history = [
        event("attached", 0, "eye", lease_id=1, epoch=5, role=Role.CONSUMER),
        event("mapped", 0, "eye", epoch=5),
        *(event("received", seq, "eye", epoch=5, seq=seq, crc=seq) for seq in range(frames + 1) if seq != hole),
    ]
    (violation,) = check(history)
    assert (violation.rule, violation.seq) == ("gap not accounted for", hole + 1)
    short = shortest(history, violation)
    assert len(short) <= 4
    assert any(each.rule == violation.rule for each in check(short))
    counted = [*history[: hole + 2], event("missed", hole, "eye", epoch=5, count=1), *history[hole + 2 :]]
    assert check(counted) == []
