"""UDP ports for a test, of a range from which the kernel gives none by itself."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

FIRST = 20_000
_given: set[int] = set()


def free_ports(count: int) -> list[int]:
    """Ports that nobody has on this machine right now and that were not given before; nobody gets one who does not
    ask for it by number."""
    end = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports: list[int] = []
    with contextlib.ExitStack() as held:
        while len(ports) < count:
            probe = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            port = random.SystemRandom().randrange(FIRST, max(end, FIRST + 10_000))
            with contextlib.suppress(OSError):
                if port not in _given:
                    probe.bind(("127.0.0.1", port))
                    ports.append(port)
                    _given.add(port)
    return ports


def free_port() -> int:
    return free_ports(1)[0]
