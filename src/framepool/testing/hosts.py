"""Hosts for tests: network namespaces on a switch of their own, which nothing outside of them can reach or hear.

The switch is a bridge in a namespace of its own, so that the machine's network is never touched and two runs beside
each other, with the same addresses, never meet. Each host has its own /dev/shm, so that the same path there is other
memory, and each further one a monotonic clock that is ahead by a day more. Namespaces live as long as the process that
holds them, and that one ends when this process does, whatever happens to it. Without root a user namespace of the
caller's own does, where the kernel allows one.
"""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from framepool.testing.processes import Process, Processes

NETWORK = ipaddress.IPv4Network("198.18.0.0/24")
"""Of the range that is set aside for tests of networks (RFC 2544)."""
GROUP = "239.255.77.1"
"""A multicast group for tests; Aeron wants an odd last number."""
DAY = 86_400
MTU = 1500
SOCKET_BUFFER = 2 * 2**20
"""What sockets of media drivers ask for, as far as the kernel gives it."""
PATH = "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin"
PACKAGES = {"ip": "iproute2", "nft": "nftables", "unshare": "util-linux", "nsenter": "util-linux"}
RATES = 10_000
"""Loss is counted in so many parts."""

HOLD = 'echo "$$"; exec cat'
"""Says its process id and lives until the pipe to it is closed."""
HOLD_HOST = f"mount -t tmpfs -o mode=1777 host /dev/shm && {HOLD}"
AS_USER = ("--user", "--map-root-user")
TABLE = """
add table inet framepool
delete table inet framepool
add table inet framepool
add chain inet framepool loss { type filter hook prerouting priority raw; }
"""
"""Rules that lose nothing yet, in place of those before. Fragments are not put together here: each may be lost."""


@functools.cache
def missing() -> str:
    """What this machine lacks for hosts and how to get it; empty where it lacks nothing."""
    lacking = sorted({package for command, package in PACKAGES.items() if not _where(command)})
    if lacking:
        return f"install the packages {', '.join(lacking)}"
    if _privileges() is None:
        return "run as root, or allow user namespaces, on a kernel with time namespaces and nftables"
    return ""


@functools.cache
def _privileges() -> tuple[str, ...] | None:
    """What `unshare` is given besides: nothing for root, a user namespace where that does, None where nothing does."""
    trial = (
        "mount -t tmpfs trial /dev/shm && ip link add switch type bridge && ip link add port0 type veth && "
        f"echo '{TABLE}add rule inet framepool loss {_losing(1)}' | nft -f -"
    )
    for privileges in ((), AS_USER):
        command = ["unshare", *privileges, "--net", "--mount", "--time", "--fork", "--monotonic=1", "sh", "-c", trial]
        if subprocess.run(command, env=_environment(), capture_output=True, check=False).returncode == 0:
            return privileges
    return None


def _losing(percent: float) -> str:
    return "drop" if percent == 100 else f"numgen random mod {RATES} < {round(percent * RATES / 100)} drop"


def _where(command: str) -> str | None:
    return shutil.which(command, path=f"{os.environ.get('PATH', '')}:{PATH}")


def _environment() -> dict[str, str]:
    return {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:{PATH}"}


class Holder:
    """A process that keeps namespaces alive until it is closed, and the way to run others in them."""

    def __init__(self, command: Sequence[str], script: str, *, user: bool) -> None:
        self._popen = subprocess.Popen(
            [*command, "sh", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=_environment(),
            start_new_session=True,  # so that Ctrl-C leaves it to whoever has to clean up
        )
        assert self._popen.stdout is not None
        said = self._popen.stdout.readline()
        assert said, f"no namespaces from {command}: it ended with {self._popen.wait(10)}"
        self.pid = int(said)
        self._user = user

    def enter(self, *namespaces: str) -> list[str]:
        """The command that runs the command behind it in these namespaces, and in the same process."""
        user = ["--user", "--preserve-credentials"] if self._user else []
        return ["nsenter", f"--target={self.pid}", *user, *(f"--{each}" for each in namespaces)]

    def run(self, *command: str, input: str = "") -> str:
        """Runs something in the network of these namespaces to its end; its output."""
        done = subprocess.run(
            [*self.enter("net"), *command],
            input=input,
            capture_output=True,
            text=True,
            env=_environment(),
            check=False,
        )
        assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}: {done.stderr}"
        return done.stdout

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            assert self._popen.stdin is not None
            self._popen.stdin.close()
        assert self._popen.stdout is not None
        self._popen.stdout.close()
        self._popen.wait(10)


class Host:
    """One host: its address, its own /dev/shm, a monotonic clock that is ahead by `shift` seconds."""

    def __init__(self, holder: Holder, address: str, shift: int, processes: Processes) -> None:
        self.holder = holder
        self.address = address
        self.shift = shift
        self._processes = processes

    @property
    def name(self) -> str:
        """As a host identity: the boot id is one and the same for all namespaces of a machine."""
        return f"host-{self.address.rpartition('.')[2]}"

    @property
    def _inside(self) -> list[str]:
        # Entering another mount namespace ends in its root directory.
        return [*self.holder.enter("net", "mount", "time"), "env", f"--chdir={os.getcwd()}"]

    def start(self, *args: str, env: Mapping[str, str] | None = None) -> Process:
        """Runs `python ARGS…` here, by the fixture `processes`; its process id is that of the program itself."""
        return self._processes.start(*args, env={**_environment(), **SOCKETS, **(env or {})}, prefix=self._inside)

    def run(self, *args: str, timeout: float = 60.0) -> str:
        """Runs `python ARGS…` here to its end; its standard output."""
        done = subprocess.run(
            [*self._inside, sys.executable, *args],
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**_environment(), **SOCKETS},
            check=False,
        )
        assert done.returncode == 0, f"{args} ended with {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    def seen_from_outside(self, path: str | Path) -> Path:
        """Where this process finds a file that is `path` on the host."""
        return Path(f"/proc/{self.holder.pid}/root{path}")

    def __repr__(self) -> str:
        return f"<{self.name} at {self.address}>"


