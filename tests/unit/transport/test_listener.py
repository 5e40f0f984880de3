"""A listener joins again when it was left behind, without waiting and without losing what it has already."""

from __future__ import annotations

import pytest

from framepool.errors import TransportError
from framepool.transport.listener import RETRY, TROUBLE, Listener


class FakeSubscription:
    def __init__(self) -> None:
        self.waiting: list[bytes] = []
        self.is_connected = False
        self.troubled = False
        self.renewed = 0
        self.added = True
        self.refusals = 0
        self.asked = 0

    def poll(self, limit: int) -> list[bytes]:
        assert self.added, "polled while it is being added"
        taken, self.waiting = self.waiting[:limit], self.waiting[limit:]
        return taken

    def renew(self) -> None:
        self.renewed += 1
        self.added = False

    def add(self) -> None:
        self.asked += 1

    def poll_add(self) -> bool:
        if self.refusals:
            self.refusals -= 1
            raise TransportError("the endpoint is closing, please retry")
        return self.added


@pytest.fixture
def subscription() -> FakeSubscription:
    return FakeSubscription()


@pytest.fixture
def listener(subscription: FakeSubscription) -> Listener:
    return Listener(subscription)  # type: ignore[arg-type]


def test_nobody_heard_yet_is_no_reason_to_join_again(listener: Listener, subscription: FakeSubscription) -> None:
    assert listener.poll() == []
    assert subscription.renewed == 0


def test_a_listener_that_was_cut_off_joins_once_and_hears_again(
    listener: Listener, subscription: FakeSubscription
) -> None:
    subscription.is_connected = True
    assert listener.poll() == []
    subscription.is_connected = False
    for _ in range(3):
        assert listener.poll() == []
    assert (subscription.renewed, listener.left_behind) == (1, 1)
    subscription.added = subscription.is_connected = True
    subscription.waiting = [b"news"]
    assert listener.poll() == [b"news"]
    assert listener.poll() == []
    assert subscription.renewed == 1


def test_a_listener_that_joins_again_hears_nobody_meanwhile(
    listener: Listener, subscription: FakeSubscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not ask the subscription, which has no answer while it is being added."""

    def is_connected(self: FakeSubscription) -> bool:
        if not self.added:
            raise TransportError("still being added")
        return True

    subscription.troubled = True
    listener.poll()
    del subscription.is_connected
    monkeypatch.setattr(FakeSubscription, "is_connected", property(is_connected), raising=False)
    assert not listener.connected
    subscription.added, subscription.troubled = True, False
    listener.poll()
    assert listener.connected


def test_tethered_listener_does_not_move_because_nobody_speaks(subscription: FakeSubscription) -> None:
    """Who joins again meanwhile may not hear what the next one says."""
    listener = Listener(subscription, tethered=True)  # type: ignore[arg-type]
    subscription.is_connected = True
    listener.poll()
    subscription.is_connected = False
    listener.poll()
    assert (subscription.renewed, listener.joins) == (0, 0)
    subscription.troubled = True
    listener.poll()
    subscription.added = True
    listener.poll()
    assert (subscription.renewed, listener.joins) == (1, 1)


def test_what_had_arrived_is_read_before_it_joins_again(listener: Listener, subscription: FakeSubscription) -> None:
    subscription.is_connected = True
    listener.poll()
    subscription.is_connected = False
    subscription.waiting = [b"a", b"b"]
    assert listener.poll(1) == [b"a"]
    assert listener.poll(1) == [b"b"]
    assert subscription.renewed == 0
    listener.poll(1)
    assert subscription.renewed == 1


def test_listener_that_was_never_idle_before_it_was_cut_off_joins_again(
    listener: Listener, subscription: FakeSubscription
) -> None:
    """A steady stream: every poll hears something, until none does."""
    subscription.is_connected = True
    subscription.waiting = [b"a", b"b"]
    assert [listener.poll(1), listener.poll(1)] == [[b"a"], [b"b"]]
    subscription.is_connected = False
    assert listener.poll(1) == []
    assert subscription.renewed == 1


def test_listener_tries_again_where_it_is_refused(
    listener: Listener, subscription: FakeSubscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As over UDP, where the media driver refuses an address whose former user is just leaving it."""
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    subscription.is_connected = True
    listener.poll()
    subscription.is_connected = False
    subscription.refusals = 2
    for _ in range(3):
        assert listener.poll() == []
    assert subscription.asked == 0, "not at once"
    for asked in (1, 2):
        now += RETRY
        assert listener.poll() == []
        assert subscription.asked == asked
    subscription.added = subscription.is_connected = True
    subscription.waiting = [b"news"]
    assert listener.poll() == [b"news"]
    assert subscription.renewed == 1


def test_listener_that_aeron_failed_for_joins_again_whatever_it_hears_of_others(
    listener: Listener, subscription: FakeSubscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    subscription.is_connected = subscription.troubled = True
    subscription.waiting = [b"a"]
    assert listener.poll() == [b"a"]
    assert subscription.renewed == 1
    subscription.added = True
    for _ in range(10):
        listener.poll()
    assert subscription.renewed == 1, "not at once again, if it failed again"
    now += TROUBLE
    listener.poll()
    assert subscription.renewed == 2
    subscription.added, subscription.troubled = True, False
    now += TROUBLE
    listener.poll()
    assert subscription.renewed == 2
    assert listener.left_behind == 0
