"""The fixture `hosts`, and what every test here needs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.support.hosts import DAY, MTU, Hosts, MakeHosts, make_hosts
from tests.support.processes import Processes


@pytest.fixture
def hosts(processes: Processes) -> Iterator[MakeHosts]:
    """Makes hosts that last as long as the test; what was started on them by then is ended first."""
    with contextlib.ExitStack() as opened:

        def make(count: int, *, shift: int = DAY, mtu: int = MTU) -> Hosts:
            return opened.enter_context(make_hosts(count, processes, shift=shift, mtu=mtu))

        yield make
        processes.stop_all()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = __file__.rpartition("/")[0]
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.requires("netns"))
