"""The web console: where it listens, who may change something, and how much it may cost the machine it watches."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Literal

import msgspec

from framepool.config.section import Positive, Section

TOKEN = re.compile(r"[A-Za-z0-9._~-]{16,}")
"""What an address and a handshake can carry as it is."""


class ConsoleConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The web console."""

    host: str = "127.0.0.1"
    """Where it listens. Loopback needs nothing more; anything else shows your frames to whoever can connect."""
    port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 8800
    """0 takes a free one."""
    hosts: tuple[str, ...] = ()
    """Further names under which browsers may ask for the page, as behind a proxy; all others are refused."""
    token: str = ""
    """Who knows it may change something. Empty: one is made at each start and printed with the address."""
    token_for: Literal["changes", "everything"] = "changes"
    """Whether the token is needed to change something only, or to look as well."""
    read_only: bool = False
    """Whether the console refuses every change, token or not."""
    preview_rate_hz: Annotated[int, msgspec.Meta(ge=1, le=60)] = 10
    """How often a stream that somebody looks at is read, at the most; more than four share what four would take."""
    preview_pixels: Annotated[int, msgspec.Meta(ge=16, le=4_096)] = 1_024
    """The longer side of a preview, at the most."""
    history_seconds: Annotated[int, msgspec.Meta(ge=10, le=3_600)] = 300
    """How far back charts go for a page that is opened now."""
    max_sockets: Positive = 32
    """Pages that are served at a time; one more replaces the one that was silent for longest."""
    max_connections: Positive = 256
    """Connections that are open at a time; one more replaces the one that asked nothing for longest."""
    max_message_bytes: Positive = 16_384
    """The longest message that a page may send."""

    recordings: str = ""
    """A directory whose recordings are listed, three levels deep, with the reports that Spark made of them."""

    def __post_init__(self) -> None:
        try:
            ipaddress.ip_address(self.host)
        except ValueError:
            raise ValueError(f"host {self.host!r} is not an IP address, such as 127.0.0.1 or ::1") from None
        if self.token and not TOKEN.fullmatch(self.token):
            raise ValueError("token: 16 or more letters, digits, and any of . _ ~ -")

    @property
    def is_local(self) -> bool:
        """Whether only this machine can connect."""
        return ipaddress.ip_address(self.host).is_loopback
