"""A subscriber with a drain, attentive or not.

Messages begin with a sequence number (u32); the number 0xFFFFFFFF ends the stream. Lines: `ready`, then
`end JSON` with the ranges of numbers taken and the drain's statistics.

Usage: aeron_reader.py DIRECTORY CHANNEL STREAM take|busy
  take: takes all the time
  busy: sits in a C call that keeps the interpreter's lock for 3 seconds, then takes
"""

from __future__ import annotations

import ctypes
import json
import sys
import time

from framepool.transport.aeron import Client
from framepool.transport.settings import AeronSettings

END = 0xFFFFFFFF


def ranges(numbers: list[int]) -> list[list[int]]:
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return found


def main(directory: str, channel: str, stream: str, how: str) -> None:
    client = Client.connect(AeronSettings(directory=directory, driver_timeout=30.0))
    subscription = client.add_subscription(channel, int(stream))
    drain = subscription.drain(capacity=65536 if how == "take" else 16, max_message=1024)
    while not subscription.is_connected:
        time.sleep(0.001)
    print("ready", flush=True)
    if how == "busy":
        ctypes.PyDLL(None).sleep(3)
    numbers: list[int] = []
    while not numbers or numbers[-1] != END:
        drain.wait()
        numbers += [int.from_bytes(message[:4]) for message in drain.take()]
    print("end", json.dumps({"taken": ranges(numbers[:-1]), **drain.statistics()}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
