"""A client that publishes and polls for ever, loses its media driver, reports it and carries on.

Lines: `ready`; `lost SECONDS MESSAGE` with the monotonic clock; `back GENERATION`; `flowing N` after every 200
messages received. Usage: aeron_worker.py DIRECTORY STREAM_OUT STREAM_IN DRIVER_TIMEOUT poll|drain
"""

from __future__ import annotations

import sys
import time

from framepool.errors import MediaDriverLost
from framepool.transport.aeron import Client, Drain, Publication, Subscription
from framepool.transport.settings import AeronSettings

CHANNEL = "aeron:ipc?term-length=64k"
REPORT_EVERY = 200


def turn(publication: Publication, source: Subscription | Drain) -> int:
    """One duty cycle that uses both ends, so that either may be the one to notice."""
    publication.offer(b"a message of some length, sent again and again..")
    received = len(source.poll() if isinstance(source, Subscription) else source.take())
    time.sleep(0.0005)
    return received


def main(directory: str, stream_out: str, stream_in: str, timeout: str, how: str) -> None:
    settings = AeronSettings(directory=directory, driver_timeout=float(timeout), keepalive_interval=0.1)
    client = Client.connect(settings, name="worker")
    publication = client.add_publication(CHANNEL, int(stream_out))
    subscription = client.add_subscription(CHANNEL, int(stream_in))
    counter = client.add_counter(3000, "received")
    source = subscription.drain() if how == "drain" else subscription
    print("ready", flush=True)
    received = reported = 0
    while True:
        try:
            received += turn(publication, source)
            counter.set(received)
        except MediaDriverLost as error:
            print(f"lost {time.monotonic()} {error}", flush=True)
            while not client.try_reconnect():
                time.sleep(0.001)
            print(f"back {client.generation}", flush=True)
        if received >= reported + REPORT_EVERY:
            reported = received
            print(f"flowing {received}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
