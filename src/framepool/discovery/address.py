"""Where discovery is asked, and where its answers come (Discovery 4.2, 4.3)."""

from __future__ import annotations

import socket

import msgspec

from framepool.config import Config
from framepool.errors import ConfigurationError
from framepool.transport import channel
from framepool.transport.settings import MIB

LAST_STREAM_ID = 2**31 - 1
"""Aeron's stream ids are signed."""
RESPONSE_TERM = 4 * MIB
"""Of the channel that answers come on: an eighth of it is the longest answer, a thousand streams and more."""


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """Where a provider takes questions, and where this client takes its answers.

    Answers have an endpoint of their own, never empty and never stream 0 (Discovery 4.3, 5.1): who names none is
    refused here, before anything is sent.
    """

    channel: str
    stream_id: int
    response_channel: str
    response_stream_id: int

    def __post_init__(self) -> None:
        for name in ("channel", "response_channel"):
            if not getattr(self, name):
                raise ConfigurationError(f"discovery.{name} is empty: a question needs it (Discovery 4.3)")
            channel.parse(getattr(self, name))
        for name in ("stream_id", "response_stream_id"):
            if not 0 < getattr(self, name) <= LAST_STREAM_ID:
                raise ConfigurationError(f"discovery.{name} is {getattr(self, name)}, must be 1 to {LAST_STREAM_ID}")

    def __str__(self) -> str:
        return f"{self.channel} stream {self.stream_id}"


def addresses(config: Config) -> list[Address]:
    """All that are to be asked: whoever listens on this host, and the configured registries."""
    discovery = config.discovery
    asked = [discovery.channel] if _is_local(discovery.channel) or not discovery.registries else []
    return [
        Address(
            channel=each,
            stream_id=config.discovery_stream_id,
            response_channel=channel.control(_way_back(each, discovery.response_channel), term_length=RESPONSE_TERM),
            response_stream_id=discovery.response_stream_id or config.stream_ids.discovery_response,
        )
        for each in dict.fromkeys([*asked, *discovery.registries])
    ]


def response_channel(registry: str) -> str:
    """A UDP channel to this host for the answers of a registry: the address that leads to it, and a free port."""
    endpoint = channel.parse(registry)[1].get("endpoint", "")
    host, colon, port = endpoint.rpartition(":")
    try:
        if not colon:
            raise OSError("it names no endpoint=ADDRESS:PORT")
        family, kind, _, _, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as way:
            way.connect(address)  # sends nothing; says which address of ours leads there
            here = way.getsockname()[0]
        with socket.socket(family, kind) as free:
            free.bind((here, 0))
            port = free.getsockname()[1]
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"registry {registry!r}: no way back from it: {error}; name one: discovery.response_channel"
        ) from error
    return f"aeron:udp?endpoint={f'[{here}]' if family == socket.AF_INET6 else here}:{port}"


def _way_back(asked: str, configured: str) -> str:
    return "aeron:ipc" if _is_local(asked) else configured or response_channel(asked)


def _is_local(name: str) -> bool:
    return channel.parse(name)[0] == "ipc"
