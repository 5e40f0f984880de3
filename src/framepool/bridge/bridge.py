"""A whole bridge in one object: a connection to the driver of this host, the mappings, and a thread that turns them.

`framepool bridge` runs it in the foreground; `framepool.bridge(config)` inside a program. It needs a media driver and,
for each stream that it takes from this host or brings here, the shared-memory driver; both may come and go.
"""

from __future__ import annotations

import contextlib
from typing import Any, Self

from framepool.agent import Backoff, Runner, State
from framepool.bridge.service import BridgeService
from framepool.client.pool import Pool
from framepool.clock import Clock
from framepool.config import Config, MappingConfig
from framepool.errors import CommandRefused, ConfigurationError


class Bridge:
    """The bridge of a configuration, from `start` to `close`.

    >>> with framepool.bridge(load("bridge.toml")) as bridge:            # doctest: +SKIP
    ...     print(bridge.statistics())
    """

    def __init__(self, config: Config, *, clock: Clock | None = None) -> None:
        if config.bridge is None:
            raise ConfigurationError("a bridge needs a [bridge] and its [[mappings]]")
        self.config = config
        self._opened = contextlib.ExitStack()
        with contextlib.ExitStack() as undo:
            pool = undo.enter_context(Pool(config, clock=clock))
            self._service = BridgeService(pool)
            self._runner = Runner(self._service, idle=Backoff())
            self._opened = undo.pop_all()

    def start(self) -> Self:
        """Works on a thread of its own from when this returns; where a mapping cannot begin, all is closed again."""
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

    @property
    def tag(self) -> str:
        """How this bridge is addressed on the service control plane."""
        return self._service.tag

    def add(self, mapping: MappingConfig) -> str:
        """Maps one more stream from now on; what it is called. Raises `ConfigurationError` if it cannot."""
        try:
            return self._service.ask(lambda: self._service.add_mapping(mapping))
        except (ValueError, CommandRefused) as error:
            raise ConfigurationError(str(error)) from error

    def pause(self, mapping: str) -> None:
        """Lets go of a mapping, by its name, until `resume`."""
        self._service.ask(lambda: self._service.pause(mapping))

    def resume(self, mapping: str) -> None:
        """Takes a mapping up again."""
        self._service.ask(lambda: self._service.resume(mapping))

    def remove(self, mapping: str) -> None:
        """Unmaps a stream for good."""
        self._service.ask(lambda: self._service.remove(mapping))

    def statistics(self) -> dict[str, Any]:
        """State, mappings and links, with a count for every cause of a drop."""
        return self._service.ask(self._service.report_state)

    def close(self) -> None:
        """Gives everything back."""
        try:
            self._runner.close()
        finally:
            self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
