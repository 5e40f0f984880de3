"""The names under which services are addressed: `service:<name>[:<instance>]` (Service 7)."""

from __future__ import annotations

import re
from typing import Final

from framepool.errors import ConfigurationError
from framepool.transport.aeron import Filter
from framepool.wire._generated.event_905 import EventMessage
from framepool.wire.cursor import DATA_LENGTH

PREFIX: Final = "service"
LONGEST: Final = 256
"""Bytes of a tag that the native filter can compare."""
_PART: Final = re.compile(r"[!-9;-~]+")
"""Visible US-ASCII without the colon."""


def service_tag(name: str, instance: str = "") -> str:
    """The tag of a service, or of one of several instances of it."""
    parts = (name, instance) if instance else (name,)
    for part in parts:
        if not _PART.fullmatch(part):
            raise ConfigurationError(f"{part!r} cannot stand in a tag: visible US-ASCII without a colon can")
    tag = ":".join((PREFIX, *parts))
    if len(tag) > LONGEST:
        raise ConfigurationError(f"the tag {tag[:40]}… has {len(tag)} bytes, at most {LONGEST} are compared")
    return tag


def tag_filter(tag: str) -> Filter:
    """Lets pass the events of exactly this tag and nothing else (`decisions.md` #66), before Python sees them."""
    data = tag.encode("ascii")
    return Filter(
        schema_id=EventMessage.SCHEMA_ID,
        template_id=EventMessage.TEMPLATE_ID,
        after_block=True,
        pattern=DATA_LENGTH.pack(len(data)) + data,
    )
