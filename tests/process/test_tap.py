"""`framepool tap` against a driver, a producer and a consumer that do not know of it."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import framepool as fp
from framepool.cli import app
from framepool.cli.tap import line, spelled
from framepool.transport import channel
from framepool.transport.aeron import Client
from framepool.wire._generated.control_900 import DataSourceAnnounce, FrameDescriptor, QosProducer
from framepool.wire._generated.driver_901 import (
    Role,
    ShmAttachRequest,
    ShmDriverShutdownRequest,
    ShmLeaseKeepalive,
    ShutdownReason,
)
from framepool.wire._generated.trace_904 import TraceLinkSet
from framepool.wire.describe import build, describe
from tests.support.driver_client import DriverClient
from tests.support.drivers import RunningDriver, running_driver, table
from tests.support.processes import Process, Processes

STREAM = 10_000
TOKEN = "open-sesame"
REQUEST = ShmDriverShutdownRequest(correlation_id=7, reason=ShutdownReason.ADMIN, token=TOKEN)


@pytest.fixture
def driver(base_dir: Path) -> Iterator[RunningDriver]:
    with running_driver("embedded", base_dir, table(base_dir)) as running:
        yield running


class Taps:
    """Starts taps and waits until they listen."""

    def __init__(self, processes: Processes, driver: RunningDriver) -> None:
        self._processes = processes
        self._driver = driver

    def __call__(self, *args: str) -> Process:
        tap = self._processes.start("-m", "framepool", "tap", *args, "--config", str(self._driver.path))
        tap.wait_line("framepool tap: listening to ")
        return tap


@pytest.fixture
def tap(processes: Processes, driver: RunningDriver) -> Taps:
    return Taps(processes, driver)


def wait_message(tap: Process, name: str | None) -> dict[str, Any]:
    """The next message of that name that a tap prints as JSON."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        said: dict[str, Any] = json.loads(tap.wait_line("{", 30))
        if said["message"] == name:
            return said
    raise AssertionError(f"no {name}")


def stop(tap: Process) -> None:
    tap.signal(signal.SIGTERM)
    assert tap.wait(60) == 0, tap.lines


def test_every_shared_stream_is_heard_and_its_messages_spelled_out(tap: Taps, driver: RunningDriver) -> None:
    listening = tap("--json")
    expected = {
        "ShmAttachRequest": "control",
        "ShmPoolAnnounce": "announce",
        "FrameDescriptor": "descriptor",
        "QosProducer": "qos",
        "DataSourceAnnounce": "metadata",
    }
    heard: dict[str, dict[str, Any]] = {}
    with fp.connect(driver.config) as pool, pool.producer(STREAM, name="camera") as camera:
        deadline = time.monotonic() + 30
        while expected.keys() - heard.keys() and time.monotonic() < deadline:
            camera.publish(np.zeros(8, np.uint8))
            said = json.loads(listening.wait_line("{", 30))
            heard.setdefault(said["message"], said)
    assert {name: heard[name]["stream"] for name in expected} == expected
    assert heard["FrameDescriptor"]["aeron_stream_id"] == driver.config.stream_ids.descriptor
    assert heard["FrameDescriptor"]["time"].startswith("20")
    for kind in (ShmAttachRequest, FrameDescriptor, QosProducer, DataSourceAnnounce):
        said = heard[kind.__name__]
        message = build(kind, said["fields"])
        assert message.encode().hex() == said["hex"], "the shape of a golden vector"
    assert heard["DataSourceAnnounce"]["fields"]["name"] == "camera"
    stop(listening)


@pytest.mark.clause("W-10.2.1-17")
def test_derived_frame_is_linked_to_the_traces_of_its_parents(tap: Taps, driver: RunningDriver) -> None:
    listening = tap("metadata", "--only", "TraceLinkSet", "--json")
    with fp.connect(driver.config) as pool:
        camera, derived = pool.producer(STREAM), pool.producer(STREAM + 1)
        eye, second = pool.consumer(STREAM), pool.consumer(STREAM + 1)

        def through(producer: fp.Producer, consumer: fp.Consumer, **trace: Any) -> fp.Frame:
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline:
                seq = producer.publish(np.zeros(8, np.uint8), **trace)
                assert seq is not None
                if (frame := consumer.wait_for(seq, 0.2)) is not None:
                    return frame
            raise AssertionError("no frame came through")

        parent, untraced = through(camera, eye, trace_id=41), through(camera, eye)
        assert (parent.trace_id, untraced.trace_id) == (41, None)
        assert through(derived, second, parents=[untraced]).trace_id is None
        child = through(derived, second, parents=[parent, untraced, parent])
        with derived.claim(8, parents=[child, parent]) as slot:
            slot.array[:] = 1
        grandchild = second.wait_for(slot.seq, 30)
    assert grandchild is not None
    assert child.trace_id not in (None, 0, 41)
    said = wait_message(listening, "TraceLinkSet")
    while said["fields"]["seq"] != child.seq:  # others went before it until the consumer was there
        said = wait_message(listening, "TraceLinkSet")
    assert said["fields"] == {
        "streamId": STREAM + 1,
        "epoch": child.epoch,
        "seq": child.seq,
        "traceId": child.trace_id,
        "parents": [{"traceId": 41}],
    }
    links = build(TraceLinkSet, wait_message(listening, "TraceLinkSet")["fields"])
    assert (links.seq, links.trace_id) == (grandchild.seq, grandchild.trace_id)
    assert [parent.trace_id for parent in links.parents] == [child.trace_id, 41]
    stop(listening)
    assert {json.loads(text)["message"] for text in listening.lines if text.startswith("{")} == {"TraceLinkSet"}


def test_what_cannot_be_decoded_is_shown_and_tokens_are_not(tap: Taps, driver: RunningDriver) -> None:
    for_people, for_programs = tap("control"), tap("control", "--json")
    broken = REQUEST.encode()[:-6]
    with DriverClient(driver.config) as client:
        for data in (b"", b"\x01\x02\x03", bytes(range(40)), broken, REQUEST.encode()):
            client.send(data)
        said = wait_message(for_programs, "ShmDriverShutdownRequest")
        assert said["fields"]["token"] == "*" * len(TOKEN)
        for_people.wait_line("", 30)
        while "ShmDriverShutdownRequest" not in for_people.lines[-1]:
            for_people.wait_line("", 30)
    stop(for_people)
    stop(for_programs)
    undecodable = [text for text in for_people.lines if "undecodable: " in text]
    assert any("010203" in text for text in undecodable)
    assert any(bytes(range(32)).hex()[:40] in text for text in undecodable)
    output = "\n".join([*for_people.lines, *for_programs.lines])
    assert broken[:8].hex() in output, "its header is shown"
    for secret in (TOKEN, TOKEN.encode().hex(), TOKEN[:4].encode().hex()):
        assert secret not in output


def test_pair_of_channel_and_stream_is_tapped_and_count_ends_it(tap: Taps, driver: RunningDriver) -> None:
    listening = tap("--channel", "aeron:ipc?tether=true|term-length=64k", "--stream", "4711", "--count", "2")
    with Client.connect(driver.config.aeron) as client:
        publication = client.add_publication(channel.control(), 4711)
        descriptor = FrameDescriptor(stream_id=STREAM, epoch=3, seq=9)
        deadline = time.monotonic() + 30
        for _ in range(3):
            while publication.offer(descriptor.encode()) < 0:
                assert time.monotonic() < deadline
                time.sleep(0.005)
        assert listening.wait(60) == 0
    shown = [text for text in listening.lines if "FrameDescriptor" in text]
    assert len(shown) == 2
    assert all("  4711        FrameDescriptor  streamId=10000 epoch=3 seq=9" in text for text in shown)


def test_seconds_end_a_tap_that_hears_nothing(tap: Taps) -> None:
    assert tap("qos", "--only", "QosConsumer", "--seconds", "0.3").wait(60) == 0


def test_stopped_tap_stalls_nobody_and_goes_on_when_it_can(tap: Taps, driver: RunningDriver) -> None:
    """The control stream has terms of 64 KiB here: more than two of them pass while the tap sleeps."""
    listening = tap("control", "--only", "ShmLeaseKeepalive", "--json")
    keepalive = ShmLeaseKeepalive(lease_id=1, stream_id=STREAM, client_id=2, role=Role.CONSUMER, client_timestamp_ns=3)
    with Client.connect(driver.config.aeron) as client:
        where = channel.control_publication(driver.config.channels.control, driver.config.aeron)
        publication = client.add_publication(where, driver.config.stream_ids.control)

        def send(count: int) -> None:
            for _ in range(count):
                deadline = time.monotonic() + 20
                while publication.offer(keepalive.encode()) < 0:
                    assert time.monotonic() < deadline, "the stopped tap holds the stream up"
                    time.sleep(0.001)

        send(1)
        wait_message(listening, "ShmLeaseKeepalive")
        listening.signal(signal.SIGSTOP)
        send(3 * 64 * 1024 // 64)
        listening.signal(signal.SIGCONT)
        deadline = time.monotonic() + 30
        while not listening.has_line('{"time"') and time.monotonic() < deadline:
            send(1)
            time.sleep(0.02)
        assert time.monotonic() < deadline
    stop(listening)


BAD = [
    (("--count=-1",), "count"),
    (("--only", "Nonsense"), "no such message"),
    (("--stream=5",), "go together"),
    (("control", "--channel=aeron:ipc", "--stream=5"), "without topics"),
    (("--channel=ipc", "--stream=5"), "no Aeron channel"),
    (("--channel=aeron:ipc", "--stream=4294967296"), "32 bits"),
]


@pytest.mark.parametrize(("args", "why"), BAD)
def test_bad_input_is_refused_in_one_line(args: tuple[str, ...], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        app(("tap", *args))
    assert ended.value.code == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert why in said[0]


def shown(data: bytes) -> str:
    where = {"time": "2026-01-02T03:04:05.000006+00:00", "stream": "control", "aeron_stream_id": 1000}
    return line({**where, **spelled(data)})


def test_line_has_time_stream_message_and_the_fields_that_say_something() -> None:
    links = build(
        TraceLinkSet,
        {"streamId": 1, "epoch": 2, "seq": 3, "traceId": 4, "parents": [{"traceId": 5}, {"traceId": 6}]},
    )
    assert shown(links.encode()) == (
        "03:04:05.000006  control     TraceLinkSet  streamId=1 epoch=2 seq=3 traceId=4 parents[2]"
    )


def test_text_from_outside_cannot_move_the_cursor() -> None:
    request = ShmDriverShutdownRequest(
        correlation_id=1, reason=ShutdownReason.ADMIN, token="t", error_message="\x1b[2J" + "x" * 500
    )
    text = shown(request.encode())
    assert "\x1b" not in text
    assert text.isprintable()
    assert len(text) < 300


def test_absent_values_are_left_out() -> None:
    text = shown(FrameDescriptor(stream_id=1, epoch=2, seq=3).encode())
    assert "traceId" not in text
    assert "timestampNs" not in text


def test_newer_version_is_shown_with_all_its_bytes(golden_event: bytes) -> None:
    said = spelled(golden_event)
    assert said["hex"] == golden_event.hex()
    assert said["version"] == 9


@pytest.fixture
def golden_event() -> bytes:
    """An event of a version to come, with two more bytes in its block."""
    vectors = json.loads((Path(__file__).parents[1] / "golden" / "sbe-vectors.json").read_text())
    cases = vectors["vectors"] if isinstance(vectors, dict) else vectors
    data = bytearray.fromhex(next(case["hex"] for case in cases if case["schema_id"] == 905))
    length = int.from_bytes(data[0:2], "little")
    data[0:2] = (length + 2).to_bytes(2, "little")
    data[6:8] = (9).to_bytes(2, "little")
    data[8 + length : 8 + length] = b"\xaa\xbb"
    return bytes(data)


def test_token_of_a_whole_request_is_starred_out_and_the_rest_is_not() -> None:
    assert spelled(REQUEST.encode())["fields"] == {**describe(REQUEST), "token": "*" * len(TOKEN)}
