"""An untethered subscription that notices when it was left behind, and joins again.

Aeron goes on without a reader that stops (`tether=false`), which keeps one stopped process from stopping everybody
else's. The reader finds its images gone; what was said meanwhile is lost to it. All that clients listen to heals by
itself: announces are repeated, requests are asked again, a lease that ended is told of in answer to a keepalive.
"""

from __future__ import annotations

from framepool.transport.aeron import Drain, Subscription


class Listener:
    """Polls a subscription, or takes from its drain."""

    def __init__(self, subscription: Subscription, drain: Drain | None = None) -> None:
        self.left_behind = 0
        self._subscription = subscription
        self._drain = drain
        self._connected = False
        self._joining = False

    def poll(self, limit: int = 64) -> list[bytes]:
        """What came, oldest first; also turns the joining, so it is to be called when nothing is expected too."""
        if self._joining:
            if not self._subscription.poll_add():
                return []
            self._joining = False
        messages = self._subscription.poll(limit) if self._drain is None else self._drain.take(limit)
        if not messages:
            self._look()
        return messages

    def _look(self) -> None:
        """Whoever heard a publication and hears none now was left behind, or the publication ended; joining again
        is right in one case and harmless in the other."""
        before, self._connected = self._connected, self._subscription.is_connected
        if before and not self._connected:
            self.left_behind += 1
            self._subscription.renew()
            self._joining = True
