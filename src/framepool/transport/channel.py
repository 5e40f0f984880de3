"""Aeron channel strings: `aeron:ipc?term-length=1m|…`.

Every local channel names its term length, because Aeron's own default takes 3 x 64 MiB of shared memory per
publication. What the C driver does with the parameters, read from its source: the term length and, for IPC, the
`untethered-…-timeout`s count on the publication; `tether` counts on the subscription; each side passes over the
other's. A channel given by a user keeps what it names and gets what it lacks.
"""

from __future__ import annotations

from collections.abc import Mapping

from framepool.errors import ConfigurationError
from framepool.transport.settings import KIB, MIB, AeronSettings, check_term_length, nanoseconds

CONTROL_TERM = 1 * MIB
DESCRIPTOR_TERM = 16 * MIB

TERM_LENGTH = "term-length"
TETHER = "tether"


def parse(channel: str) -> tuple[str, dict[str, str]]:
    """Media (`ipc`, `udp`) and parameters of a channel."""
    scheme, _, rest = channel.partition(":")
    if scheme != "aeron":
        raise ConfigurationError(f"{channel!r} is no Aeron channel: it must begin with 'aeron:'")
    media, _, query = rest.partition("?")
    if media not in ("ipc", "udp"):
        raise ConfigurationError(f"{channel!r}: the media must be 'ipc' or 'udp'")
    parameters: dict[str, str] = {}
    for part in query.split("|") if query else ():
        key, equals, value = part.partition("=")
        if not key or not equals or not value:
            raise ConfigurationError(f"{channel!r}: {part!r} is not of the form key=value")
        if key in parameters:
            raise ConfigurationError(f"{channel!r} names {key!r} twice")
        parameters[key] = value
    return media, parameters


LOCATION = ("endpoint", "control", "control-mode", "interface")
"""The parameters that say where a channel is; the others say how it is used there."""


def place(channel: str) -> tuple[str, ...]:
    """What two names of one and the same channel have in common."""
    media, parameters = parse(channel)
    return media, *(parameters.get(key, "") for key in LOCATION)


def build(media: str, parameters: Mapping[str, str]) -> str:
    query = "|".join(f"{key}={value}" for key, value in parameters.items())
    return f"aeron:{media}?{query}" if query else f"aeron:{media}"


def complete(channel: str, **defaults: str) -> str:
    """The channel with those parameters added that it does not name; `_` in a name stands for `-`."""
    media, parameters = parse(channel)
    for key, value in defaults.items():
        parameters.setdefault(key.replace("_", "-"), value)
    return build(media, parameters)


def control(channel: str = "aeron:ipc", *, term_length: int = CONTROL_TERM) -> str:
    """For control, QoS, metadata, discovery and events: every message counts, so readers are tethered."""
    return complete(channel, term_length=size(term_length))


def control_publication(
    channel: str = "aeron:ipc", settings: AeronSettings | None = None, *, term_length: int = CONTROL_TERM
) -> str:
    """For whoever speaks on such a stream: says how soon an untethered reader that stops is left behind."""
    return _patient(channel, settings, term_length)


def control_subscription(channel: str = "aeron:ipc", *, term_length: int = CONTROL_TERM) -> str:
    """For the many clients of one driver: one that stops is left behind instead of stopping all the others."""
    return complete(channel, term_length=size(term_length), tether="false")


def descriptor_publication(
    channel: str = "aeron:ipc", settings: AeronSettings | None = None, *, term_length: int = DESCRIPTOR_TERM
) -> str:
    """For descriptors and progress: says how soon an untethered reader that stops is left behind."""
    return _patient(channel, settings, term_length)


def descriptor_subscription(channel: str = "aeron:ipc", *, term_length: int = DESCRIPTOR_TERM) -> str:
    """For descriptors and progress: this reader may be left behind."""
    return complete(channel, term_length=size(term_length), tether="false")


def network_subscription(channel: str, window: int) -> str:
    """For long messages over the network: a window of so many bytes, and a socket that holds it. The channel itself
    where it names one of the two, or is local, or the window is 0."""
    media, parameters = parse(channel)
    if media != "udp" or not window or {"rcv-wnd", "so-rcvbuf"} & set(parameters):
        return channel
    return complete(channel, so_rcvbuf=str(window), rcv_wnd=str(window))


def _patient(channel: str, settings: AeronSettings | None, term_length: int) -> str:
    settings = settings or AeronSettings()
    return complete(
        channel,
        term_length=size(term_length),
        untethered_window_limit_timeout=duration(settings.untethered_window_limit_timeout),
        untethered_linger_timeout=duration(settings.untethered_linger_timeout),
        untethered_resting_timeout=duration(settings.untethered_resting_timeout),
    )


def size(length: int) -> str:
    """A term length as Aeron writes it: 64k, 1m."""
    check_term_length(length, TERM_LENGTH)
    return f"{length // MIB}m" if length % MIB == 0 else f"{length // KIB}k"


def duration(seconds: float) -> str:
    """A duration as Aeron writes it."""
    return f"{nanoseconds(seconds)}ns"
