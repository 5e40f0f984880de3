"""Which host is which: shared memory is of one host only, and paths do not tell hosts apart.

A host is named by its boot id, which no other host has and which changes with its memory at every start. Results of
discovery carry it as a tag, because the message has no field for it. Containers of one machine that do not share
`/dev/shm` are hosts of their own as far as memory goes: they are given names by configuration.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from framepool.errors import ConfigurationError

HOST_TAG: Final = "host:"
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def this_host(configured: str = "") -> str:
    """The name of this host: as configured, else its boot id."""
    if configured:
        return configured
    try:
        return BOOT_ID.read_text().strip()
    except OSError as error:
        raise ConfigurationError(f"{BOOT_ID}: {error.strerror}; name this host: discovery.host") from error


def host_tag(host: str) -> str:
    """The tag that says so."""
    return HOST_TAG + host


def hosts_of(tags: Iterable[str]) -> set[str]:
    """The hosts that tags name: one, if they are in order."""
    return {tag.removeprefix(HOST_TAG) for tag in tags if tag.startswith(HOST_TAG)}
