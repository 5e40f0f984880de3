"""How an agent that mostly listens waits between duty cycles: without the interpreter, until it hears something."""

from __future__ import annotations

from framepool.clock import NANOS_PER_MILLI, NANOS_PER_SECOND
from framepool.transport.aeron import Client, Ears

FIRST_NS = NANOS_PER_MILLI
"""Until the turn after one that did something: what was begun there may go on."""
LONGER = 4
"""Times as long as the wait before is one that ended with nothing."""
LOOKS_NS = 32 * NANOS_PER_MILLI
"""Between two looks at the subscriptions, once nothing was heard for a while."""


class Attentive:
    """An idle strategy that ends its wait when a subscription of the client hears something. Whatever else an agent
    waits for is looked at soon after a turn that did something, and then less and less often down to each `longest`."""

    def __init__(self, client: Client, *, longest: float) -> None:
        """`longest` is in seconds: how late a timer of the agent may be. What the agent leaves unread ends no second
        wait before its time, but for the looks at the subscriptions."""
        self._ears = Ears(client, least_ns=FIRST_NS, most_ns=LOOKS_NS)
        self._longest_ns = round(longest * NANOS_PER_SECOND)
        self._wait_ns = FIRST_NS
        self._in_vain = False

    def idle(self, work: int) -> None:
        if work:
            self._ears.rouse()
            self._wait_ns = FIRST_NS
            self._in_vain = False
            return
        heard = self._ears.wait(self._wait_ns)
        if heard and not self._in_vain:
            self._wait_ns = FIRST_NS
        else:
            self._wait_ns = min(LONGER * self._wait_ns, self._longest_ns)
        self._in_vain = heard

    def wake(self) -> None:
        """Ends a wait, for who closes the agent."""
        self._ears.nudge()
