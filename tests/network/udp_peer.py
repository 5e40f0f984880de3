"""One end of a UDP channel on a host of its own: a media driver, a client, and a publication or a subscription.

Messages are those of `tests.faults.aeron_reader`. Lines: `joined` once connected, then `end JSON` with what was sent
or which numbers came. A publisher begins when it is told to, and goes on saying that it has ended until it is told to
stop, for that may be lost as well; a subscriber that was told so stops by itself.

Usage: python -m tests.network.udp_peer publish|subscribe CHANNEL STREAM [COUNT]
"""

from __future__ import annotations

import itertools
import json
import select
import sys
import time

from framepool.transport import channel
from framepool.transport.aeron import Client, Publication, Subscription
from framepool.transport.media_driver import MediaDriver
from framepool.transport.settings import AeronSettings
from tests.faults.aeron_reader import END, is_whole, message, ranges


def told() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])


def publish(publication: Publication, count: int) -> dict[str, object]:
    sys.stdin.readline()
    refused = 0
    for number in range(count):
        while publication.offer(message(number)) < 0:
            refused += 1
            time.sleep(0.0001)
    while not told():
        publication.offer(message(END))
        time.sleep(0.01)
    return {"sent": count, "refused": refused}


def subscribe(subscription: Subscription) -> dict[str, object]:
    numbers: list[int] = []
    torn = 0
    while END not in numbers[-64:]:
        messages = subscription.poll(64)
        torn += sum(not is_whole(each) for each in messages)
        numbers += [int.from_bytes(each[:4]) for each in messages if is_whole(each)]
        if not messages:
            time.sleep(0.0002)
    taken = numbers[: numbers.index(END)]
    backwards = sum(later <= earlier for earlier, later in itertools.pairwise(taken))
    return {"taken": ranges(taken), "count": len(taken), "torn": torn, "backwards": backwards}


def main(role: str, name: str, stream: str, count: str = "0") -> None:
    settings = AeronSettings(directory="/dev/shm/aeron", driver_timeout=30.0)
    with MediaDriver(settings) as driver, Client.connect(settings) as client:
        end: Publication | Subscription
        if role == "publish":
            end = client.add_publication(channel.control(name), int(stream))
        else:
            end = client.add_subscription(channel.control(name), int(stream))
        while not end.is_connected:
            time.sleep(0.001)
        print("joined", flush=True)
        report = publish(end, int(count)) if isinstance(end, Publication) else subscribe(end)
        counters = driver.statistics()
        losses = {"naks": counters["NAKs sent"], "gap_fills": counters["Loss gap fills"]}
        print("end", json.dumps({**report, **losses}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
