"""What waits for a publication to take it: bounded, in order, and never in anybody's way.

A reader that stops may hold up a stream for as long as Aeron gives it. An agent does not wait with it: each of its
publications has an outbox, and when one is full its oldest message goes. In the driver, a requester whose answer was
lost asks again, an announce is repeated within its period, and the holder of a lease whose end it was not told of hears
it in answer to its next keepalive.
"""

from __future__ import annotations

from collections import Counter, deque

from framepool.errors import MediaDriverLost
from framepool.transport.aeron import Outcome, Publication

CAPACITY = 4096
NOBODY = int(Outcome.NOT_CONNECTED)
"""Compared for each announce of a driver with many streams; an enumeration's member takes ten times as long."""


class Outbox:
    """The messages of one publication that Aeron has not taken yet."""

    def __init__(self, publication: Publication, name: str, counts: Counter[str], *, capacity: int = CAPACITY) -> None:
        self.lost: MediaDriverLost | None = None
        """Why nothing can be sent until the media driver is back."""
        self._publication = publication
        self._name = name
        self._counts = counts
        self._capacity = capacity
        self._waiting: deque[bytes] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, message: bytes) -> None:
        """Sends a message, or keeps it for a later `flush`; never raises, because a decision stands whether or not
        anybody hears of it."""
        if not self._waiting and self._offer(message):
            return
        self._waiting.append(message)
        if len(self._waiting) > self._capacity:
            self._waiting.popleft()
            self._counts[f"{self._name} overruns"] += 1
        self.flush()

    def flush(self) -> int:
        """Sends what Aeron takes now, oldest first, and says how many messages that was."""
        sent = 0
        while self._waiting and self._offer(self._waiting[0]):
            self._waiting.popleft()
            sent += 1
        return sent

    def _offer(self, message: bytes) -> bool:
        """Whether there is nothing more to do about a message: it was sent, or nobody would hear it."""
        if self.lost is not None:
            return False
        try:
            outcome = self._publication.offer(message)
        except MediaDriverLost as error:
            self.lost = error
            return False
        if outcome >= 0 or outcome == NOBODY:
            return True
        if outcome in (Outcome.BACK_PRESSURED, Outcome.ADMIN_ACTION):
            return False
        self._counts[f"{self._name} {Outcome(outcome).name}"] += 1
        return True

    def clear(self) -> None:
        """Forgets what waits: it is not true any more."""
        self._waiting.clear()
