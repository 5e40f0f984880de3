"""A driver that lacks descriptors for a while: whom it could not hear then, it hears later."""

from __future__ import annotations

import resource
import time
from pathlib import Path

from framepool.transport import channel
from framepool.transport.aeron import Client
from framepool.wire._generated.driver_901 import ResponseCode, ShmAttachResponse
from tests.support.driver_client import DriverClient
from tests.support.driver_site import STREAM, Site
from tests.support.processes import Processes

PATIENCE = 20.0

NO_MORE = 3
"""A limit below which only the standard descriptors lie, and those are taken: nothing can be opened."""


def test_driver_hears_a_client_whose_log_it_could_not_map_at_first(base_dir: Path, processes: Processes) -> None:
    """A log of its own for the requests of one client, as other implementations may have it."""
    site = Site(processes, base_dir, media_driver="external")
    site.start_media_driver()
    driver = site.start_driver()
    with DriverClient(site.config) as client, Client.connect(site.config.aeron, timeout=PATIENCE) as other:
        before = resource.prlimit(driver.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(driver.pid, resource.RLIMIT_NOFILE, (NO_MORE, before[1]))
        try:
            requests = other.add_exclusive_publication(
                channel.control(site.config.channels.control), site.config.stream_ids.control
            )
            deaf_to = client.request(STREAM)
            deadline = time.monotonic() + PATIENCE
            while requests.offer(deaf_to.encode()) < 0:
                assert time.monotonic() < deadline
                time.sleep(0.001)
            time.sleep(1.0)
            assert client.of(ShmAttachResponse) == []
        finally:
            resource.prlimit(driver.pid, resource.RLIMIT_NOFILE, before)
        deadline = time.monotonic() + PATIENCE
        while not (answers := client.of(ShmAttachResponse)):
            assert time.monotonic() < deadline, "the driver is deaf to it"
            requests.offer(client.request(STREAM).encode())
            time.sleep(0.2)
        assert answers[0].code is ResponseCode.OK
        assert answers[0].correlation_id != deaf_to.correlation_id, "what was said before it joined is passed over"
