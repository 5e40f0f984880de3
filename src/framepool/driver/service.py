"""The driver on the service control plane: `service:driver:<namespace>`.

It can be asked and told a few things, and none of them grants anything: leases come from attach requests alone
(Service 1). What may take long is only begun here, and done a piece a cycle by those whose work it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from framepool.clock import Clock
from framepool.config import Config
from framepool.driver.conductor import Conductor
from framepool.driver.janitor import Janitor
from framepool.errors import CommandRefused
from framepool.service import Service, command
from framepool.transport.aeron import Client
from framepool.wire._generated.driver_901 import ShutdownReason


class DriverService(Service):
    """Turned beside the conductor, on the same thread and with its client, which the conductor brings back."""

    without = frozenset({"start", "pause", "resume"})

    def __init__(
        self,
        client: Client,
        config: Config,
        clock: Clock,
        conductor: Conductor,
        janitor: Janitor,
        describe: Callable[[], dict[str, Any]],
    ) -> None:
        super().__init__(client, config, name="driver", instance=config.driver.namespace, clock=clock)
        self._conductor = conductor
        self._janitor = janitor
        self._describe = describe
        self._announce = False

    def work(self) -> int:
        if not self._announce:
            return 0
        self._announce = False
        self._conductor.announce()
        return 1

    def report(self) -> dict[str, Any]:
        now = self._describe()
        return {
            "namespace": now["namespace"],
            "streams": len(now["streams"]),
            "leases": len(now["leases"]),
            "epochs_removed": self._janitor.removed,
            "driver": now["counts"],
        }

    @command
    def streams(self) -> list[dict[str, Any]]:
        """The streams with their epoch, size, producer and number of consumers."""
        names = ("stream_id", "epoch", "bytes", "producer", "consumers")
        return [{name: stream[name] for name in names} for stream in self._describe()["streams"]]

    @command
    def announce(self) -> None:
        """Announce every stream now."""
        self._announce = True

    @command
    def gc(self) -> None:
        """Look through all streams for superseded epochs, and remove them."""
        self._janitor.look_at_all()

    @command(key="stop", secret=True)
    def shut_down(self, token: str) -> None:
        """End the driver; the value is its shutdown token."""
        if not self._conductor.may_be_ended_by(token):
            raise CommandRefused("not authorised to shut the driver down")
        self._conductor.end(ShutdownReason.ADMIN, "by a command")
