"""Commands from the other end: echo, refusal, silence, and services that come and go."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from framepool.agent import Runner, Sleeping
from framepool.config import Channels, Config
from framepool.errors import CommandRefused, EncodeError, NoEcho
from framepool.service import Commander, Event, Format
from framepool.transport import channel
from framepool.transport.aeron import Client
from framepool.transport.media_driver import MediaDriver
from framepool.wire._generated.event_905 import EventMessage
from tests.support.ports import free_port
from tests.unit.service.conftest import Operator, wait_until
from tests.unit.service.test_service import TAG, Kiln


@pytest.fixture
def kiln(client: Client, config: Config) -> Iterator[Kiln]:
    service = Kiln(client, config)
    with Runner(service, idle=Sleeping()).start() as runner:
        runner.wait_started()
        yield service


@pytest.fixture
def commander(config: Config) -> Iterator[Commander]:
    with Commander.connect(config) as commander:
        yield commander


def test_command_returns_with_its_echo_and_its_result(kiln: Kiln, commander: Commander) -> None:
    sent = commander.command(TAG, "count", 4)
    assert sent.echo is not None
    assert (sent.echo.key, sent.echo.value, sent.result) == ("count", 4, 8)
    assert kiln.done == [("count", 4)]
    assert commander.statistics()["waiting"] == 0


def test_format_can_be_named(kiln: Kiln, commander: Commander) -> None:
    sent = commander.command(TAG, "count", 4, format=Format.UINT8)
    assert sent.echo is not None
    assert sent.echo.format is Format.UINT8
    with pytest.raises(EncodeError, match="UINT8"):
        commander.command(TAG, "count", 400, format=Format.UINT8)


def test_refusal_has_the_reason_of_the_service(kiln: Kiln, commander: Commander) -> None:
    with pytest.raises(CommandRefused, match=f"{TAG}: count: Expected `int` <= 9"):
        commander.command(TAG, "count", 10)
    assert commander.statistics()["waiting"] == 0


def test_tag_without_a_service_has_no_echo(kiln: Kiln, commander: Commander) -> None:
    wait_until(commander._heard_by_services)
    with pytest.raises(NoEcho, match=r"service:nobody: no echo of 'count' within 0\.5 s"):
        commander.command("service:nobody", "count", 4, timeout=0.5)
    assert commander.statistics()["waiting"] == 0


def test_no_service_at_all_is_said(commander: Commander) -> None:
    with pytest.raises(NoEcho, match="no service listens"):
        commander.command(TAG, "count", 4, timeout=0.2)


def test_answers_to_others_are_not_taken(commander: Commander, client: Client, config: Config) -> None:
    """Somebody else's echo of the same key, another tag with the same id, and a late second answer."""
    operator = Operator(client, config)
    status = client.add_publication(channel.control(config.channels.service_status), config.stream_ids.service_status)
    ear = client.add_subscription(channel.control(config.channels.service_control), config.stream_ids.service_control)
    wait_until(lambda: commander.send(TAG, "count", 4) is not None)
    sent = commander.send(TAG, "count", 4)
    assert sent is not None
    heard: list[bytes] = []
    wait_until(lambda: heard.extend(ear.poll()) or len(heard) >= 2)

    def say(**fields: Any) -> None:
        event = Event(**{"tag": TAG, "key": "count", "correlation_id": sent.correlation_id, **fields})
        wait_until(lambda: status.offer(event.encode()) > 0)
        wait_until(commander.poll)

    say(correlation_id=sent.correlation_id + 1)
    say(tag="service:other")
    say(key="other")
    assert not sent.done
    say(key="error", value="no")
    assert (sent.done, sent.error, sent.echo) == (True, "no", None)
    say()
    assert sent.echo is None
    assert operator.hear()


def test_console_sends_and_polls_without_waiting(kiln: Kiln, commander: Commander) -> None:
    wait_until(lambda: commander.send(TAG, "nothing") is not None)
    sent = [commander.send(TAG, "count", number) for number in (1, 2, 30)]
    events: list[Event] = []
    wait_until(lambda: events.extend(commander.poll()) or all(each is not None and each.done for each in sent))
    assert [each.result for each in sent if each is not None] == [2, 4, None]
    assert sent[2] is not None
    assert "<= 9" in str(sent[2].error)
    assert [each.key for each in events if each.key in {"count", "error"}] == ["count", "count", "error"]


