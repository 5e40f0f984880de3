"""A look at everything without a server: what `framepool top` shows, and programs ask for once.

It has no thread: whoever holds it calls `turn` now and then, and `look` when he wants to know.
"""

from __future__ import annotations

import contextlib
import platform
import time
from typing import Any, Self

from framepool.client import gauges
from framepool.clock import MonotonicClock
from framepool.config import Config
from framepool.console.view import Scene
from framepool.supervisor.notices import Notice
from framepool.supervisor.observer import Observer
from framepool.transport.aeron import Client

PAUSE_S = 0.002


class Glance:
    """An observer with an Aeron client of its own."""

    def __init__(self, config: Config) -> None:
        self._config = config
        low, high = config.stream_ids.bridge_destinations
        self._scene = Scene(bridged=lambda stream_id: low <= stream_id <= high)
        with contextlib.ExitStack() as undo:
            self._client = undo.enter_context(Client.connect(config.aeron, name="framepool top"))
            self._observer = Observer(self._client, config, MonotonicClock())
            undo.callback(self._observer.close)
            self._observer.listen()
            self._open = undo.pop_all()

    def turn(self) -> int:
        """Takes in what was said; after the loss of the media driver, tries to get back. Never waits."""
        if not self._client.connected and not self._client.try_reconnect():
            return 0
        return self._observer.do_work()

    def watch(self, seconds: float) -> None:
        """Takes in what is said for so long."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if not self.turn():
                time.sleep(PAUSE_S)

    def look(self) -> dict[str, Any]:
        """Streams, services and totals; rates are since the last look."""
        state = self._observer.state
        services = [
            {"tag": each.tag, "state": each.state, "host": each.host, "pid": each.pid, "uptime_s": each.uptime_s}
            for each in state.services.services()
        ]
        return {
            "time": time.time(),
            "host": platform.node(),
            "namespace": self._config.driver.namespace,
            **self._scene.look(state, gauges.read(self._config.aeron.directory)),
            "services": services,
        }

    def notices(self, after: int = 0) -> list[Notice]:
        """What happened after that notice."""
        return self._observer.state.journal.after(after)

    def close(self) -> None:
        self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
