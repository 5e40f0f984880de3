"""A whole driver in one object: media driver, Aeron client, files, conductor and housekeeping (Driver 2.1).

Embedded in a program it runs on a thread of its own; `framepool driver` runs the same object in the foreground.
"""

from __future__ import annotations

import contextlib
from typing import Any, Self

import msgspec

from framepool.agent import CompositeAgent, Runner, State
from framepool.clock import Clock, MonotonicClock, RealtimeSyncedClock
from framepool.config import Config, DriverConfig
from framepool.discovery.embedded import EmbeddedDiscovery
from framepool.driver.conductor import Conductor
from framepool.driver.janitor import Janitor
from framepool.driver.regions import DriverRegions
from framepool.driver.service import DriverService
from framepool.driver.status import StatusWriter, describe
from framepool.errors import ConfigurationError, MediaDriverRunning
from framepool.shm.allocator import Allocator
from framepool.shm.paths import OwnerPolicy
from framepool.transport.aeron import Client
from framepool.transport.attentive import Attentive
from framepool.transport.media_driver import DirectoryLock, MediaDriver
from framepool.transport.settings import AeronSettings

CLIENT_IDLE = 0.008
LONGEST_WAIT = 0.1
"""Seconds by which an announce or the end of a lease may be late."""


class ShmDriver:
    """The one authority over the streams of a namespace, from `start` to `close`."""

    def __init__(self, config: Config | None = None, *, clock: Clock | None = None) -> None:
        self.config = config or Config()
        self.clock = clock or make_clock(self.config.driver)
        self._opened = contextlib.ExitStack()
        with contextlib.ExitStack() as undo:
            allocator = make_allocator(self.config.driver)
            huge = make_allocator(self.config.driver, hugepages=True) if self.config.driver.hugepages_dir else None
            allocators = [allocator] + ([huge] if huge else [])
            for each in allocators:
                undo.callback(each.lock().release)
            if self.config.driver.media_driver == "embedded":
                undo.enter_context(MediaDriver(self.config.aeron, group=self.config.driver.group_id))
            undo.callback(lock_control_stream(self.config).release)
            client = undo.enter_context(Client.connect(relaxed(self.config.aeron), name="framepool driver"))
            self.regions = DriverRegions(
                allocator,
                self.clock,
                huge_allocator=huge,
                max_bytes=self.config.driver.limits.max_bytes,
                owners=OwnerPolicy.sharing(self.config.driver.group_id),
            )
            if self.config.driver.recreate_at_start:
                self.regions.remove_all()
            undo.callback(self.regions.remove_all)
            self.discovery = EmbeddedDiscovery(self.config, client, self.clock)
            self.conductor = Conductor(self.config, client, self.regions, self.clock, self.discovery.announced)
            authority = self.conductor.authority
            janitor = Janitor(authority, allocators, self.regions.retired, self.clock)
            idle = Attentive(client, longest=min(LONGEST_WAIT, self.config.driver.announce_period_ms / 4_000))
            self._runner = Runner(
                CompositeAgent(
                    self.conductor,
                    self.discovery,
                    janitor,
                    StatusWriter(allocator, client, self.clock, authority, self.statistics),
                    DriverService(client, self.config, self.clock, self.conductor, janitor, self.statistics),
                    until=self.conductor,
                ),
                idle=idle,
                stands_back=True,
                wake=idle.wake,
            )
            self._opened = undo.pop_all()

    def start(self) -> Self:
        """Serves on a thread of its own from when this returns; where that cannot begin, all is closed again."""
        self._runner.start()
        try:
            self._runner.wait_started()
        except BaseException:
            self.close()
            raise
        return self

    @property
    def running(self) -> bool:
        return self._runner.state is not State.CLOSED

    def statistics(self) -> dict[str, Any]:
        """Streams, epochs, leases, intervals and counts."""
        driver = describe(self.conductor.authority, self.config, self.clock, self.conductor.statistics())
        return {**driver, "discovery": self.discovery.statistics()}

    def close(self) -> None:
        """Tells the clients, ends the threads, removes the files and lets go of the namespace.

        The newest directory of each stream stays, empty: it keeps the count of epochs (`decisions.md` #33).
        """
        try:
            self._runner.close()
        finally:
            self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def relaxed(settings: AeronSettings) -> AeronSettings:
    """A driver adds few publications in its life: its Aeron client may look less often than those of its clients."""
    return msgspec.structs.replace(settings, idle_sleep=max(settings.idle_sleep, CLIENT_IDLE))


def lock_control_stream(config: Config) -> DirectoryLock:
    """Takes the control stream for one driver: a second one would answer the same requests (Driver 2.1)."""
    directory, stream_id = config.aeron.directory, config.stream_ids.control
    try:
        return DirectoryLock(f"{directory}.control-{stream_id}")
    except MediaDriverRunning:
        raise ConfigurationError(
            f"another driver serves control stream {stream_id} in {directory}; use it or other stream_ids"
        ) from None


def make_clock(driver: DriverConfig) -> Clock:
    """The clock that the announces declare."""
    if driver.clock == "realtime_synced":
        return RealtimeSyncedClock(driver.clock_error_budget_us * 1_000)
    return MonotonicClock()


def make_allocator(driver: DriverConfig, *, hugepages: bool = False) -> Allocator:
    """The maker of files that the configuration describes."""
    return Allocator(
        driver.hugepages_dir if hugepages else driver.shm_base_dir,
        driver.namespace,
        group=driver.group_id,
        require_hugepages=hugepages,
        prefault=driver.prefault,
        sync=False,
    )