def test_commands_that_nobody_answers_are_given_up_in_the_end(
    kiln: Kiln, commander: Commander, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("framepool.service.commander.MOST_WAITING", 5)
    wait_until(lambda: commander.send("service:nobody", "x") is not None)
    for _ in range(10):
        commander.send("service:nobody", "x")
    assert commander.statistics()["waiting"] == 5


def test_services_are_listed_with_their_state(kiln: Kiln, commander: Commander) -> None:
    commander.command(TAG, "pause")
    wait_until(lambda: [each.state for each in commander.services(0.01)] == ["paused"])
    (service,) = commander.services()
    assert service.tag == TAG
    assert 0 <= commander.directory.age_s(service) < 60


def test_what_is_no_event_on_the_status_stream_is_counted(
    kiln: Kiln, commander: Commander, client: Client, config: Config
) -> None:
    status = client.add_publication(channel.control(config.channels.service_status), config.stream_ids.service_status)
    wait_until(lambda: status.offer(b"rubbish") > 0)
    wait_until(lambda: commander.poll() is not None and commander.statistics().get("undecodable") == 1)
    assert commander.command(TAG, "count", 4).result == 8


def test_follower_that_does_not_read_holds_up_nobody(kiln: Kiln, commander: Commander, config: Config) -> None:
    with Commander.connect(config):  # never polled, as if its terminal were full
        for _ in range(300):
            assert commander.command(TAG, "text", "x" * 500).echo is not None
    assert len(kiln.done) == 300


@pytest.mark.clause("S-4-01", "S-5-01")
@pytest.mark.parametrize("media", ["ipc", "udp"])
def test_commands_and_echoes_go_over_the_configured_streams(media_driver: MediaDriver, media: str) -> None:
    channels = Channels(service_control=endpoint(media), service_status=endpoint(media))
    config = Config(aeron=media_driver.settings, channels=channels)
    ids = msgspec.structs.replace(config.stream_ids, service_control=2400, service_status=2401)
    config = msgspec.structs.replace(config, stream_ids=ids)
    with Client.connect(config.aeron) as client:
        service = Kiln(client, config)
        taps = {stream: client.add_subscription(spy(media, where), stream) for stream, where in streams(config)}
        with Runner(service, idle=Sleeping()).start(), Commander.connect(config) as commander:
            sent = commander.command(TAG, "count", 4, timeout=20)
            assert service.done == [("count", 4)]
            heard = {stream: drained(tap) for stream, tap in taps.items()}
    assert [(each.key, each.value, each.correlation_id) for each in heard[2400]] == [("count", 4, sent.correlation_id)]
    said = [(each.key, each.value) for each in heard[2401] if each.key != "status"]
    assert said == [("result", 8), ("count", 4)]


def endpoint(media: str) -> str:
    if media == "ipc":
        return "aeron:ipc?term-length=64k"
    return f"aeron:udp?endpoint=127.0.0.1:{free_port()}|term-length=64k"


def streams(config: Config) -> list[tuple[int, str]]:
    return [(2400, config.channels.service_control), (2401, config.channels.service_status)]


def spy(media: str, where: str) -> str:
    """What sees a network publication from inside its own media driver."""
    return where if media == "ipc" else where.replace("aeron:udp", "aeron-spy:aeron:udp")


def drained(subscription: Any) -> list[Event]:
    """What a stream carried, decoded as valid SBE."""
    messages: list[bytes] = []
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        messages += subscription.poll()
    return [Event.of(EventMessage.decode(data)) for data in messages]


def test_status_is_plain_json(kiln: Kiln, commander: Commander) -> None:
    state = json.loads(str(commander.command(TAG, "state").result))
    assert state.keys() >= {"state", "uptime_s", "version", "host", "pid", "parameters", "counts"}
