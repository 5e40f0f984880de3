"""A subscriber with a drain, attentive or not.

Messages are a sequence number (u32), some bytes and their crc32; the number 0xFFFFFFFF ends the stream, and so does a
line on standard input. Lines: `ready`, then `end JSON` with the ranges of numbers taken, how many messages were torn
or out of order, and the drain's statistics.

Usage: aeron_reader.py DIRECTORY CHANNEL STREAM take|busy
  take: takes all the time
  busy: sits in a C call that keeps the interpreter's lock for 3 seconds, then takes
"""

from __future__ import annotations

import ctypes
import json
import random
import select
import sys
import time
import zlib
from itertools import pairwise

from framepool.transport.aeron import Client
from framepool.transport.settings import AeronSettings

END = 0xFFFFFFFF
PAYLOAD = random.Random(7).randbytes(4096)


def message(number: int) -> bytes:
    """Of a length between 108 and 3,107 bytes, which is one to three fragments."""
    body = number.to_bytes(4) + PAYLOAD[: 100 + number * 7919 % 3000]
    return body + zlib.crc32(body).to_bytes(4)


def is_whole(message: bytes) -> bool:
    return zlib.crc32(message[:-4]) == int.from_bytes(message[-4:])


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
    drain = subscription.drain(capacity=65536 if how == "take" else 16, max_message=4096)
    while not subscription.is_connected:
        time.sleep(0.001)
    print("ready", flush=True)
    if how == "busy":
        ctypes.PyDLL(None).read(0, ctypes.create_string_buffer(8), 8)  # has the interpreter until it is told to go on
    numbers: list[int] = []
    torn = 0
    while not (numbers and numbers[-1] == END) and not select.select([sys.stdin], [], [], 0)[0]:
        drain.wait(0.05)
        messages = drain.take()
        whole = [message for message in messages if is_whole(message)]
        torn += len(messages) - len(whole)
        numbers += [int.from_bytes(message[:4]) for message in whole]
    backwards = sum(later <= earlier for earlier, later in pairwise(numbers))
    taken = ranges([number for number in numbers if number != END])
    report = {"taken": taken, "torn": torn, "backwards": backwards, **drain.statistics()}
    print("end", json.dumps(report), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
