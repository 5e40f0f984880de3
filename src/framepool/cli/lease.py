"""`framepool attach`, `keepalive`, `detach`: single messages to the driver, to see what it answers.

For debugging and for learning the protocol. A lease made here lives as long as its keepalives come; programs use the
client, which does all of this by itself.
"""

from __future__ import annotations

import json as jsonlib
import secrets
import sys
import time
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from framepool.client.attach import new_client_id
from framepool.config import Config, load
from framepool.errors import DecodeError, TransportTimeout
from framepool.transport import channel
from framepool.transport.aeron import Client, Publication
from framepool.wire._generated.driver_901 import (
    PublishMode,
    ResponseCode,
    Role,
    ShmAttachRequest,
    ShmAttachResponse,
    ShmDetachRequest,
    ShmDetachResponse,
    ShmLeaseKeepalive,
)
from framepool.wire.describe import describe
from framepool.wire.message import Message

StreamId = Annotated[int, Parameter(help="The stream id.")]
ClientId = Annotated[int, Parameter(help="The client id that the lease was granted to.")]
LeaseId = Annotated[int, Parameter(help="The lease id.")]
RoleName = Annotated[Role, Parameter(help="The role of the lease.")]
ConfigFile = Annotated[Path | None, Parameter(help="The TOML file that the driver runs with.")]
Patience = Annotated[float, Parameter(help="Seconds to wait for the answer.")]
Json = Annotated[bool, Parameter(help="One JSON document.")]


def attach(
    stream: StreamId,
    /,
    *,
    role: RoleName = Role.CONSUMER,
    client: Annotated[int, Parameter(help="The client id; 0 draws one.")] = 0,
    create: Annotated[bool, Parameter(help="Make the stream if it does not exist.")] = False,
    config: ConfigFile = None,
    timeout: Patience = 3.0,
    json: Json = False,
) -> None:
    """Ask the driver for a lease and show its answer; exit code 1 when it says no."""
    request = ShmAttachRequest(
        correlation_id=secrets.randbelow(2**63),
        stream_id=stream,
        client_id=client or new_client_id(),
        role=role,
        expected_layout_version=0,
        max_dims=0,
        publish_mode=PublishMode.EXISTING_OR_CREATE if create else PublishMode.REQUIRE_EXISTING,
    )
    answer = ask(load(config), request, ShmAttachResponse, timeout)
    show({"clientId": request.client_id, **describe(answer)}, json)
    sys.exit(answer.code is not ResponseCode.OK)


def keepalive(
    lease: LeaseId,
    /,
    *,
    stream: StreamId,
    client: ClientId,
    role: RoleName = Role.CONSUMER,
    seconds: Annotated[float, Parameter(help="Go on for so long, once a second; 0 sends one.")] = 0.0,
    config: ConfigFile = None,
) -> None:
    """Keep a lease alive; the driver does not answer keepalives, `framepool status` shows the lease."""
    settings = load(config)
    with Client.connect(settings.aeron, name="framepool keepalive") as connection:
        control = connection.add_publication(channel.control(settings.channels.control), settings.stream_ids.control)
        end = time.monotonic() + seconds
        while True:
            message = ShmLeaseKeepalive(
                lease_id=lease,
                stream_id=stream,
                client_id=client,
                role=role,
                client_timestamp_ns=time.monotonic_ns(),
            )
            offer(control, message, settings.aeron.driver_timeout)
            if time.monotonic() + 1.0 > end:
                return
            time.sleep(1.0)


def detach(
    lease: LeaseId,
    /,
    *,
    stream: StreamId,
    client: ClientId,
    role: RoleName = Role.CONSUMER,
    config: ConfigFile = None,
    timeout: Patience = 3.0,
    json: Json = False,
) -> None:
    """Give a lease back and show the driver's answer; exit code 1 when it says no."""
    request = ShmDetachRequest(
        correlation_id=secrets.randbelow(2**63), lease_id=lease, stream_id=stream, client_id=client, role=role
    )
    answer = ask(load(config), request, ShmDetachResponse, timeout)
    show(describe(answer), json)
    sys.exit(answer.code is not ResponseCode.OK)


def ask[Answer: (ShmAttachResponse, ShmDetachResponse)](
    settings: Config, request: ShmAttachRequest | ShmDetachRequest, kind: type[Answer], timeout: float
) -> Answer:
    """Sends a request and waits for the answer with its correlation id."""
    with Client.connect(settings.aeron, name="framepool ask", timeout=timeout) as connection:
        answers = connection.add_subscription(channel.control(settings.channels.control), settings.stream_ids.control)
        control = connection.add_publication(channel.control(settings.channels.control), settings.stream_ids.control)
        deadline = time.monotonic() + timeout
        offer(control, request, timeout)
        while time.monotonic() < deadline:
            for message in answers.poll():
                try:
                    answer = kind.decode(message)
                except DecodeError:
                    continue  # somebody else's
                if answer.correlation_id == request.correlation_id:
                    return answer
            time.sleep(0.001)
    raise TransportTimeout(f"no answer within {timeout} s: is a driver running? Start one with: framepool driver")


def offer(publication: Publication, message: Message, timeout: float) -> None:
    """Sends a message, waiting for a listener if there is none yet."""
    deadline = time.monotonic() + timeout
    while publication.offer(message.encode()) < 0:
        if time.monotonic() >= deadline:
            raise TransportTimeout(f"nobody took the message within {timeout} s: is a driver running?")
        time.sleep(0.001)


def show(fields: dict[str, object], json: bool) -> None:
    """An answer, for people or for programs."""
    if json:
        print(jsonlib.dumps(fields))
        return
    for name, value in fields.items():
        if value not in (None, "", []):
            print(f"{name:24} {value}")
