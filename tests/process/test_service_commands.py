"""`framepool ctl`, `events`, `services` and `limiter` as people use them, against a driver in a process of its own."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from framepool.cli.ctl import parse
from framepool.service import Event, Format, Ref
from framepool.transport import channel
from framepool.transport.aeron import Client
from tests.support.driver_site import Site
from tests.support.onlooker import wait_until
from tests.support.processes import Process, Processes

DRIVER = "service:driver:site"


@pytest.fixture
def site(processes: Processes, base_dir: Path) -> Site:
    return Site(processes, base_dir, more='shutdown_token = "sesame"')


@pytest.fixture
def driver(site: Site) -> Iterator[Process]:
    process = site.start_driver()
    yield process
    if process.popen.poll() is None:
        process.signal(signal.SIGTERM)
        process.wait()


def ran(process: Process, code: int = 0) -> list[str]:
    assert process.wait(60) == code, process.lines
    return process.lines


def answer(site: Site, *args: str, code: int = 0) -> dict[str, Any]:
    """What `framepool ctl … --json` says."""
    (line,) = [line for line in ran(site.framepool("ctl", *args, "--json"), code) if line.startswith("{")]
    said: dict[str, Any] = json.loads(line)
    return said


def test_ctl_waits_for_the_echo_and_shows_it(site: Site, driver: Process) -> None:
    lines = ran(site.framepool("ctl", DRIVER, "state"))
    assert lines[0] == f"{DRIVER} accepted state"
    assert json.loads("".join(lines[1:]))["namespace"] == "site"
    said = answer(site, DRIVER, "streams")
    assert (said["accepted"], said["echo"]["key"], said["result"]) == (True, "streams", [])
    assert answer(site, DRIVER, "gc")["result"] is None


def test_ctl_says_no_with_the_reason(site: Site, driver: Process) -> None:
    refused = answer(site, DRIVER, "pause", code=1)
    assert (refused["accepted"], refused["kind"]) == (False, "CommandRefused")
    assert "no command 'pause'; there are" in refused["error"]
    assert "gc takes no value" in ran(site.framepool("ctl", DRIVER, "gc", "-5"), 1)[0]
    silent = answer(site, "service:driver:nobody", "state", "--timeout", "0.3", code=1)
    assert silent["kind"] == "NoEcho"
    assert "no UINT8" in ran(site.framepool("ctl", DRIVER, "gc", "x", "--format", "uint8"), 2)[0]
    assert "range of UINT8" in ran(site.framepool("ctl", DRIVER, "gc", "256", "--format", "uint8"), 2)[0]


def test_driver_ends_by_command_with_its_token_only(processes: Processes, base_dir: Path) -> None:
    """With the media driver elsewhere, so that what is said last is heard."""
    site = Site(processes, base_dir, media_driver="external", more='shutdown_token = "sesame"')
    site.start_media_driver()
    driver = site.start_driver()
    follower = site.framepool("events", "--json")
    follower.wait_line("framepool events: listening")
    assert "not authorised" in answer(site, DRIVER, "stop", "wrong", code=1)["error"]
    assert driver.popen.poll() is None
    assert answer(site, DRIVER, "stop", "sesame")["echo"]["value"] == "******"
    assert driver.wait() == 0
    stops = []
    while len(stops) < 3:
        each = json.loads(follower.wait_line("{"))
        if each["key"] == "stop":
            stops.append((each["stream"], each["value"]))
    assert stops == [("control", "*****"), ("control", "******"), ("status", "******")]
    assert "sesame" not in str(follower.lines)


@pytest.mark.clause("S-1-01")
def test_no_event_grants_a_lease_or_changes_a_mapping(site: Site, driver: Process) -> None:
    before = site.status()
    config = site.config
    with Client.connect(config.aeron) as client:
        where = channel.control(config.channels.service_control)
        publication = client.add_publication(where, config.stream_ids.service_control)
        status = client.add_subscription(
            channel.control(config.channels.service_status), config.stream_ids.service_status
        )
        keys = ("attach", "detach", "ShmAttachRequest", "start", "set:streams", "announce", "gc", "streams", "state")
        for number, key in enumerate(keys, start=1):
            for value in (None, "10001", 10_001, Ref(10_001, 1, 1), b"\x01" * 40):
                data = Event(tag=DRIVER, key=key, value=value, correlation_id=number).encode()
                wait_until(lambda data=data: publication.offer(data) > 0)
        answers: list[Event] = []
        wait_until(lambda: answers.extend(map(Event.decode, status.poll())) or finished(answers, 5 * len(keys)))
    after = site.wait_status(lambda now: now["monotonic_ns"] > before["monotonic_ns"])
    assert (after["leases"], after["streams"]) == ([], [])
    assert after["counts"].get("attach OK", 0) == 0


def finished(answers: list[Event], count: int) -> bool:
    """Each command is echoed or refused; what it gives back comes beside."""
    return len([each for each in answers if each.correlation_id and each.key != "result"]) == count


@pytest.mark.clause("S-7-02")
def test_services_lists_who_is_there(site: Site, driver: Process) -> None:
    for _ in range(5):  # one of the two may have had no processor while it listened
        (listed,) = json.loads(ran(site.framepool("services", "--json"))[-1]) or [{"silent": True}]
        if not listed["silent"]:
            break
    assert (listed["tag"], listed["state"], listed["pid"]) == (DRIVER, "running", driver.pid)
    assert (listed["silent"], listed["age_s"] < 60) == (False, True)
    assert any(DRIVER in line for _ in range(5) for line in ran(site.framepool("services")))


def test_services_watches_states_change(site: Site, driver: Process) -> None:
    limiter = site.framepool("limiter", "--source", "10001", "--dest", "20000", "--json")
    ready = json.loads(limiter.wait_line("{"))
    assert ready["tag"] == "service:limiter:20000"
    watch = site.framepool("services", "--watch", "--json")
    wait_for_state(watch, ready["tag"], "running")
    answer(site, ready["tag"], "pause")
    wait_for_state(watch, ready["tag"], "paused")
    limiter.signal(signal.SIGTERM)
    assert limiter.wait() == 0
    wait_for_state(watch, ready["tag"], None)
    watch.signal(signal.SIGINT)
    assert watch.wait() == 0


def wait_for_state(watch: Process, tag: str, state: str | None) -> None:
    while True:
        listed = json.loads(watch.wait_line("[", 60))
        if next((each["state"] for each in listed if each["tag"] == tag), None) == state:
            return


def test_events_follows_one_service_and_one_stream(site: Site, driver: Process) -> None:
    follower = site.framepool("events", "--control", "--tag", DRIVER, "--count", "2")
    follower.wait_line("framepool events: listening to control")
    answer(site, "service:other", "x", "--timeout", "0.2", code=1)
    answer(site, DRIVER, "gc")
    answer(site, DRIVER, "announce")
    lines = [line for line in ran(follower) if DRIVER in line]
    assert ["  gc  #" in lines[0], "  announce  #" in lines[1]] == [True, True]


def test_limiter_that_cannot_work_is_refused(site: Site, driver: Process) -> None:
    for args, why in (
        (("--source", "10001", "--dest", "10001"), "itself"),
        (("--source", "10001", "--dest", "20000", "--max-rate", "-1"), ">= 0"),
        (("--source", "0", "--dest", "20000"), "no stream id"),
    ):
        assert why in ran(site.framepool("limiter", *args), 2)[-1]


@pytest.mark.parametrize(
    ("text", "format", "value"),
    [
        (None, None, None),
        ("25", None, 25),
        ("-5", None, -5),
        ("2.5", None, 2.5),
        ("true", None, True),
        ("night", None, "night"),
        ("25", Format.STRING, "25"),
        ("0x10", Format.UINT8, 16),
        ("3", Format.FLOAT64, 3.0),
        ("false", Format.BOOLEAN, False),
        ("00ff", Format.BYTES, b"\x00\xff"),
        ("10", Format.BIT, (True, False)),
        ("10000/7/42", Format.REF, Ref(10_000, 7, 42)),
        ("anything", Format.NOTHING, None),
    ],
)
def test_typed_text_is_the_value_that_is_meant(text: str | None, format: Format | None, value: object) -> None:
    parsed = parse(text, format)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("text", "format"),
    [("yes", Format.BOOLEAN), ("12", Format.BIT), ("1/2", Format.REF), ("0g", Format.BYTES), ("1.5", Format.INT32)],
)
def test_text_that_is_not_of_its_format_is_refused(text: str, format: Format) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse(text, format)
