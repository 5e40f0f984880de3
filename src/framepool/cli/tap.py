"""`framepool tap`: every message on the shared streams, or on any other, decoded like a packet dump.

It reads untethered, so a terminal that is stopped or too slow misses messages instead of stalling those who speak.
What cannot be decoded is shown with the reason and its bytes. Text from outside is escaped, and the token of a
shutdown request is starred out (`decisions.md` #15), also where the request around it is broken.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from json import dumps
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, get_args

from cyclopts import Parameter

from framepool.cli.stopping import stop_asked
from framepool.config import Config, load
from framepool.errors import ConfigurationError, DecodeError, EncodeError, MediaDriverLost
from framepool.transport import channel as channels
from framepool.transport.aeron import Client
from framepool.transport.listener import Listener
from framepool.wire import dispatch
from framepool.wire._generated.driver_901 import ShmDriverShutdownRequest
from framepool.wire._generated.event_905 import EventMessage
from framepool.wire.describe import SECRET_KEY, redacted, vector
from framepool.wire.message import MESSAGE_HEADER

Topic = Literal["control", "announce", "descriptor", "qos", "metadata"]

LONGEST_TEXT = 80
LONGEST_HEX = 64
PAUSE = 0.002


def tap(
    *topics: Annotated[Topic, Parameter(help="The shared streams to listen to; all of them if none is named.")],
    channel: Annotated[str | None, Parameter(help="Listen to this Aeron channel instead; goes with --stream.")] = None,
    stream: Annotated[int | None, Parameter(help="The Aeron stream id on that channel.")] = None,
    only: Annotated[
        tuple[str, ...], Parameter(negative="", help="Show messages of this name only; may be repeated.")
    ] = (),
    count: Annotated[int, Parameter(help="Stop after so many messages; 0 is never.")] = 0,
    seconds: Annotated[float, Parameter(help="Stop after so long; 0 is never.")] = 0.0,
    config: Annotated[Path | None, Parameter(help="The TOML file that the driver runs with.")] = None,
    json: Annotated[
        bool, Parameter(negative="", help="One JSON object a message, shaped like a golden vector.")
    ] = False,
) -> None:
    """Show the messages of the control plane as they pass, until Ctrl-C."""
    if not (count >= 0 and 0 <= seconds < float("inf")):
        _refuse("count and seconds are 0 or more")
    known = {message.__name__ for message in dispatch.MESSAGES}
    if unknown := sorted(set(only) - known):
        _refuse(f"--only {unknown[0]}: no such message; `framepool tap` without it shows the names that pass")
    settings = load(config)
    try:
        sources = _sources(settings, topics, channel, stream)
    except ConfigurationError as error:
        _refuse(str(error))
    with Client.connect(settings.aeron, name="framepool tap") as client:
        ears = [_Ear(client, *source) for source in sources]
        print(f"framepool tap: listening to {', '.join(ear.name for ear in ears)}", file=sys.stderr, flush=True)
        end = time.monotonic() + seconds if seconds else float("inf")
        shown = 0
        with stop_asked() as asked:
            while not asked.is_set() and time.monotonic() < end and not 0 < count <= shown:
                heard = [said for ear in ears for said in ear.hear()]
                for said in heard:
                    if only and said["message"] not in only:
                        continue
                    print(dumps(said) if json else line(said))
                    shown += 1
                    if shown == count:
                        break
                sys.stdout.flush()
                if not heard and not client.connected:
                    client.try_reconnect()
                if not heard:
                    asked.wait(PAUSE)
        if missed := sum(ear.left_behind for ear in ears):
            print(f"framepool tap: too slow {missed} times; messages were missed", file=sys.stderr)


class _Ear:
    """One Aeron stream under its name."""

    def __init__(self, client: Client, name: str, channel: str, stream_id: int) -> None:
        self.name = name
        self._where = {"stream": name, "channel": channel, "aeron_stream_id": stream_id}
        self._listener = Listener(client.add_subscription(channel, stream_id))

    @property
    def left_behind(self) -> int:
        return self._listener.left_behind

    def hear(self) -> Iterator[dict[str, Any]]:
        """What came since the last call; nothing while there is no media driver."""
        try:
            messages = self._listener.poll()
        except MediaDriverLost:
            return
        now = datetime.now(UTC).isoformat(timespec="microseconds")
        for data in messages:
            yield {"time": now, **self._where, **spelled(data)}


def spelled(data: bytes) -> dict[str, Any]:
    """What `wire.describe.vector` says of a message, or the reason why nothing can be said, and the bytes."""
    try:
        message = dispatch.decode(data)
        shown = redacted(message)
        said = vector(shown)
    except (DecodeError, EncodeError) as error:
        return {"message": None, "error": str(error), "length": len(data), "hex": _harmless(data).hex()}
    if message.EXTENSIBLE and shown is message:  # a newer one says more than we can encode
        header = dispatch.peek_header(data)
        said |= {"version": header.version, "block_length": header.block_length}
        said |= {"length": len(data), "hex": data.hex()}
    return said


def line(said: dict[str, Any]) -> str:
    """A message in one line: when, where, what, and its fields."""
    clock = said["time"].partition("T")[2].partition("+")[0]
    head = f"{clock}  {said['stream']:10}  "
    if said["message"] is None:
        return (
            f"{head}undecodable: {_escaped(said['error'])}; {said['length']} bytes: {_short(said['hex'], LONGEST_HEX)}"
        )
    return f"{head}{said['message']}  {' '.join(_fields(said['fields']))}".rstrip()


def _fields(fields: dict[str, Any]) -> Iterator[str]:
    """Those that say something, groups by the number of their entries."""
    for name, value in fields.items():
        if isinstance(value, list):
            yield f"{name}[{len(value)}]"
        elif isinstance(value, str) and value:
            plain = value.isascii() and value.replace("_", "").isalnum()
            yield f"{name}={_short(value, LONGEST_TEXT) if plain else _escaped(_short(value, LONGEST_TEXT))}"
        elif value not in (None, ""):
            yield f"{name}={dumps(value)}"


def _escaped(text: str) -> str:
    return dumps(text)


def _short(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def _harmless(data: bytes) -> bytes:
    """The bytes as they are; of a broken shutdown request or command only the header, for its token may be anywhere
    behind it."""
    try:
        header = dispatch.peek_header(data)
    except DecodeError:
        return data
    kind = (header.schema_id, header.template_id)
    is_secret = kind == (ShmDriverShutdownRequest.SCHEMA_ID, ShmDriverShutdownRequest.TEMPLATE_ID) or (
        kind == (EventMessage.SCHEMA_ID, EventMessage.TEMPLATE_ID) and SECRET_KEY.encode() in data
    )
    return data[: MESSAGE_HEADER.size] if is_secret else data


def _sources(
    settings: Config, topics: tuple[Topic, ...], channel: str | None, stream: int | None
) -> list[tuple[str, str, int]]:
    """Name, channel and Aeron stream id of all that is listened to."""
    if channel is not None or stream is not None:
        if channel is None or stream is None or topics:
            _refuse("--channel and --stream go together, and without topics")
        if not -(2**31) <= stream < 2**31:
            _refuse(f"--stream {stream}: Aeron stream ids have 32 bits")
        return [(f"{stream}", _untethered(channel), stream)]
    return [
        (topic, _untethered(getattr(settings.channels, topic)), getattr(settings.stream_ids, topic))
        for topic in dict.fromkeys(topics or get_args(Topic))
    ]


def _untethered(channel: str) -> str:
    """The channel with this reader left behind when it stops, whatever is said elsewhere."""
    media, parameters = channels.parse(channel)
    return channels.build(media, {**parameters, channels.TETHER: "false"})


def _refuse(why: str) -> NoReturn:
    print(f"framepool tap: {why}", file=sys.stderr)
    sys.exit(2)
