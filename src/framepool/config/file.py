"""The whole file, and how it is read."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from framepool.config.bridge import BridgeConfig, LinkConfig, MappingConfig, check_bridge
from framepool.config.client import ClientConfig
from framepool.config.console import ConsoleConfig
from framepool.config.discovery import DiscoveryConfig, RegistryConfig
from framepool.config.driver import DriverConfig, ProfileConfig, StreamConfig, default_profile
from framepool.config.plan import Channels, StreamIds
from framepool.config.recorder import RecorderConfig
from framepool.config.section import Section
from framepool.config.service import ServiceConfig
from framepool.config.supervisor import SupervisorConfig
from framepool.errors import ConfigurationError
from framepool.transport.settings import AeronSettings


class Config(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    aeron: AeronSettings = msgspec.field(default_factory=AeronSettings)
    """The media driver and its clients."""
    stream_ids: StreamIds = StreamIds()
    """The plan of stream ids; ids that overlap are refused."""
    channels: Channels = Channels()
    driver: DriverConfig = DriverConfig()
    """The shared-memory driver."""
    client: ClientConfig = ClientConfig()
    """Producers and consumers."""
    service: ServiceConfig = ServiceConfig()
    """The service control plane."""
    console: ConsoleConfig = ConsoleConfig()
    """The web console."""
    discovery: DiscoveryConfig = DiscoveryConfig()
    """Where discovery is asked, and what is answered to whom."""
    registry: RegistryConfig = RegistryConfig()
    """The drivers that a registry listens to."""
    recorder: RecorderConfig = RecorderConfig()
    """The recorder."""
    supervisor: SupervisorConfig = SupervisorConfig()
    """The supervisor."""
    profiles: dict[str, ProfileConfig] = msgspec.field(default_factory=dict)
    """Layouts by name."""
    streams: tuple[StreamConfig, ...] = ()
    """Streams that exist from the start."""
    bridge: BridgeConfig | None = None
    """The UDP bridge."""
    mappings: tuple[MappingConfig, ...] = ()
    """The streams of the bridge."""
    bridges: dict[str, LinkConfig] = msgspec.field(default_factory=dict)
    """Where consumers find the payloads of `bridge://NAME` that they are sent to."""

    def __post_init__(self) -> None:
        known = {"default", *self.profiles}
        seen: set[int] = set()
        for stream in self.streams:
            if stream.profile not in known:
                raise ValueError(f"stream {stream.stream_id}: no profile {stream.profile!r}; known: {sorted(known)}")
            if stream.stream_id in seen:
                raise ValueError(f"stream {stream.stream_id} is configured twice")
            seen.add(stream.stream_id)
        if self.bridge is not None:
            check_bridge(self.bridge, self.mappings, self.stream_ids, static=seen, profiles=self.profiles)
        elif self.mappings:
            raise ValueError("mappings need a [bridge]")

    @property
    def discovery_stream_id(self) -> int:
        """The Aeron stream on which discovery is asked."""
        return self.discovery.stream_id or self.stream_ids.discovery_request

    def profile(self, name: str) -> ProfileConfig:
        """A profile by name; `default` is worked out from the free space unless the file defines it."""
        if name in self.profiles:
            return self.profiles[name]
        stat = os.statvfs(self.driver.shm_base_dir)
        return default_profile(stat.f_bavail * stat.f_frsize)


def load(path: str | Path | None = None, environ: Mapping[str, str] = os.environ) -> Config:
    """The configuration of a file, or of no file at all, with the environment's overrides.

    Raises `ConfigurationError` naming the file and the key.
    """
    source = str(path) if path is not None else "the environment"
    table: dict[str, Any] = {}
    if path is not None:
        try:
            table = tomllib.loads(Path(path).read_text())
        except OSError as error:
            raise ConfigurationError(f"{source}: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{source}: {error}") from error
        except RecursionError:
            raise ConfigurationError(f"{source}: arrays or tables are nested too deeply") from None
    _override(table, environ)
    try:
        return msgspec.convert(table, Config)
    except (msgspec.ValidationError, ValueError) as error:
        raise ConfigurationError(f"{source}: {error}") from error


@cache
def variables() -> tuple[tuple[str, tuple[str, ...], Any], ...]:
    """Every environment variable that overrides a scalar: its name, the key it stands for, and the type."""
    return tuple(_variables(Config, ()))


def _variables(struct: type[msgspec.Struct], keys: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...], Any]]:
    for field in msgspec.structs.fields(struct):
        where = (*keys, field.name)
        if isinstance(field.type, type) and issubclass(field.type, Section | AeronSettings):
            yield from _variables(field.type, where)
        elif isinstance(field.default, str | int | float) or field.type is str:
            yield "FRAMEPOOL_" + "_".join(where).upper(), where, field.type


def _override(table: dict[str, Any], environ: Mapping[str, str]) -> None:
    for name, keys, kind in variables():
        if name not in environ:
            continue
        try:
            value = msgspec.convert(environ[name], kind, strict=False)
        except msgspec.ValidationError as error:
            raise ConfigurationError(f"{name}: {error}") from error
        *parents, last = keys
        at = table
        for parent in parents:
            at = at.setdefault(parent, {})
            if not isinstance(at, dict):
                raise ConfigurationError(f"{name}: {parent!r} is no table in the file, but {at!r:.40}")
        at[last] = value
