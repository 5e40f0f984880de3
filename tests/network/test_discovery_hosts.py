"""Discovery between hosts: three drivers with a thousand streams each, two registries, clocks a day apart.

Each host is a network, memory and time of its own. The first one has the registries and the clients.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.fleet import FIRST, PATIENCE, Fleet, drivers_of, ready
from tests.support.hosts import MakeHosts


@pytest.mark.timeout(300)
@pytest.mark.clause("N-2.2-01", "N-2.2-02", "N-6.2-01", "N-13-02")
def test_registry_over_three_hosts_with_a_thousand_streams_each(hosts: MakeHosts, tmp_path: Path) -> None:
    fleet = Fleet(hosts(3), tmp_path)
    drivers = [fleet.start_driver(host) for host in fleet.hosts]
    ready(*drivers)
    tellers = [fleet.tell(host) for host in fleet.hosts]
    registries = [fleet.start_registry(number) for number in range(2)]
    ready(*registries)
    for teller in tellers:
        teller.wait_line("telling", PATIENCE)
    asker = fleet.asker()
    everybody = [f"{host.name}/streams" for host in fleet.hosts]

    # A filtered query, by everything that a stream can be found by
    found = asker.until(lambda found: drivers_of(found) == everybody, stream_id=FIRST + 999)
    assert {each["stream_id"] for each in found} == {FIRST + 999}
    one = fleet.hosts[2]
    named = asker.until(len, name=f"{one.name} camera 500", tags=["row:0", f"host:{one.name}"])
    assert [(each["driver"], each["stream_id"], each["host"]) for each in named] == [
        (f"{one.name}/streams", FIRST + 500, one.name)
    ]
    assert asker.ask(name=f"{one.name} camera 500", tags=[f"host:{fleet.home.name}"]) == []

    # A driver dies: its streams go within the expiry time; it comes back with a higher epoch
    before = {each["driver"]: each["epoch"] for each in found}
    drivers[1].kill()
    asker.until(lambda found: drivers_of(found) == [everybody[0], everybody[2]], stream_id=FIRST + 999)
    ready(fleet.start_driver(fleet.hosts[1]))
    again = asker.until(lambda found: drivers_of(found) == everybody, stream_id=FIRST + 999)
    after = {each["driver"]: each["epoch"] for each in again}
    assert after[everybody[1]] > before[everybody[1]]
    assert after[everybody[0]] == before[everybody[0]]

    # One of two registries dies, and every question is answered as before
    registries[0].kill()
    asker.until(lambda found: drivers_of(found) == everybody, stream_id=FIRST + 7)
    assert drivers_of(asker.ask(stream_id=FIRST + 999)) == everybody
