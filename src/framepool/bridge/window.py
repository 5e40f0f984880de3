"""How much of a frame may be on its way.

Aeron lets 128 KiB of a channel be on their way unless it is told otherwise, and the receiving side moves that window
each time its conductor looks: a frame of a MiB waits eight times. So a bridge listens with a window of as much as the
kernel gives a socket, up to 2 MiB.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from framepool.errors import MediaDriverLost, TransportBusy, TransportError, TransportTimeout
from framepool.transport import channel
from framepool.transport.aeron import Client, Subscription
from framepool.transport.settings import KIB, MIB

LARGEST: Final = 2 * MIB
AERONS_OWN: Final = 128 * KIB
KERNELS: Final = Path("/proc/sys/net/core/rmem_max")


def window() -> int:
    """Bytes; 0 where the kernel gives no more than Aeron takes by itself, or does not say."""
    try:
        most = min(LARGEST, int(KERNELS.read_text()))
    except (OSError, ValueError):
        return 0
    return most if most > AERONS_OWN else 0


def listen(client: Client, where: str, stream_id: int) -> Subscription:
    """A subscription of a bridge. What the user's channel says about windows and buffers is kept."""
    wide = channel.network_subscription(where, window())
    if wide != where:
        try:
            return client.add_subscription(wide, stream_id)
        except (MediaDriverLost, TransportBusy, TransportTimeout):
            raise
        except TransportError:
            pass  # somebody listens there with other buffers already, or the media driver's kernel gives it less
    return client.add_subscription(where, stream_id)
