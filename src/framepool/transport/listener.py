"""A subscription that notices when it was left behind or cannot hear all, and joins again.

Aeron does not try a publication again that it could not map. And it goes on without an untethered reader that stops
(`tether=false`), which keeps one stopped process from stopping everybody else's. The reader finds its images gone; what
was said meanwhile is lost to it. All that is listened to heals by itself: announces are repeated, requests are asked
again, a lease that ended is told of in answer to a keepalive.
"""

from __future__ import annotations

import time

from framepool.errors import MediaDriverLost, TransportError
from framepool.transport.aeron import Subscription

RETRY = 0.05
"""Seconds between attempts to join."""
TROUBLE = 1.0
"""Seconds between joins because of errors: what Aeron lacked may still be lacking."""


class Listener:
    """Polls a subscription, or tends to one that somebody else empties."""

    def __init__(self, subscription: Subscription, *, tethered: bool = False) -> None:
        """A tethered one is never left behind: who hears nobody there has nobody to hear, and does not move."""
        self.left_behind = 0
        self.joins = 0
        """How often it has joined again."""
        self._subscription = subscription
        self._tethered = tethered
        self._connected = False
        self.joining = False
        """Whether it hears nothing at the moment because it joins again."""
        self._refused_at: float | None = None
        self._troubled_at = float("-inf")

    @property
    def connected(self) -> bool:
        """Whether there is anybody to hear; not while it joins again."""
        return not self.joining and self._subscription.is_connected

    def poll(self, limit: int = 64) -> list[bytes]:
        """What came, oldest first; also turns the joining, so it is to be called when nothing is expected too."""
        if self.joining:
            self.tend(heard=False)
            if self.joining:
                return []
        messages = self._subscription.poll(limit)
        self.tend(heard=bool(messages))
        return messages

    def tend(self, *, heard: bool) -> None:
        """Turns the joining, or looks whether that is needed if nothing was heard."""
        if self.joining:
            self.joining = not self._join()
            self.joins += not self.joining
        elif self._subscription.troubled and time.monotonic() >= self._troubled_at + TROUBLE:
            self._troubled_at = time.monotonic()
            self._renew()
        elif heard:
            self._connected = True  # known without a look: a steady stream gives no occasion for one
        elif not self._tethered:
            self._look()

    def _join(self) -> bool:
        """Whether it has joined. The media driver refuses a UDP address whose former user is still leaving it."""
        if self._refused_at is not None:
            if time.monotonic() < self._refused_at + RETRY:
                return False
            self._refused_at = None
            self._subscription.add()
        try:
            return self._subscription.poll_add()
        except MediaDriverLost:
            raise
        except TransportError:
            self._refused_at = time.monotonic()
            return False

    def _look(self) -> None:
        """Whoever heard a publication and hears none now was left behind, or the publication ended; joining again
        is right in one case and harmless in the other."""
        before, self._connected = self._connected, self._subscription.is_connected
        if before and not self._connected:
            self.left_behind += 1
            self._renew()

    def _renew(self) -> None:
        self._connected = False
        self._subscription.renew()
        self.joining = True

    def close(self) -> None:
        self._subscription.close()