class Hosts:
    """Hosts that hear each other, until told otherwise."""

    def __init__(self, switch: Holder, hosts: Sequence[Host]) -> None:
        self.switch = switch
        self._hosts = tuple(hosts)
        self._losses: dict[tuple[Host, Host], float] = {}

    def __getitem__(self, index: int) -> Host:
        return self._hosts[index]

    def __iter__(self) -> Iterator[Host]:
        return iter(self._hosts)

    def __len__(self) -> int:
        return len(self._hosts)

    def drop(self, percent: float, *, source: Host | None = None, target: Host | None = None) -> None:
        """Loses so many of the packets from `source` to `target` at random from now on; all hosts where none is named.

        Replaces what was said of these directions before; 0 loses nothing. Packets, not messages: a datagram that is
        longer than the MTU is lost with any of its fragments.
        """
        assert 0 <= percent <= 100
        for sender in self._hosts if source is None else (source,):
            for receiver in self._hosts if target is None else (target,):
                if sender is not receiver:
                    self._losses[sender, receiver] = percent
        self._apply()

    def partition(self, one: Host, other: Host) -> None:
        """Neither hears the other from now on."""
        self._losses[one, other] = self._losses[other, one] = 100
        self._apply()

    def isolate(self, host: Host) -> None:
        """Nobody hears the host, and it hears nobody, from now on."""
        for other in self._hosts:
            if other is not host:
                self.partition(host, other)

    def heal(self) -> None:
        """Nothing is lost any more."""
        self._losses.clear()
        self._apply()

    def _apply(self) -> None:
        """Each host loses what comes to it by itself; its rules are replaced as a whole."""
        for host in self._hosts:
            rules = "".join(
                f"add rule inet framepool loss ip saddr {source.address} {_losing(percent)}\n"
                for (source, target), percent in self._losses.items()
                if target is host and percent
            )
            host.holder.run("nft", "-f", "-", input=f"{TABLE}{rules}")


class MakeHosts(Protocol):
    """The fixture `hosts`."""

    def __call__(self, count: int, *, shift: int = DAY, mtu: int = MTU) -> Hosts:
        """So many hosts that hear each other, each `shift` seconds ahead of the one before."""


def _socket_settings() -> dict[str, str]:
    """For media drivers that a host starts: what fits in the socket buffers that this kernel gives."""
    limits = (int(Path(f"/proc/sys/net/core/{name}").read_text()) for name in ("rmem_max", "wmem_max"))
    receive, send = (min(SOCKET_BUFFER, limit) for limit in limits)
    window = min(128 * 1024, receive)
    return {
        "AERON_SOCKET_SO_RCVBUF": str(receive),
        "AERON_SOCKET_SO_SNDBUF": str(send),
        "AERON_RCV_INITIAL_WINDOW_LENGTH": str(window),
    }


SOCKETS = _socket_settings()


def _own_shift() -> list[tuple[str, int]]:
    """By how much our own clocks are ahead of the kernel's, which is what those of a namespace are counted from."""
    lines = Path("/proc/self/timens_offsets").read_text().splitlines()
    return [(name, int(seconds)) for name, seconds, _ in map(str.split, lines)]


@contextlib.contextmanager
def make_hosts(count: int, processes: Processes, *, shift: int = DAY, mtu: int = MTU) -> Iterator[Hosts]:
    """So many hosts for the length of a block, the second one `shift` seconds ahead of the first, and so on."""
    privileges = _privileges()
    assert privileges is not None, missing()
    user = bool(privileges)
    with contextlib.ExitStack() as opened:
        unshare = ("unshare", "--net", "--mount", "--propagation=private")
        switch = Holder([*unshare, *privileges], HOLD, user=user)
        opened.callback(switch.close)
        switch.run("ip", "-batch", "-", input="link set lo up\nlink add switch type bridge mcast_snooping 0\n")
        hosts = []
        for number, address in zip(range(count), map(str, NETWORK.hosts()), strict=False):
            ahead = [f"--{name}={offset + number * shift}" for name, offset in _own_shift()]
            inside = switch.enter("net", "mount")
            time = ["--time", *ahead, "--fork", "--kill-child"]
            holder = Holder([*inside, *unshare, *time], HOLD_HOST, user=user)
            opened.callback(holder.close)
            _connect(switch, holder, number, address, mtu)
            hosts.append(Host(holder, address, number * shift, processes))
        switch.run("ip", "link", "set", "switch", "up")
        yield Hosts(switch, hosts)


def _connect(switch: Holder, holder: Holder, number: int, address: str, mtu: int) -> None:
    """A cable from a host to the switch."""
    port = f"port{number}"
    switch.run(
        "ip",
        "-batch",
        "-",
        input=f"link add {port} mtu {mtu} type veth peer name eth0 mtu {mtu} netns {holder.pid}\n"
        f"link set {port} master switch up\n",
    )
    holder.run(
        "ip",
        "-batch",
        "-",
        input="link set lo up\n"
        f"addr add {address}/{NETWORK.prefixlen} dev eth0\n"
        "link set eth0 up\n"
        "route add 224.0.0.0/4 dev eth0\n",
    )
