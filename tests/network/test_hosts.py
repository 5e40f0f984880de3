"""The hosts that the tests of this directory stand on: what they share, and what they do not."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.hosts import DAY, GROUP, Host, MakeHosts
from tests.support.processes import Process

PORT = 40_000
LISTEN = f"""
import json, socket, struct, sys, time
ear = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
ear.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**21)
ear.bind(("", {PORT}))
address, *groups = sys.argv[1:]
for group in groups:
    join = struct.pack("4s4s", socket.inet_aton(group), socket.inet_aton(address))
    ear.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, join)
print("listening", flush=True)
heard = {{}}
while True:
    data, (source, _) = ear.recvfrom(65536)
    if data == b"end":
        print(json.dumps(heard), flush=True)
        heard = {{}}
    else:
        heard[source] = heard.get(source, 0) + 1
"""
SPEAK = f"""
import socket, sys
mouth = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
mouth.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**21)
target, count, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
for number in range(count):
    mouth.sendto(bytes(size), (target, {PORT}))
"""
END = f"""
import socket
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"end", ("127.0.0.1", {PORT}))
"""


def listen(host: Host, *groups: str) -> Process:
    ear = host.start("-c", LISTEN, host.address, *groups)
    ear.wait_line("listening")
    return ear


def speak(host: Host, target: str, count: int = 1, size: int = 64) -> None:
    host.run("-c", SPEAK, target, str(count), str(size))


def heard(host: Host, ear: Process) -> dict[str, int]:
    """How many datagrams came from whom since the last question; what is under way on a veth has come by then."""
    host.run("-c", END)
    said: dict[str, int] = json.loads(ear.line())
    return said


def test_hosts_hear_each_other(hosts: MakeHosts) -> None:
    one, two, three = hosts(3)
    ear = listen(two)
    speak(one, two.address, 3)
    speak(three, two.address, 2)
    assert heard(two, ear) == {one.address: 3, three.address: 2}


def test_a_multicast_group_reaches_those_who_joined(hosts: MakeHosts) -> None:
    one, two, three, four = hosts(4)
    joined = [(host, listen(host, GROUP)) for host in (two, three)]
    aloof = listen(four)
    speak(one, GROUP, 5)
    assert [heard(host, ear) for host, ear in joined] == [{one.address: 5}] * 2
    assert heard(four, aloof) == {}


def test_the_machine_is_out_of_reach_and_so_are_the_hosts(hosts: MakeHosts) -> None:
    host, _ = hosts(2)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        connect = "import socket, sys; print(socket.socket().connect_ex(('127.0.0.1', int(sys.argv[1]))))"
        assert host.run("-c", connect, str(server.getsockname()[1])).strip() != "0"
    ours = os.stat("/proc/self/ns/net").st_ino
    assert os.stat(f"/proc/{host.holder.pid}/ns/net").st_ino != ours
    interfaces = host.run("-c", "import socket; print([name for _, name in socket.if_nameindex()])")
    assert interfaces.strip() == "['lo', 'eth0']"
    assert host.address not in Path("/proc/net/fib_trie").read_text()


def test_two_sets_of_hosts_do_not_meet(hosts: MakeHosts) -> None:
    here, there = hosts(2), hosts(2)
    assert [host.address for host in here] == [host.address for host in there]
    ears = [listen(set[1]) for set in (here, there)]
    speak(here[0], here[1].address, 7)
    assert heard(here[1], ears[0]) == {here[0].address: 7}
    assert heard(there[1], ears[1]) == {}


def test_each_host_is_a_day_ahead_of_the_one_before(hosts: MakeHosts) -> None:
    clocks = "import time; print(time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME), time.time())"
    for number, host in enumerate(hosts(3)):
        before = time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME), time.time()
        monotonic, boottime, realtime = map(float, host.run("-c", clocks).split())
        after = time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME), time.time()
        assert host.shift == number * DAY
        assert before[0] <= monotonic - number * DAY <= after[0]
        assert before[1] <= boottime - number * DAY <= after[1]
        assert before[2] <= realtime <= after[2]


def test_a_path_in_shared_memory_is_other_memory_on_each_host(hosts: MakeHosts, base_dir: Path) -> None:
    one, two = hosts(2)
    path = f"/dev/shm/{base_dir.name}.which"
    write = "import sys; open(sys.argv[1], 'x').write(sys.argv[2])"
    for host in (one, two):
        host.run("-c", write, path, host.name)
    assert [host.seen_from_outside(path).read_text() for host in (one, two)] == ["host-1", "host-2"]
    assert not Path(path).exists()
    assert one.run("-c", "import os, sys; print(os.path.exists(sys.argv[1]))", str(base_dir)).strip() == "False"


@pytest.mark.parametrize("percent", [5.0, 20.0])
def test_packets_are_lost_at_the_given_rate_in_one_direction(hosts: MakeHosts, percent: float) -> None:
    group = hosts(2)
    one, two = group
    ears = listen(one), listen(two)
    group.drop(percent, source=one, target=two)
    count = 5_000
    speak(one, two.address, count)
    speak(two, one.address, 500)
    lost = count - heard(two, ears[1])[one.address]
    expected = count * percent / 100
    deviation = (expected * (1 - percent / 100)) ** 0.5
    assert abs(lost - expected) < 7 * deviation, (lost, expected)
    assert heard(one, ears[0]) == {two.address: 500}
    group.heal()
    speak(one, two.address, 500)
    assert heard(two, ears[1]) == {one.address: 500}


def test_a_datagram_is_lost_with_any_of_its_fragments(hosts: MakeHosts) -> None:
    group = hosts(2)
    one, two = group
    ear = listen(two)
    group.drop(20)
    speak(one, two.address, 500, size=8_000)  # six packets of at most 1,500 bytes: 0.8 ** 6 of them come through whole
    assert 60 < heard(two, ear)[one.address] < 220


def test_a_partition_parts_two_hosts_and_no_others_until_it_heals(hosts: MakeHosts) -> None:
    group = hosts(3)
    one, two, three = group
    ears = [listen(host) for host in group]

    def exchange() -> list[set[str]]:
        for source in group:
            for target in group:
                if source is not target:
                    speak(source, target.address)
        return [set(heard(host, ear)) for host, ear in zip(group, ears, strict=True)]

    group.partition(one, two)
    assert exchange() == [{three.address}, {three.address}, {one.address, two.address}]
    group.isolate(three)
    assert exchange() == [set(), set(), set()]
    group.heal()
    assert exchange() == [{two.address, three.address}, {one.address, three.address}, {one.address, two.address}]


def test_a_started_process_is_the_program_itself_and_ends_with_what_it_started(hosts: MakeHosts) -> None:
    (host,) = hosts(1)
    fork = "import os, time\nos.fork()\nos.write(1, b'%d\\n' % os.getpid())\ntime.sleep(600)"  # each line in one go
    process = host.start("-c", fork)
    said = [int(process.line()) for _ in range(2)]
    assert process.pid in said
    assert os.readlink(f"/proc/{process.pid}/ns/net") == os.readlink(f"/proc/{host.holder.pid}/ns/net")
    process.close()
    deadline = time.monotonic() + 10
    while any(_runs(pid) for pid in said):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_namespaces_end_with_the_process_that_made_them() -> None:
    program = (
        "import os, signal, sys\n"
        "from tests.support.hosts import make_hosts\n"
        "from tests.support.processes import Processes\n"
        "with make_hosts(2, Processes(sys.executable)) as hosts:\n"
        "    print(*[host.holder.pid for host in hosts], hosts.switch.pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    holders = [int(pid) for pid in done.stdout.split()]
    assert len(holders) == 3, done.stderr
    deadline = time.monotonic() + 10
    while any(_runs(pid) for pid in holders):
        assert time.monotonic() < deadline
        time.sleep(0.01)
